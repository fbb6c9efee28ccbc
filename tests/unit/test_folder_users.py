"""Several users of the machine and one folder: who may use it, and what each is told. These tests need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Queue, StorageError
from fdbqueue.cli import opening
from fdbqueue.engine.embedded.store import backup
from fdbqueue.engine.embedded.store.disk import folder
from fdbqueue.engine.optional import members_of
from fdbqueue.layers import Leases
from tests.helpers.processes import Processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become several users: run the tests as root"),
]

WEB, WORKER, STRANGER = 64_001, 64_002, 64_003
GROUP = 64_010
NAMES = sorted(folder.NAMES - {"owner"})


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a folder that every user can reach, as pytest's own are not."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def become(user: int) -> None:
    os.umask(0o022)
    os.setgroups([GROUP] if user != STRANGER else [])
    os.setgid(user)
    os.setuid(user)


def work(user: int, path: Path) -> None:
    """Use the folder as `user`, with all of its files."""
    become(user)
    with fdbqueue.open(f"file:{path}") as db:
        leases = Leases(Queue[str]("orders", codec="str"))
        leases.enqueue(db, "one")
        lease = leases.lease(db)
        assert lease is not None
        assert members_of(db).own_id()
        leases.ack(db, lease)


def refused(user: int, path: Path, *told: str) -> None:
    become(user)
    with pytest.raises(StorageError) as caught:
        fdbqueue.open(f"file:{path}")
    for part in told:
        assert part in str(caught.value)


def test_two_users_of_a_group_share_a_folder(place: Path, processes: Processes) -> None:
    os.chown(place, 0, GROUP)
    place.chmod(0o2775)
    for user in (WEB, WORKER, WEB):
        processes.run(work, user, place / "shop")
    found = [(place / "shop" / name).stat() for name in NAMES]
    assert {(one.st_gid, stat.S_IMODE(one.st_mode)) for one in found} == {(GROUP, 0o660)}
    processes.run(refused, STRANGER, place / "shop", f"belongs to user {WEB}, with mode 2770", "chmod -R g+rwX")


def look(path: Path) -> None:
    """Use the command line on a folder that this user may not read."""
    become(STRANGER)
    with pytest.raises(StorageError, match=r"belongs to user .*, with mode 0700"), opening.opened(f"file:{path}"):
        pass
    with pytest.raises(StorageError, match="no right to write there"):
        backup.copy_folder(str(path), f"{path}.copy")


def test_a_database_that_a_user_may_not_see_is_not_said_to_be_missing(place: Path, processes: Processes) -> None:
    with fdbqueue.open(f"file:{place / 'shop'}"):
        pass
    processes.run(look, place / "shop")


def test_a_group_that_the_maker_is_not_a_member_of_gets_no_rights(place: Path, processes: Processes) -> None:
    os.chown(place, STRANGER, GROUP)
    place.chmod(0o770)
    processes.run(work, STRANGER, place)
    assert {stat.S_IMODE((place / name).stat().st_mode) for name in NAMES} == {0o600}


def test_what_root_makes_is_the_folders_owners(place: Path, processes: Processes) -> None:
    os.chown(place, WEB, WEB)
    with fdbqueue.open(f"file:{place}") as db:
        assert members_of(db).own_id()
    assert {(place / name).stat().st_uid for name in NAMES} == {WEB}
    processes.run(work, WEB, place)


def lock_all(path: Path) -> None:
    """Try to open each file to read it, as `flock` needs."""
    become(STRANGER)
    for name in NAMES:
        with pytest.raises(PermissionError):
            fcntl.flock(os.open(path / name, os.O_RDONLY), fcntl.LOCK_EX)


def test_a_user_who_may_only_read_the_folder_can_lock_none_of_its_files(place: Path, processes: Processes) -> None:
    os.chown(place, WEB, WEB)
    processes.run(work, WEB, place)
    processes.run(lock_all, place)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_cant_be_written_is_an_error_with_its_owner_and_a_remedy(
    place: Path, processes: Processes, name: str
) -> None:
    os.chown(place, WEB, WEB)
    processes.run(work, WEB, place)
    os.chown(place / name, 0, 0)
    told = () if name == "lock.mdb" else (f"to its file {name!r} (Permission denied): it belongs to user 'root' (0)",)
    processes.run(refused, WEB, place, "no right to write there", *told)


def test_a_strangers_file_in_a_folder_that_all_may_write_is_refused(place: Path, processes: Processes) -> None:
    os.chown(place, WEB, WEB)
    place.chmod(0o777)
    processes.run(work, WEB, place)
    for name in NAMES:
        os.chown(place / name, STRANGER, STRANGER)
        (place / name).chmod(0o666)
        processes.run(refused, WEB, place, f"its file {name!r} belongs to user {STRANGER}", f"chmod o-w {place}")
        os.chown(place / name, WEB, WEB)
    processes.run(work, WEB, place)


def test_a_strangers_folder_that_all_may_write_is_refused(place: Path, processes: Processes) -> None:
    os.chown(place, STRANGER, STRANGER)
    place.chmod(0o777)
    processes.run(refused, WEB, place, f"belongs to user {STRANGER}, and all users may write there", "chgrp -R GROUP")
    assert os.listdir(place) == []
    os.chown(place, 0, 0)
    processes.run(work, WEB, place)


def test_a_file_of_another_user_that_is_not_the_groups_yet_is_waited_for(place: Path, processes: Processes) -> None:
    os.chown(place, 0, GROUP)
    place.chmod(0o2770)
    processes.run(work, WEB, place)
    (place / "bell").chmod(0o600)
    ready = processes.event()
    process = processes.start(wait_for_rights, place, ready)
    assert ready.wait(60)
    (place / "bell").chmod(0o660)
    process.join(600)
    assert process.exitcode == 0


def wait_for_rights(path: Path, ready: object) -> None:
    folder.BEING_MADE_SECONDS = 30.0  # type: ignore[misc]  # of this process
    ready.set()  # type: ignore[attr-defined]
    work(WORKER, path)
