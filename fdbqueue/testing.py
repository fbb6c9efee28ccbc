"""A pytest plugin for your own tests: a database, a clock that a test moves, and faults on demand.

pytest loads it by itself where fdbqueue is installed: name a fixture, and it is there.

- `fdbqueue_db`: an empty database in memory, for one test.
- `fdbqueue_clock`: the time of this process stands still, and the test moves it. It needs ``fdbqueue[testing]``.
- `fdbqueue_faults`: the commits of `fdbqueue_db` fail when the test says so.

`run_due` runs consumers until none of them finds a due item.

    from fdbqueue.testing import run_due

    def test_a_reminder_is_sent_tomorrow(fdbqueue_db, fdbqueue_clock):
        reminders.enqueue(fdbqueue_db, "Ann", delay=86_400)
        assert run_due(fdbqueue_db, consumer) == 0
        fdbqueue_clock.move(86_400)
        assert run_due(fdbqueue_db, consumer) == 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

import pytest

import fdbqueue
from fdbqueue.base.times import check_number
from fdbqueue.engine.embedded.client.futures import FutureVoid

if TYPE_CHECKING:
    from fdbqueue.layers import Consumer

RETRYABLE = (1007, 1020, 1021, 1031)
"""The codes that a commit may fail with: too old, conflict, unknown result, timed out."""


class Crash(BaseException):
    """The process has died, as far as the test is concerned. Only a consumer catches it, of its handler."""


class Faults:
    """What goes wrong with the next commits of a database in memory.

    Args:
        db: a database of `fdbqueue.open("memory:")`, such as `fdbqueue_db`.

    >>> import fdbqueue
    >>> from fdbqueue.testing import Faults
    >>> db = fdbqueue.open("memory:")
    >>> faults = Faults(db)
    >>> orders = fdbqueue.Queue("orders", codec="str")
    >>> faults.fail_commit(1021, after=True)        # it has taken effect, and the caller can't know
    >>> position = orders.enqueue(db, "a cup")
    >>> orders.stats(db).available, faults.happened
    (1, 1)
    """

    def __init__(self, db: fdbqueue.Database) -> None:
        self._planned: deque[tuple[bool, int | None] | None] = deque()
        self.happened = 0
        """How many commits have failed so far."""
        if getattr(db, "_path", db) is not None:
            raise TypeError(f"Faults are for a database of fdbqueue.open('memory:'), not for {db!r}.")
        create = db.create_transaction

        def create_transaction() -> Any:
            tr: Any = create()
            if self._planned:
                real = tr.commit
                tr.commit = lambda: self._commit(real)
            return tr

        db.create_transaction = create_transaction  # type: ignore[method-assign]

    def fail_commit(self, code: int = 1020, *, after: bool = False, times: int = 1, skip: int = 0) -> None:
        """Make commits fail, of transactions that are created from now on.

        Args:
            code: the error: 1007, 1020, 1021 or 1031.
            after: whether the commit takes effect all the same; with 1021 and 1031 only.
            times: how many commits fail, one after the other.
            skip: how many commits pass before them.

        Raises:
            ValueError: a commit has no such error, or the number is too small.
        """
        if code not in RETRYABLE:
            raise ValueError(f"A commit fails with one of {RETRYABLE}, not {code!r}.")
        if after and code not in (1021, 1031):
            raise ValueError(f"A commit that failed with {code} took no effect: use 1021 or 1031 with after=True.")
        self._plan((after, code), times, skip)

    def crash(self, *, after: bool = True, skip: int = 0) -> None:
        """Raise `Crash` at a commit of a transaction that is created from now on.

        Args:
            after: whether the commit takes effect before.
            skip: how many commits pass before it.
        """
        self._plan((after, None), 1, skip)

    def check(self) -> None:
        """Raise if a planned fault has not happened. `fdbqueue_faults` does so after the test.

        Raises:
            AssertionError: one has not. The message names those that are left.
        """
        left = [fault for fault in self._planned if fault is not None]
        if left:
            told = ", ".join(
                f"{'crash' if code is None else f'fail_commit({code})'} {'after' if after else 'before'} the commit"
                for after, code in left
            )
            raise AssertionError(f"Planned faults that no commit met: {told}. Plan fewer, or commit as often.")

    def _plan(self, fault: tuple[bool, int | None], times: int, skip: int) -> None:
        given: tuple[object, ...] = (fault[0], times, skip)
        if [type(one) for one in given] != [bool, int, int]:
            raise TypeError("after is a bool, times and skip are integers, not {!r}, {!r} and {!r}.".format(*given))
        if times < 1 or skip < 0:
            raise ValueError(f"times is at least 1 and skip at least 0, not {times!r} and {skip!r}.")
        self._planned.extend([None] * skip)
        self._planned.extend([fault] * times)

    def _commit(self, commit: Any) -> Any:
        fault = self._planned.popleft() if self._planned else None
        if fault is None:
            return commit()
        self.happened += 1
        takes_effect, code = fault
        if takes_effect:
            try:
                commit().wait()
            except fdbqueue.FDBError as own:
                return FutureVoid(error=own.code)
        if code is None:
            raise Crash("after" if takes_effect else "before")
        return FutureVoid(error=code)


class Clock:
    """The time of this process, which stands still until the test moves it: `time.time`, `datetime.now` and so on.

    Waits are not shortened: `time.monotonic` goes on, and so do timeouts and sleeps. Enqueue, move the clock, and run
    what is due.
    """

    def __init__(self, traveller: Any) -> None:
        self._traveller = traveller

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        import time

        return time.time()

    def move(self, seconds: float) -> None:
        """Move the clock forwards by seconds; backwards with a negative number.

        Raises:
            TypeError: that is no number. ValueError: it is not finite.
        """
        check_number(seconds, "seconds")
        if not isfinite(seconds):
            raise ValueError(f"seconds is how far the clock moves, not {seconds!r}.")
        self._traveller.shift(seconds)

    def move_to(self, at: Any) -> None:
        """Move the clock to a time: seconds since 1970, a `datetime`, or a text such as ``"2026-03-29 02:30"``."""
        self._traveller.move_to(at)


def run_due(db: fdbqueue.Database, *consumers: Consumer) -> int:
    """Run consumers until none of them finds a due item. Return how many items they acked.

    A handler may enqueue for another consumer: they take turns until all have drained their queues.

    Raises:
        TypeError: no consumer was given, or something else.
    """
    if not consumers or not all(hasattr(consumer, "drain") for consumer in consumers):
        raise TypeError(f"run_due takes a database and consumers, as in run_due(db, Consumer(...)), not {consumers!r}.")
    first = latest = sum(consumer.report.acked for consumer in consumers)
    while True:
        now = sum(consumer.drain(db).acked for consumer in consumers)  # a report goes on from drain to drain
        if now == latest:
            return now - first
        latest = now


@pytest.fixture
def fdbqueue_db() -> Iterator[fdbqueue.Database]:
    """Return an empty database in memory, which is closed after the test."""
    with fdbqueue.open("memory:") as db:
        yield db


@pytest.fixture
def fdbqueue_faults(fdbqueue_db: fdbqueue.Database) -> Iterator[Faults]:
    """Return the `Faults` of `fdbqueue_db`. The test fails if a planned fault has not happened."""
    faults = Faults(fdbqueue_db)
    yield faults
    faults.check()


@pytest.fixture
def fdbqueue_clock() -> Iterator[Clock]:
    """Return a `Clock` that stands still at the present time, until the test moves it."""
    try:
        import time_machine
    except ImportError as missing:
        raise pytest.UsageError(
            "fdbqueue_clock needs the package time-machine: pip install 'fdbqueue[testing]'"
        ) from missing
    import time

    with time_machine.travel(time.time(), tick=False) as traveller:
        yield Clock(traveller)
