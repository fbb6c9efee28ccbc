"""Times of the verbs: durations are those of `fdbqueue/base/times.py`, and timeouts are checked here."""

from __future__ import annotations

from fdbqueue.base.times import LONGEST_SECONDS, check_number, clock_us, seconds_or_none, visible_at
from fdbqueue.lowlevel import is_database, not_negative, positive

__all__ = [
    "LONGEST_SECONDS",
    "check_timeout",
    "check_waits",
    "clock_us",
    "not_negative",
    "positive",
    "seconds_or_none",
    "visible_at",
]


def check_timeout(timeout: float | None) -> None:
    """Raise an error if a timeout is invalid.

    Raises:
        ValueError: it is less than 0, or NaN.
        TypeError: it is not a number.
    """
    if timeout is None:
        return
    check_number(timeout, "timeout", " or None")
    if not timeout >= 0:
        raise ValueError(f"timeout is a number of seconds, 0 or more, or None, not {timeout}.")


def check_waits(tr_or_db: object) -> None:
    """Raise an error if a call is to wait in a transaction.

    Raises:
        ValueError: `tr_or_db` is a transaction.
        TypeError: it is neither a database nor a transaction.
    """
    if not is_database(tr_or_db):
        raise ValueError("timeout needs a database: a transaction never sees items committed after it began.")
