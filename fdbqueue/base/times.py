"""Convert seconds, which the verbs take, into microseconds, which are stored."""

from __future__ import annotations

from numbers import Real
from typing import cast

LONGEST_SECONDS = 1e12
"""More than 30,000 years. In microseconds, from 1970 on, it is less than the time of a held item, `HELD_US`."""


def positive(seconds: float, name: str) -> int:
    """Return a duration in microseconds, at least 1.

    Raises:
        ValueError: it is NaN, too long, or less than a microsecond.
        TypeError: it is not a number.
    """
    check_number(seconds, name)
    if not 0 < seconds <= LONGEST_SECONDS:
        raise ValueError(f"{name} is a number of seconds, more than 0, not {seconds}{_over(seconds)}.")
    duration_us = int(seconds * 1e6)
    if not duration_us:  # 0 has a meaning of its own: no lease, no end
        raise ValueError(f"{name} is a number of seconds, at least a microsecond (1e-06), not {seconds}.")
    return duration_us


def not_negative(seconds: float, name: str) -> int:
    """Return a delay or a time in microseconds.

    Raises:
        ValueError: it is NaN, too long, or less than 0.
        TypeError: it is not a number.
    """
    check_number(seconds, name)
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValueError(f"{name} is a number of seconds, 0 or more, not {seconds}{_over(seconds)}.")
    return int(seconds * 1e6)


def clock_us(now: object) -> int:
    """Return what a clock returned in microseconds.

    Raises:
        ValueError: it is no time from 1970 on. TypeError: it is not a number.
    """
    is_number = isinstance(now, Real) and not isinstance(now, bool)
    if is_number and 0 <= cast(float, now) <= LONGEST_SECONDS:
        return int(cast(float, now) * 1e6)
    raise (ValueError if is_number else TypeError)(
        f"clock returned {now!r}, not the time in seconds since 1970, as time.time does."
    )


HELD_US = 2_000_000_000_000_000_000
"""A held follow-up is delayed until this time. What its own time is later than this is its delay after its release."""


def seconds_or_none(at_us: int) -> float | None:
    """Return a stored time in seconds; None if it was never set, or if it is that of a held item."""
    return at_us / 1e6 if 0 < at_us < HELD_US else None


def check_number(seconds: object, name: str, besides: str = "") -> None:
    """Raise a TypeError if this is no number of seconds, and a ValueError if it is too large for a float.

    True and False are no numbers.
    """
    if type(seconds) is float:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"{name} is a number of seconds{besides}, not {seconds!r}.")
    try:
        float(seconds)
    except OverflowError:
        raise ValueError(
            f"{name} is a number of seconds{besides}, and too large: over {LONGEST_SECONDS:.0e}."
        ) from None


def _over(seconds: float) -> str:
    return f", which is over {LONGEST_SECONDS:.0e}" if seconds > LONGEST_SECONDS else ""
