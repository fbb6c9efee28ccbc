"""Processes of two PID namespaces, such as two containers', with one folder: the second one is refused at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue, StorageError
from fdbqueue.engine.embedded.store.disk import locks
from tests.helpers.namespaces import contained, enter, need
from tests.helpers.processes import Processes
from tests.helpers.stores import store_of

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20


@pytest.fixture
def containers(processes: Processes) -> Processes:
    need(processes)
    return processes


def use(folder: Path) -> None:
    """Open the folder, write and read."""
    with fdbqueue.open(f"file:{folder}") as db:
        db[b"used by %d" % os.getpid()] = b""


def meet_a_refusal(folder: Path, other: int, namespace: int) -> None:
    with pytest.raises(StorageError) as caught:
        fdbqueue.open(f"file:{folder}")
    told = str(caught.value)
    assert f"by process {other} of the namespace {namespace}, host {os.uname().nodename!r}" in told
    assert f"This process, 1, is in {os.stat('/proc/self/ns/pid').st_ino}" in told
    for remedy in ('pid: "service:NAME"', "shareProcessNamespace: true", "--pid=container:NAME"):
        assert remedy in told


def test_a_process_of_another_namespace_is_refused_and_told_by_whom(containers: Processes, tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        containers.run(contained, meet_a_refusal, tmp_path, os.getpid(), namespace)
        containers.run(use, tmp_path)
        db[b"own"] = b""
    for _ in range(2):
        containers.run(contained, use, tmp_path)
    with fdbqueue.open(f"file:{tmp_path}") as db:
        assert [key for key, _ in db[b"u":b"v"]][:1] == [b"used by 1"]


def fork_in_a_namespace(folder: Path) -> None:
    """Open the folder, and use it in a child that is in another namespace."""
    with fdbqueue.open(f"file:{folder}") as db:
        db[b"parent"] = b""
        enter()
        if not (child := os.fork()):
            try:
                db[b"child"] = b""
            except StorageError as error:
                os._exit(7 if "another PID namespace" in str(error) else 8)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        db[b"parent"] = b"still"


def test_a_child_that_is_forked_into_another_namespace_is_refused(containers: Processes, tmp_path: Path) -> None:
    containers.run(fork_in_a_namespace, tmp_path)


def share(folder: Path) -> None:
    """Use the folder in the first process of a namespace and in its children."""
    with fdbqueue.open(f"file:{folder}") as db:
        for _ in range(2):
            if not (child := os.fork()):
                db[b"child %d" % os.getpid()] = b""
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert len(list(db[b"child":b"childs"])) == 2


def test_processes_of_one_namespace_share_a_folder(containers: Processes, tmp_path: Path) -> None:
    containers.run(contained, share, tmp_path)


def test_an_older_version_that_has_no_mark_is_no_reason_to_refuse(
    containers: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(locks, "join", lambda *_: None)
        db = fdbqueue.open(f"file:{tmp_path}")
    with db:
        db[b"a"] = b""
        containers.run(contained, use, tmp_path)


def wait_for_a_short_command(folder: Path, begins: Any) -> None:
    locks.NAMESPACE_PATIENCE_SECONDS = 30.0  # type: ignore[misc]  # of this process
    begins.set()
    use(folder)


def test_a_process_of_another_namespace_that_ends_soon_is_waited_for(containers: Processes, tmp_path: Path) -> None:
    begins = containers.event()
    with fdbqueue.open(f"file:{tmp_path}"):
        process = containers.start(contained, wait_for_a_short_command, tmp_path, begins)
        assert begins.wait(60)
    process.join(600)
    assert process.exitcode == 0


def read_and_wait(folder: Path, reads: Any) -> None:
    db = fdbqueue.open(f"file:{folder}")
    tr = db.create_transaction()
    tr[b"x"].wait()
    reads.set()
    subprocess.run(["sleep", "60"], check=False)


def turn_over(folder: Path) -> None:
    """Write and remove 20 MB, a megabyte at a time."""
    with fdbqueue.open(f"file:{folder}") as db:
        queue = Queue[bytes]("shop", codec="bytes")
        for _ in range(20):
            queue.enqueue_many(db, [bytes(20_000)] * 50)
            queue.dequeue_many(db, limit=50)
        assert "-" in store_of(db).files.env.readers()
    assert os.stat(folder / "data.mdb").st_size < 8 * MEGABYTE


def kill_a_reader(folder: Path, reads: Any, kill: Any) -> None:
    contained(read_and_wait, folder, reads, kill=kill)


def test_a_reader_that_was_killed_as_process_1_holds_no_pages_of_the_next_process_1(
    containers: Processes, tmp_path: Path
) -> None:
    reads, kill = containers.event(), containers.event()
    process = containers.start(kill_a_reader, tmp_path, reads, kill)
    assert reads.wait(60)
    kill.set()
    process.join(600)
    assert process.exitcode == 0
    containers.run(contained, turn_over, tmp_path)


def test_a_reader_that_exec_has_replaced_holds_no_pages(processes: Processes, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from tests.concurrency import test_pid_namespaces as t; t.{}"
    read = code.format("read_and_exec(Path(sys.argv[1]))")
    with fdbqueue.open(f"file:{tmp_path}") as db:
        db[b"a"] = b""
        subprocess.run([sys.executable, "-c", read, str(tmp_path)], check=True, timeout=100)


def read_and_exec(folder: Path) -> None:
    """Read, and let another program take the place of this one, with its PID."""
    db = fdbqueue.open(f"file:{folder}")
    tr = db.create_transaction()
    tr[b"x"].wait()
    code = "import sys; from pathlib import Path; from tests.concurrency import test_pid_namespaces as t; "
    os.execv(sys.executable, [sys.executable, "-c", code + "t.turn_over(Path(sys.argv[1]))", str(folder)])


@pytest.mark.parametrize("missing", ["F_OFD_SETLK", "the file"])
def test_a_system_without_namespaces_opens_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "the file":
        monkeypatch.setattr(locks, "_NAMESPACE", "/nowhere")
    else:
        monkeypatch.delattr(fcntl, missing)
    use(tmp_path)
