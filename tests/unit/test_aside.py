"""A file that is written aside: whole under its name, or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fdbqueue.base.aside import written_aside


def test_a_file_keeps_its_old_bytes_until_the_new_ones_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    with written_aside(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), SystemExit(1)])
def test_a_file_stays_what_it_was_if_writing_ends_early(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")

    def write() -> None:
        with written_aside(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["data"]


def test_a_new_file_has_the_rights_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with written_aside(path) as file:
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    with written_aside(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_a_device_is_written_directly(tmp_path: Path) -> None:
    with written_aside(os.devnull) as file:
        file.write(b"new")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)


def test_a_folder_and_a_missing_folder_are_refused_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)), written_aside(tmp_path):
        pass
    missing = tmp_path / "missing" / "data"
    with pytest.raises(FileNotFoundError, match=str(missing)), written_aside(missing):
        pass
    assert os.listdir(tmp_path) == []


def test_a_file_with_a_long_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    with written_aside(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
