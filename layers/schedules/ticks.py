"""The ticks of a schedule: times by a cron expression in a time zone, or every so many seconds.

cronsim reads the expressions. It follows Debian's cron where the clock changes. A job of a fixed time that the clock
skips runs right behind the gap. One that the clock repeats runs once. A job of every hour, or more often, runs in each
hour that passes.

>>> from fdbqueue.layers.schedules.ticks import Every, first_after
>>> first_after(Every(30.0), 95_000_000) / 1e6
120.0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from fdbqueue.base.reprs import near_texts

from ..leases.times import positive

NEVER_US = 1 << 61
_EXTRA = "Install the extra: pip install 'fdbqueue[tasks]'."


@dataclass(frozen=True, slots=True)
class Cron:
    """Times by a cron expression of five fields."""

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        self.ticks(0, reverse=False)

    def ticks(self, at_us: int, *, reverse: bool) -> Iterator[int]:
        """Yield the times around `at_us`, later ones or, in reverse, earlier ones.

        Raises:
            ValueError: the expression is none, or there is no such time zone. TypeError: they are no texts.
        """
        cronsim = _cronsim()
        for told, text in (("A cron expression", self.expression), ("A time zone", self.tz)):
            if not isinstance(text, str):
                raise TypeError(f"{told} is a text, as '*/5 * * * *' or 'Europe/Zurich', not {text!r}.")
        try:
            zone = ZoneInfo(self.tz)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"There is no time zone {self.tz!r}. {_other_zone(self.tz)}") from error
        moment = datetime.fromtimestamp(at_us / 1e6, zone)
        try:
            if (count := len(self.expression.split())) != 5:  # cronsim takes six, too: the first are seconds
                raise cronsim.CronSimError(f"It has {count} fields")
            found = cronsim.CronSim(self.expression, moment, reverse=reverse)
        except cronsim.CronSimError as error:
            raise ValueError(
                f"{self.expression!r} is no cron expression: {error}. One has five fields, as '*/5 * * * *': minute,"
                " hour, day of the month, month, day of the week. For seconds give every=SECONDS."
            ) from error
        return (int(tick.timestamp() * 1e6) for tick in found)


@dataclass(frozen=True, slots=True)
class Every:
    """Times that are so many seconds apart, counted from 1970 on: all processes have the same."""

    seconds: float

    def __post_init__(self) -> None:
        if positive(self.seconds, "every") < 1_000:
            raise ValueError(f"every is at least a millisecond, not {self.seconds} seconds.")

    def ticks(self, at_us: int, *, reverse: bool) -> Iterator[int]:
        """Yield the times around `at_us`, later ones or, in reverse, earlier ones."""
        step_us = int(self.seconds * 1e6)
        tick_us = at_us // step_us * step_us if reverse else at_us // step_us * step_us + step_us
        while True:
            yield tick_us
            tick_us += -step_us if reverse else step_us


Times: TypeAlias = Cron | Every


def first_after(times: Times, at_us: int) -> int:
    """Return the first tick after a time."""
    # A time that the clock repeats is read as its first occurrence, which may be over.
    return next((tick for tick in times.ticks(at_us, reverse=False) if tick > at_us), NEVER_US)


def last_until(times: Times, at_us: int) -> int:
    """Return the last tick that is not after a time; 0: there is none."""
    return next((tick for tick in times.ticks(at_us + 1_000_000, reverse=True) if tick <= at_us), 0)


def _other_zone(name: str) -> str:
    """Return what to do about a time zone that is not there."""
    if not (zones := available_timezones()):
        return f"This system has no data about time zones. {_EXTRA}"
    return f"Is it {' or '.join(map(repr, near))}?" if (near := near_texts(name, zones)) else "'Europe/Zurich' is one."


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ImportError(f"Cron expressions need cronsim. {_EXTRA} Or give every=SECONDS.") from error
    return cronsim
