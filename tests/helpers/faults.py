"""A database whose commits fail when a test says so: before they take effect, or after."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Literal

from fdbqueue.engine import FDBError
from tests.helpers.standin import StandIn

When = Literal["before", "after"]
Fault = tuple[When, int | Exception | None]
"""When a commit fails, relative to its effect, and the error code, or an error that is none of the database's own.
None kills the process."""
Plan = Callable[[], Fault | None]
"""Called at each commit; its fault happens there, None lets it pass."""


def says_the_same_whichever_commit_fails(
    outcome: Callable[[Plan], tuple[list[Any], int]], fault: Fault, *, commits: int
) -> None:
    """Run a program without a fault, and then once for each of its commits with a fault at that one.

    Args:
        outcome: runs it under a plan; returns what its calls said, and how many commits it made.
        fault: what happens.
        commits: how many it makes at least, so that it can't become a program of nothing.
    """
    expected, made = outcome(lambda: None)
    assert made >= commits
    for failing in range(made):
        numbers = itertools.count()

        def plan(failing: int = failing, numbers: Iterator[int] = numbers) -> Fault | None:
            return fault if next(numbers) == failing else None

        assert outcome(plan)[0] == expected, f"with {fault} at commit {failing}"


class FaultyDatabase(StandIn):
    """Wraps a database of either engine; its transactions' commits ask `plan` what goes wrong.

    Args:
        db: the database.
        plan: what goes wrong.
    """

    def __init__(self, db: Any, plan: Plan) -> None:
        self._db = self.wrapped = db
        self._plan = plan
        self.commits = 0
        self.faults = 0

    @classmethod
    def failing_at(cls, db: Any, numbers: set[int], fault: Fault) -> FaultyDatabase:
        """Fail the commits of these numbers, counted from 0."""
        counter: Iterator[int] = iter(range(1_000_000))
        return cls(db, lambda: fault if next(counter) in numbers else None)

    def create_transaction(self) -> FaultyTransaction:
        return FaultyTransaction(self._db.create_transaction(), self)

    def next_fault(self) -> Fault | None:
        self.commits += 1
        fault = self._plan()
        self.faults += fault is not None
        return fault


class FaultyTransaction:
    """A transaction of a `FaultyDatabase`; all but `commit` is the wrapped one's."""

    def __init__(self, tr: Any, db: FaultyDatabase) -> None:
        self._tr = tr
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tr, name)

    def commit(self) -> Any:
        fault = self._db.next_fault()
        if fault is None:
            return self._tr.commit()
        when, error = fault
        if when == "after":
            try:
                self._tr.commit().wait()
            except FDBError as own:  # a commit fails by its future, never at once
                return Failed(own.code)
        if error is None:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError
        return Failed(error)


class Dying(FaultyDatabase):
    """Kills its process at the commit of a number, counted from 0."""

    def __init__(self, db: Any, number: int, when: When) -> None:
        super().__init__(db, lambda: (when, None) if self.commits > number else None)

    def add(self, key: bytes, param: bytes) -> None:
        tr = self.create_transaction()
        tr.add(key, param)
        tr.commit().wait()


class Failed:
    """A future that failed."""

    def __init__(self, error: int | BaseException) -> None:
        self._error = FDBError(error) if isinstance(error, int) else error

    def wait(self) -> None:
        raise self._error

    def is_ready(self) -> bool:
        return True

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancel(self) -> None:
        pass
