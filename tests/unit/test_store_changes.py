"""Who is told of which commits, however early the look at them comes."""

from __future__ import annotations

from pathlib import Path

from fdbqueue.engine.embedded.bell import Bell
from fdbqueue.engine.embedded.changes import Changes
from fdbqueue.engine.embedded.logrows import Commit
from fdbqueue.engine.embedded.written import encode


class Log:
    """Another process' commits, one a version; readers see them up to `shown`, as LMDB shows them a moment later."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.shown = 0

    def write(self, key: bytes) -> None:
        self.commits.append((len(self.commits) + 1, encode(0, [key], [])))

    def show(self) -> None:
        self.shown = len(self.commits)

    def listen(self, on: bool) -> None:
        """Nothing is committed by this process."""

    def last_transaction(self) -> int:
        return len(self.commits)

    def entries_after(self, version: int) -> tuple[int, list[Commit]]:
        return self.shown, self.commits[version : self.shown]

    def last_version(self) -> int:
        return self.shown


def test_a_commit_that_is_counted_before_it_can_be_read_is_told_of_later(tmp_path: Path) -> None:
    log, told = Log(), []
    changes = Changes(log, Bell(str(tmp_path)))
    changes.watch(b"key", lambda: told.append("once"))
    changes.close()
    log.write(b"key")
    changes.look()
    assert told == []
    log.show()
    changes.look()
    changes.look()
    assert told == ["once"]


def test_a_commit_that_is_counted_but_not_shown_when_the_watch_begins_is_told_of(tmp_path: Path) -> None:
    log, told = Log(), []
    log.write(b"key")
    changes = Changes(log, Bell(str(tmp_path)))
    changes.watch(b"key", lambda: told.append("once"))
    changes.close()
    log.show()
    changes.look()
    assert told == ["once"]
