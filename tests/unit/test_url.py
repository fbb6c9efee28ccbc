"""URLs: the three kinds, and clear errors for everything else."""

from __future__ import annotations

import asyncio
import copy
import importlib.metadata
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import FDBError, cluster
from fdbqueue.errors import ClusterError, FdbQueueError, StorageError, UrlError

BINDING = ".".join(importlib.metadata.version("foundationdb").split(".")[:2])


@pytest.mark.parametrize(
    "url", ["", "memory", "redis://localhost", "/tmp/x", "memory:x", "file:", "fdb:?x=1", "file:x?durability"]
)
def test_an_unknown_url_is_refused(url: str) -> None:
    with pytest.raises(UrlError):
        fdbqueue.open(url)


@pytest.mark.parametrize("error", [UrlError, ClusterError, StorageError, FdbQueueError])
def test_an_error_of_the_engine_has_the_name_that_users_import(error: type[Exception]) -> None:
    assert (error.__module__, getattr(fdbqueue, error.__name__)) == ("fdbqueue.errors", error)
    assert pickle.loads(pickle.dumps(error)) is error


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_transaction_is_not_copied_and_goes_on(again: Callable[[Any], object]) -> None:
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b"1"
        tr = db.create_transaction()
        assert tr[b"a"] == b"1"
        for refused in (tr, {"tr": tr}) if again is not copy.copy else (tr,):
            with pytest.raises(TypeError, match=r"A transaction can't be copied or pickled.* db\.create_transaction"):
                again(refused)
        tr[b"b"] = tr[b"a"]
        tr.commit().wait()
        assert db[b"b"] == b"1"


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("file://shop9", "'shop9' behind // would be a host. Write file:shop9 for a relative path, file:/shop9 for"),
        ("file://host/x?durability=relaxed", "'host' behind // would be a host. Write file:host/x for"),
        ("file://./tea%20shop", "Write file:./tea shop for"),
        ("file://~/shop", "Write file:~/shop for"),
        ("fdb://host/fdb.cluster", "Write fdb:host/fdb.cluster for"),
        ("file://[shop", "Invalid IPv6 URL"),
        ("file:///tea#shop", "write '#' as %23"),
        ("file:///tea#", "write '#' as %23"),
        ("file:///tea\nshop", "control characters as percent-escapes"),
        ("file:tea\0shop", "a path has no byte 0"),
        ("file:///tea%00shop", "a path has no byte 0"),
        ("memory://", "memory: takes no path"),
        ("file://", "needs the path of a folder"),
    ],
)
def test_a_host_and_what_a_path_can_not_have_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UrlError, match=re.escape(remedy)):
        fdbqueue.open(url)

    assert not os.path.exists("/shop9")
    assert not os.path.exists("/host")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["shop", "tea shop", "100%", "tea%20shop", "tea#shop", "t\u00e9"])
def test_a_path_is_taken_as_it_is_and_behind_slashes_it_is_a_url_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with fdbqueue.open(f"file:{name}") as db:
        db[b"k"] = b"v"
    assert os.listdir(tmp_path) == [name]

    folder = tmp_path / name
    with_host = folder.as_uri().replace("file://", "file://localhost")
    for url in (f"file:{folder}", f"file:./{name}?durability=relaxed", folder.as_uri(), with_host):
        with fdbqueue.open(url) as db:
            assert db[b"k"] == b"v"
    with fdbqueue.open(f"{folder.as_uri()}?durability=relaxed") as db:
        assert db[b"k"] == b"v"
    assert os.listdir(tmp_path) == [name]


def test_a_path_behind_slashes_may_have_a_question_mark_and_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"a?\xff")
    with fdbqueue.open((tmp_path / name).as_uri()):
        assert os.listdir(tmp_path) == [name]


def test_without_any_url_the_error_names_the_three_kinds() -> None:
    with pytest.raises(UrlError, match=r"FDBQUEUE_URL is not set.*memory:.*file:PATH.*fdb:\[CLUSTER_FILE\]"):
        fdbqueue.open()


def test_the_url_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FDBQUEUE_URL", f"file:{tmp_path / 'q'}")
    with fdbqueue.open() as db:
        db[b"k"] = b"v"
    with fdbqueue.open(f"file:{tmp_path / 'q'}") as db:
        assert db[b"k"] == b"v"


def test_a_path_is_no_url() -> None:
    with pytest.raises(TypeError, match=r"is a str, one of memory:.*, not PosixPath"):
        fdbqueue.open(Path("shop"))  # type: ignore[arg-type]


def test_a_path_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with fdbqueue.open("file:~/shop") as db:
        db[b"k"] = b"v"

    assert (tmp_path / "shop").is_dir()


def test_a_cluster_file_that_is_not_there_is_refused_at_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"no cluster file '/nowhere/fdb.cluster'.*FDB_CLUSTER_FILE"):
        fdbqueue.open("fdb:/nowhere/fdb.cluster")
    monkeypatch.delenv("FDB_CLUSTER_FILE", raising=False)
    monkeypatch.setattr(cluster, "DEFAULT_CLUSTER_FILES", ())
    with pytest.raises(ClusterError, match="No cluster file was given"):
        fdbqueue.open("fdb:")


def test_opening_a_cluster_connects_to_nothing_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "fdb.cluster").write_text("x:y@127.0.0.1:4999\n")
    db = fdbqueue.open(f"fdb:{tmp_path / 'fdb.cluster'}")
    assert str(tmp_path) in repr(db)
    (tmp_path / "fdb.cluster").unlink()
    with pytest.raises(ClusterError, match="no cluster file"):
        db.create_transaction()


def test_a_missing_client_library_is_named_with_its_remedy(tmp_path: Path) -> None:
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("x:y@127.0.0.1:4999\n")
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    code = f"import fdbqueue; fdbqueue.open('fdb:{cluster_file}').create_transaction()"
    # With an installed library the cluster, of which there is none, does not answer.
    failed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert f"foundationdb-clients {BINDING}" in failed.stderr or "did not answer" in failed.stderr


def test_a_client_library_of_another_version_is_named_with_its_remedy(tmp_path: Path) -> None:
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("x:y@127.0.0.1:4999\n")
    code = (
        "import fdb, fdbqueue\n"
        "def refuse(version):\n"
        "    raise RuntimeError('The binding requires a library of 740, but the installed one supports 730.')\n"
        "fdb.api_version = refuse\n"
        f"fdbqueue.open('fdb:{cluster_file}').create_transaction()"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(
        rf"does not fit the Python package foundationdb {BINDING}: .* but the installed one supports 730. Install the"
        rf" client package \(foundationdb-clients\) {BINDING}, or the Python package foundationdb 7.3",
        failed.stderr,
    )


def test_servers_of_another_version_are_named_with_the_library_that_fits() -> None:
    def times_out() -> Any:
        raise FDBError(1031)

    def status(servers: str) -> Any:
        connections = [{"Compatible": True}, {"Compatible": False, "ProtocolVersion": servers}]
        return SimpleNamespace(wait=lambda: json.dumps({"DatabaseStatus": {"Connections": connections}}).encode())

    asked = SimpleNamespace(wait=times_out)
    tr = SimpleNamespace(
        options=SimpleNamespace(set_timeout=lambda ms: None),
        get_read_version=lambda: asked,
        on_error=lambda error: asked,
    )
    for servers, said in [("fdb00b074000000", "FoundationDB 7.4.* foundationdb-clients 7.4"), ("", "did not answer")]:
        raw = SimpleNamespace(create_transaction=lambda: tr, get_client_status=partial(status, servers))
        with pytest.raises(ClusterError, match=said):
            cluster.expect_answer(raw, "fdb.cluster", 5.0)


@pytest.mark.cluster
def test_a_second_client_library_is_no_hindrance(cluster_file: str, tmp_path: Path) -> None:
    code = (
        "import fdb, fdbqueue, os, pathlib, shutil\n"
        "from fdbqueue.engine import cluster\n"
        "cluster._binding = cluster.import_binding()\n"
        "path = cluster._library_path()\n"
        "cluster._library_path.cache_clear()\n"
        "cluster._binding = None\n"
        f"fdb.options.set_external_client_library(shutil.copy(path, {str(tmp_path)!r} + '/libfdb_c_other.so'))\n"
        f"db = fdbqueue.open('fdb:' + {cluster_file!r})\n"
        "fdbqueue.Queue('no such').peek(db)\n"
        "print('libfdb_c_other' in pathlib.Path('/proc/self/maps').read_text(), cluster._library_path() == path)\n"
        "for _ in range(2):\n"
        "    if child := os.fork():\n"
        "        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "    fdbqueue.Queue('no such').peek(db)\n"
        "print('a child and its child connected')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "True True\na child and its child connected\n"


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster_file")
def test_a_cluster_that_does_not_answer_is_an_error_within_seconds(tmp_path: Path) -> None:
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("x:y@127.0.0.1:4999\n")
    started = time.monotonic()
    with pytest.raises(ClusterError, match="did not answer within 5 s"):
        fdbqueue.open(f"fdb:{cluster_file}").create_transaction()
    assert time.monotonic() - started < 500


def _awaited_call(db: Any) -> Any:
    @fdbqueue.transactional
    async def read(tr: Any) -> bytes | None:
        return await fdbqueue.aio(tr[b"a"])

    return read(db)


@pytest.mark.parametrize(
    "use",
    [
        lambda db: fdbqueue.Queue("orders").enqueue.aio(db, b"tea"),
        lambda db: fdbqueue.Queue("orders").dequeue.aio(db),
        lambda db: fdbqueue.Queue("orders").peek.aio(db),
        _awaited_call,
    ],
    ids=["enqueue", "dequeue", "peek", "transactional"],
)
def test_the_first_use_of_a_cluster_blocks_no_event_loop(
    use: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    goes_on = threading.Event()
    opened = []

    def no_answer(path: str, _: float) -> Any:
        opened.append(path)
        raise ClusterError("no answer" if goes_on.wait(30) else "the event loop is blocked")

    monkeypatch.setattr(cluster, "_open", no_answer)
    (tmp_path / "fdb.cluster").write_text("x:y@127.0.0.1:4999\n")
    db = fdbqueue.open(f"fdb:{tmp_path / 'fdb.cluster'}")

    async def main() -> list[Any]:
        calls = [asyncio.ensure_future(use(db)) for _ in range(3)]
        await asyncio.sleep(0)
        goes_on.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["no answer"] * 3
    assert len(opened) == 1, "calls that begin together wait together"


@pytest.mark.cluster
def test_a_bad_cluster_file_is_an_error_that_describes_a_good_one(cluster_file: str, tmp_path: Path) -> None:
    for text in ("", "junk"):
        (tmp_path / "fdb.cluster").write_text(text)
        with pytest.raises(ClusterError, match="is not a cluster file"):
            fdbqueue.open(f"fdb:{tmp_path / 'fdb.cluster'}").create_transaction()


@pytest.mark.cluster
@pytest.mark.parametrize(("version", "said"), [(630, "None"), (710, "None"), (300, "version 300 .* want 630 or newer")])
@pytest.mark.parametrize("url", ["fdb:", "their own"])
def test_the_api_version_that_a_process_has_selected_will_do(
    cluster_file: str, version: int, said: str, url: str
) -> None:
    opened = f"fdb.open({cluster_file!r})" if url == "their own" else f"fdbqueue.open('fdb:' + {cluster_file!r})"
    code = f"import fdb, fdbqueue; fdb.api_version({version}); print(fdbqueue.Queue('no such').peek({opened}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(said, ran.stdout + ran.stderr)
