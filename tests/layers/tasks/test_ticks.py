"""Ticks where clocks change: a table for several zones, and any zone beside what its own rules say."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.layers.schedules.schedules import Cron, Every, first_after, last_until

NIGHT = "30 2 * * *"
HALF_HOURS = "*/30 * * * *"
TABLE: list[tuple[str, str, str, str, list[str]]] = [
    # Zurich skips 2:00 to 3:00 on March 29, and repeats it on October 25.
    ("a skipped time runs behind the gap", NIGHT, "Europe/Zurich", "2026-03-28T12:00+01:00",
     ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("a time before the gap", "30 1 * * *", "Europe/Zurich", "2026-03-28T12:00+01:00",
     ["2026-03-29T01:30+01:00", "2026-03-30T01:30+02:00"]),
    ("every half hour over the gap", HALF_HOURS, "Europe/Zurich", "2026-03-29T01:00+01:00",
     ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"]),
    ("a repeated time runs once", NIGHT, "Europe/Zurich", "2026-10-24T12:00+02:00",
     ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ("a repeated time is not run again from within its second hour", NIGHT, "Europe/Zurich", "2026-10-25T02:10+01:00",
     ["2026-10-26T02:30+01:00"]),
    ("every half hour runs in both hours", HALF_HOURS, "Europe/Zurich", "2026-10-25T01:45+02:00",
     ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00",
      "2026-10-25T03:00+01:00"]),
    ("the first of a month", "0 0 1 * *", "Europe/Zurich", "2026-03-15T00:00+01:00",
     ["2026-04-01T00:00+02:00", "2026-05-01T00:00+02:00"]),
    ("the last day of February", "0 9 L 2 *", "Europe/Zurich", "2026-03-01T00:00+01:00",
     ["2027-02-28T09:00+01:00", "2028-02-29T09:00+01:00"]),
    # London's gap is an hour earlier by the clock on the wall.
    ("London skips 1:00 to 2:00", "30 1 * * *", "Europe/London", "2026-03-28T12:00+00:00",
     ["2026-03-29T02:00+01:00", "2026-03-30T01:30+01:00"]),
    ("London repeats 1:00 to 2:00", "30 1 * * *", "Europe/London", "2026-10-24T12:00+01:00",
     ["2026-10-25T01:30+01:00", "2026-10-26T01:30+00:00"]),
    # New York skips 2:00 to 3:00 on March 8, and repeats 1:00 to 2:00 on November 1.
    ("New York's gap", NIGHT, "America/New_York", "2026-03-07T12:00-05:00",
     ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]),
    ("New York repeats 1:30", "30 1 * * *", "America/New_York", "2026-10-31T12:00-04:00",
     ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]),
    ("a job of every hour runs in both", "15 * * * *", "America/New_York", "2026-11-01T00:20-04:00",
     ["2026-11-01T01:15-04:00", "2026-11-01T01:15-05:00", "2026-11-01T02:15-05:00"]),
    # Lord Howe Island moves by half an hour.
    ("half an hour is skipped", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30",
     ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"]),
    ("half an hour is repeated", "*/15 * * * *", "Australia/Lord_Howe", "2026-04-05T01:35+11:00",
     ["2026-04-05T01:45+11:00", "2026-04-05T01:30+10:30", "2026-04-05T01:45+10:30", "2026-04-05T02:00+10:30"]),
    # Cairo, Beirut and Havana skip midnight.
    ("Cairo has no midnight", "0 0 * * *", "Africa/Cairo", "2026-04-23T12:00+02:00",
     ["2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"]),
    ("Beirut has no midnight", "0 0 * * *", "Asia/Beirut", "2026-03-28T12:00+02:00",
     ["2026-03-29T01:00+03:00", "2026-03-30T00:00+03:00"]),
    ("Havana has no midnight", "0 0 * * *", "America/Havana", "2026-03-07T12:00-05:00",
     ["2026-03-08T01:00-04:00", "2026-03-09T00:00-04:00"]),
    # Morocco goes back for Ramadan, and forth again.
    ("Casablanca in winter", NIGHT, "Africa/Casablanca", "2026-02-14T12:00+01:00",
     ["2026-02-15T02:30+01:00", "2026-02-16T02:30+00:00"]),
    ("Casablanca in spring", NIGHT, "Africa/Casablanca", "2026-03-21T12:00+00:00",
     ["2026-03-22T03:00+01:00", "2026-03-23T02:30+01:00"]),
    # Samoa had no December 30 in 2011: its noon ran at the next midnight.
    ("a day that is not there", "0 12 * * *", "Pacific/Apia", "2011-12-28T12:30-10:00",
     ["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"]),
    ("a zone whose clock stays", NIGHT, "Asia/Tokyo", "2026-03-28T12:00+09:00",
     ["2026-03-29T02:30+09:00", "2026-03-30T02:30+09:00"]),
    ("working days", "0 9 * * 1-5", "America/Sao_Paulo", "2026-10-16T10:00-03:00",
     ["2026-10-19T09:00-03:00", "2026-10-20T09:00-03:00"]),
    ("leap days", "0 0 29 2 *", "UTC", "2026-01-01T00:00+00:00",
     ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
]  # fmt: skip


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp() * 1e6)


@pytest.mark.parametrize(("told", "cron", "zone", "begin", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_ticks_where_the_clock_changes(told: str, cron: str, zone: str, begin: str, expected: list[str]) -> None:
    times, tick = Cron(cron, zone), at(begin)
    for one in expected:
        tick = first_after(times, tick)
        assert dt.datetime.fromtimestamp(tick / 1e6, ZoneInfo(zone)).isoformat(timespec="minutes") == one
        assert last_until(times, tick) == tick


ZONES = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("posix/", "right/")))
DAYS = st.dates(dt.date(2015, 1, 1), dt.date(2035, 1, 1))


def moment_of(wall: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """Return the first time that a clock on the wall shows this, or the end of the gap in which it never does."""
    first = wall.replace(tzinfo=zone).astimezone(dt.UTC)
    if first.astimezone(zone).replace(tzinfo=None) == wall:
        return first
    later = wall.replace(tzinfo=zone, fold=1).astimezone(dt.UTC)  # by the offset behind the gap, so in front of it
    begin, end = later, first
    offset = end.astimezone(zone).utcoffset()
    while end - begin > dt.timedelta(seconds=1):
        middle = begin + (end - begin) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            end = middle
        else:
            begin = middle
    return end.replace(microsecond=0)


@st.composite
def around_changes(draw: st.DrawFn) -> tuple[str, dt.date]:
    """Draw a zone and a day, often one at which its clock changes."""
    name, day = draw(st.sampled_from(ZONES)), draw(DAYS)
    if draw(st.booleans()):
        return name, day
    noons = [dt.datetime.combine(day + dt.timedelta(one), dt.time(12), ZoneInfo(name)) for one in range(370)]
    changes = [two.date() for one, two in itertools.pairwise(noons) if one.utcoffset() != two.utcoffset()]
    return name, changes[0] if changes else day


@given(around_changes(), st.times())
def test_a_daily_job_runs_once_a_day_in_every_zone(case: tuple[str, dt.date], time: dt.time) -> None:
    name, day = case
    zone, wall = ZoneInfo(name), time.replace(second=0, microsecond=0, fold=0)
    days = [day + dt.timedelta(one) for one in range(-1, 3)]
    expected = [moment_of(dt.datetime.combine(one, wall), zone) for one in days]
    times, tick, found = Cron(f"{time.minute} {time.hour} * * *", name), int(expected[0].timestamp() * 1e6) - 1, []
    for _ in days:
        tick = first_after(times, tick)
        found.append(dt.datetime.fromtimestamp(tick / 1e6, dt.UTC))

    assert found == expected


TIMES = st.one_of(
    st.sampled_from(["* * * * *", "*/7 * * * *", NIGHT, "0 */6 * * *", "15 3 1 * *", "0 0 * * 1"]).flatmap(
        lambda cron: st.sampled_from(ZONES).map(lambda tz: Cron(cron, tz))
    ),
    st.sampled_from([Every(0.5), Every(30.0), Every(86_400.0), Every(7.25)]),
)


@given(TIMES, st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2030, 1, 1)))
def test_ticks_go_forward_and_the_last_one_is_among_them(times: Any, moment: dt.datetime) -> None:
    at_us = int(moment.replace(tzinfo=dt.UTC).timestamp() * 1e6)
    following = first_after(times, at_us)
    assert following > at_us
    assert first_after(times, following - 1) == following
    before = last_until(times, at_us)
    assert before <= at_us < first_after(times, before)
