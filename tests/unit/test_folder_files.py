"""The files of a folder: regular files only, whose rights follow the folder's, and one module that opens them."""

from __future__ import annotations

import ast
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import fdbqueue
from fdbqueue import StorageError
from fdbqueue.engine.embedded.store import backup
from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.optional import members_of
from tests.helpers.stores import opened, store_of

NAMES = sorted(folder.NAMES - {"owner"})


def modes(path: Path) -> dict[str, int]:
    return {name: stat.S_IMODE((path / name).lstat().st_mode) for name in os.listdir(path)}


def use(path: Path) -> None:
    with fdbqueue.open(f"file:{path}") as db:
        db[b"a"] = b""
        assert members_of(db).own_id()


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# -- links and other files that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["a file", "nothing", "a folder"])
def test_a_link_is_refused_and_its_target_is_left_as_it_is(tmp_path: Path, name: str, target: str) -> None:
    path, outside = tmp_path / "shop", tmp_path / "outside"
    path.mkdir()
    (path / name).symlink_to(outside)
    if target == "a file":
        outside.write_bytes(b"precious " * 10)
    elif target == "a folder":
        outside.mkdir()
    with pytest.raises(StorageError, match=f"its file '{name}' is a symbolic link. Only a regular file is opened"):
        use(path)
    assert (path / name).is_symlink()
    assert outside.exists() == (target != "nothing")
    if target == "a file":
        assert outside.read_bytes() == b"precious " * 10


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(StorageError, match=f"its file '{name}' is a pipe"):
        use(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(StorageError, match=f"its file '{name}' is a folder"):
        use(tmp_path)


def test_a_link_to_the_whole_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "shop").symlink_to(tmp_path / "real", target_is_directory=True)
    use(tmp_path / "shop")
    assert set(os.listdir(tmp_path / "real")) == set(NAMES)


def test_a_file_that_is_replaced_while_lmdb_opens_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(tmp_path / "shop")
    (tmp_path / "other").write_bytes((tmp_path / "shop" / "data.mdb").read_bytes())
    real = lmdb.open

    def slow(*args: Any, **options: Any) -> Any:
        os.replace(tmp_path / "other", tmp_path / "shop" / "data.mdb")
        return real(*args, **options)

    monkeypatch.setattr(lmdb, "open", slow)
    with pytest.raises(StorageError, match="its files were replaced while they were opened"):
        use(tmp_path / "shop")


def test_a_backup_goes_through_no_link(tmp_path: Path) -> None:
    use(tmp_path / "shop")
    (tmp_path / "outside").mkdir()
    (tmp_path / "copy.part").symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(StorageError, match=r"copy\.part: is in the way"):
        backup.copy_data(str(tmp_path / "shop"), str(tmp_path / "copy"))
    assert os.listdir(tmp_path / "outside") == []


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_made_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    use(tmp_path / "some" / "shop")
    assert stat.S_IMODE((tmp_path / "some" / "shop").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "some").stat().st_mode) == 0o777 & ~umask
    assert modes(tmp_path / "some" / "shop") == dict.fromkeys(NAMES, 0o600)


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"),
    [(0o755, 0o600), (0o750, 0o600), (0o2750, 0o600), (0o770, 0o660), (0o775, 0o660), (0o2775, 0o660)],
    ids=oct,
)
def test_files_follow_their_folder(tmp_path: Path, umask: int, folder_mode: int, file_mode: int) -> None:
    path = tmp_path / "shop"
    path.mkdir()
    path.chmod(folder_mode)
    use(path)
    assert modes(path) == dict.fromkeys(NAMES, file_mode)
    assert stat.S_IMODE(path.stat().st_mode) == folder_mode


@pytest.mark.slow
def test_a_folder_in_one_that_its_group_shares_is_shared(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o2775)
    use(tmp_path / "shop")
    assert stat.S_IMODE((tmp_path / "shop").stat().st_mode) == 0o2770
    assert modes(tmp_path / "shop") == dict.fromkeys(NAMES, 0o660)
    backup.copy_folder(str(tmp_path / "shop"), str(tmp_path / "copy"))
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o2770
    assert modes(tmp_path / "copy") == {"data.mdb": 0o660}


def test_the_rights_of_an_existing_folder_and_its_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    use(path)
    path.chmod(0o755)
    for name in NAMES:
        (path / name).chmod(0o644)
    use(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert modes(path) == dict.fromkeys(NAMES, 0o644)


def test_a_database_in_memory_is_its_users_alone(umask: int) -> None:
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b""
        path = Path(store_of(db).path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert set(modes(path).values()) == {0o600}


def test_a_folder_in_memory_that_another_process_removes_while_it_is_made_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fstat, removed = os.fstat, list[str]()

    def removing(fd: int) -> os.stat_result:
        found, path = fstat(fd), os.path.dirname(os.readlink(f"/proc/self/fd/{fd}"))
        if not removed and os.path.basename(path).startswith("fdbqueue-memory-"):
            removed.append(path)
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(os, "fstat", removing)
    with fdbqueue.open("memory:") as db:
        db[b"a"] = b""
    assert removed


@pytest.mark.slow
def test_a_backup_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    use(tmp_path / "shop")
    backup.copy_folder(str(tmp_path / "shop"), str(tmp_path / "copy"))
    assert modes(tmp_path / "copy") == {"data.mdb": 0o600}
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700


def test_a_folder_with_nothing_but_the_file_of_members_is_ours(tmp_path: Path) -> None:
    (tmp_path / "members").touch()
    use(tmp_path)


# -- the rule ---------------------------------------------------------------------------------------------------------

OPENING = {"open", "fdopen", "read_bytes", "read_text", "write_bytes", "write_text", "touch", "mkdir", "makedirs"}
OPENING |= {"copyfile", "copy2", "mkstemp", "mknod", "truncate", "link", "symlink", "symlink_to", "NamedTemporaryFile"}
ELSEWHERE = {
    # What is opened there is no file of a database's folder, or a descriptor that `folder.open_file` gave.
    ("store/opening.py", "_BOOT_ID.read_bytes"),
    ("store/disk/locks.py", "_LOCKS.read_text"),
    ("store/disk/locks.py", "Path(f'/proc/{pid}/stat').read_bytes"),
    ("store/disk/locks.py", "Path(f'/proc/{thread}/status').read_text"),
    ("store/disk/locks.py", "_MAPS.read_text"),
    ("store/disk/files.py", "os.open"),  # folders, to wait for their names (_keep_names)
    ("store/disk/data_file.py", "os.fdopen"),
    ("store/disk/data_file.py", "file.truncate"),
    ("store/disk/disk.py", "os.fdopen"),
    ("store/backup.py", "Store.open"),
    ("client/database.py", "Store.open"),
    ("__init__.py", "Database.open"),
}


def test_no_other_module_opens_files_of_a_folder(repository: Path) -> None:
    embedded = repository / "fdbqueue" / "engine" / "embedded"
    found = set()
    for path in embedded.rglob("*.py"):
        name = str(path.relative_to(embedded))
        if name == "store/disk/folder.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if last in OPENING and not ast.unparse(called).startswith("folder."):
                    found.add((name, ast.unparse(called)))
    assert found <= ELSEWHERE, "Open files of a folder by `disk/folder.py`."


def test_a_closed_store_leaves_no_file_open(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    before = os.listdir("/proc/self/fd")
    with opened(tmp_path):
        pass
    assert os.listdir("/proc/self/fd") == before
