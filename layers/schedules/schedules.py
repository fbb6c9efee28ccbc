"""`Schedules`: the verbs of operators and of workers, and the times at which a schedule ticks."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from msgspec import structs

from fdbqueue import FormatError, Queue
from fdbqueue.base.reprs import near_texts
from fdbqueue.base.times import clock_us
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    ItemCheck,
    Layout,
    Named,
    Shown,
    Steps,
    Transaction,
    not_negative,
    only_database,
    only_transaction,
    pages,
    rows,
    value_of,
    verb,
)
from fdbqueue.stored.shapes import check_name

from ..leases.lease import positive

__all__ = ["stopped_at"]


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


CatchUp = Literal["none", "last", "all"]
LATE_US = 60_000_000
"""A tick that is not later than this is on time, whatever `catch_up` is. And a schedule that is later has no worker."""
AT_ONCE = 100
"""How many ticks of one schedule a transaction enqueues at most."""
_REMEDY = "Remove the schedule: a worker that has it in its code makes it again when it starts."


class Rule(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a schedule ticks, as it is stored."""

    cron: str = ""
    every: float = 0.0
    tz: str = "UTC"
    catch_up: str = "last"
    jitter: float = 0.0

    @property
    def times(self) -> Times:
        """The ticks."""
        return Every(self.every) if self.every else Cron(self.cron, self.tz)

    def __str__(self) -> str:
        return f"every {self.every:g} s" if self.every else f"{self.cron} {self.tz}"


class ScheduleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored record of a schedule."""

    task: str
    rule: Rule
    code: Rule
    """The rule that the code gave last. It differs from `rule` while an operator's change holds."""
    next_us: int
    last_us: int = 0
    """The last tick that was enqueued or skipped; 0: none."""
    paused: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Schedule(Shown):
    """A schedule, as `Schedules.list` returns it."""

    name: str
    task: str
    rule: str
    """Its cron expression with the time zone, or how many seconds apart its ticks are."""
    status: Literal["on time", "paused", "stopped", "damaged"]
    """"stopped": its next tick is over, and no worker enqueued it. No worker runs, or its code has left. "damaged": its
    record can't be read, and `rule` says what is wrong and what to do."""
    changed: bool
    """Whether an operator has changed its rule. `reset` takes that of the code again."""
    next_at: float | None
    """The time of its next tick, in seconds since 1970; None: it never ticks again."""
    last_at: float | None
    """The time of its last tick."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule in the code."""

    name: str
    rule: Rule
    task: str
    """What it enqueues, for operators."""
    enqueue: Callable[[Transaction, dict[str, str], float], Steps[Any]]
    """Enqueues it with these headers and this delay."""


class Schedules(Named):
    """The schedules of one queue of tasks, for operators. `Tasks.schedules` are those of an app.

    Args:
        queue: the queue that the `Tasks` are named by.
        clock: seconds since 1970, as `time.time`.
    """

    def __init__(self, queue: Queue, clock: Callable[[], float]) -> None:
        if not isinstance(cast(object, queue), Queue):
            raise TypeError(f"Schedules belong to the Queue that the Tasks are named by, not to {queue!r}.")
        if not callable(clock):
            raise TypeError(f"A clock is a function that returns the seconds since 1970, not {clock!r}.")
        self.queue = queue
        self._space = queue.layout.space["schedule"]
        self._clock = clock

    def __repr__(self) -> str:
        return f"Schedules({self.queue.layout.describe()})"

    @verb
    async def list(self, tr: Transaction | Database) -> Sequence[Schedule]:
        """Return all schedules, by their names, also those that no worker knows any more, and damaged ones.

        *Conflicts:* none, it reads by snapshot. *Cost:* one range read.
        """
        found = await self.queue.read(tr, self._rows)
        return [self._shown_or_damaged(name, stored) for name, stored in found.items()]

    @verb
    async def pause(self, tr: Transaction | Database, name: str) -> Schedule:
        """Enqueue no ticks until `resume`. The ticks in between are skipped.

        Raises:
            LookupError: there is no such schedule.

        *Conflicts:* with a tick of it. *Cost:* one read, one write.
        """
        return await self._change(tr, name, lambda one: structs.replace(one, paused=True))

    @verb
    async def resume(self, tr: Transaction | Database, name: str) -> Schedule:
        """End a pause. Its next tick is the first one from now on; otherwise as `pause`."""
        return await self._change(tr, name, lambda one: self._from_now(structs.replace(one, paused=False)))

    @verb
    async def change(
        self,
        tr: Transaction | Database,
        name: str,
        cron: str = "",
        *,
        every: float | None = None,
        tz: str | None = None,
    ) -> Schedule:
        """Give a schedule other times, until `reset`, or until the code of the next worker that starts has others.

        Args:
            cron: a cron expression.
            every: seconds, in place of a cron expression.
            tz: the time zone of the expression; None: as it is.

        Raises:
            LookupError: there is no such schedule. ValueError: there are no such times.

        *Conflicts:* and *Cost:* as `pause`.
        """

        def changed(one: ScheduleRecord) -> ScheduleRecord:
            kept = {"catch_up": one.rule.catch_up, "jitter": one.rule.jitter}
            rule = rule_of(cron, every=every, tz=one.rule.tz if tz is None else tz, **kept)  # type: ignore[arg-type]
            return self._from_now(structs.replace(one, rule=rule))

        check_name(name, "schedule")
        if not isinstance(cast(object, cron), str) or not isinstance(cast(object, tz), str | None):
            raise TypeError(f"cron and tz are texts, not {cron!r} and {tz!r}.")
        if not (tz or "").isascii():
            raise ValueError(f"There is no time zone {tz!r}.")
        rule_of(cron, every=every, tz="UTC" if tz is None else tz)  # before a key is touched
        return await self._change(tr, name, changed)

    @verb
    async def reset(self, tr: Transaction | Database, name: str) -> Schedule:
        """Take the times of the code again; otherwise as `pause`."""
        return await self._change(tr, name, lambda one: self._from_now(structs.replace(one, rule=one.code)))

    @verb
    async def remove(self, tr: Transaction | Database, name: str) -> None:
        """Forget a schedule. A worker that still has it in its code makes it again when it starts.

        Raises:
            LookupError: there is no such schedule.

        *Conflicts:* with a tick of it. *Cost:* one read, one write.
        """
        key = self._key(name)

        async def body(tr: Transaction) -> None:
            await self._present(tr, name)  # it may be one that can't be read
            tr.clear(key)

        await self.queue.transact(tr, body)

    @verb
    async def note_plans(self, tr: Transaction | Database, plans: Sequence[Plan]) -> None:
        """Store what the code of a starting worker says, where it differs. For `Worker`.

        Of two workers with different code the one that starts last decides. Both then follow the stored rule.

        *Conflicts:* with a tick of the same schedules. *Cost:* one read for each; a write if it differs.
        """
        _check_plans(plans)
        await self.queue.transact(tr, partial(self._note_plans, plans=plans))

    async def _note_plans(self, tr: Transaction, plans: Sequence[Plan]) -> None:
        reads = [(plan, tr.get(self._key(plan.name))) for plan in plans]
        for plan, read in reads:
            stored = await value_of(read)
            was = self._decoded(plan.name, stored) if stored.present() else None
            if was is None or was.code != plan.rule:
                was = was or ScheduleRecord(plan.task, plan.rule, plan.rule, 0)
                now = structs.replace(was, task=plan.task, rule=plan.rule, code=plan.rule)
                tr.set(self._key(plan.name), _encode(self._from_now(now)))
            elif was.task != plan.task:
                tr.set(self._key(plan.name), _encode(structs.replace(was, task=plan.task)))

    @verb
    async def fire(self, db: Database, plans: Sequence[Plan]) -> float | None:
        """Enqueue the ticks that are due, each in the transaction that moves its schedule on. For `Worker`.

        Returns:
            the seconds until the next tick; None: there is none.

        *Conflicts:* with other workers that enqueue the same ticks: one of them does. *Cost:* one range read; for each
        due schedule one transaction, of up to 100 ticks.
        """
        only_database(db, "Schedules.fire", "Ticks are enqueued by committed transactions of their own.")
        _check_plans(plans)
        # A record of another program's that can't be read stops no tick here.
        known = await self.queue.read(db, partial(self._records, names={plan.name for plan in plans}))
        next_us = NEVER_US
        for plan in plans:
            record = known.get(plan.name)
            while record is not None and not record.paused and record.next_us <= self._now_us():
                record = await self.queue.transact(db, partial(self._fire, plan=plan))
            if record is not None and not record.paused:
                next_us = min(next_us, record.next_us)
        return None if next_us == NEVER_US else max(0.0, (next_us - self._now_us()) / 1e6)

    async def _fire(self, tr: Transaction, plan: Plan) -> ScheduleRecord | None:
        stored = await value_of(tr.get(self._key(plan.name)))  # of two workers that read it, one commits
        record = self._decoded(plan.name, stored) if stored.present() else None
        now_us = self._now_us()
        if record is None or record.paused or record.next_us > now_us:
            return record
        times = record.rule.times
        due = [record.next_us] if record.rule.catch_up == "all" else []
        while due and len(due) < AT_ONCE and (tick := first_after(times, due[-1])) <= now_us:
            due.append(tick)
        last_us = due[-1] if due else max(record.next_us, last_until(times, now_us))
        if not due and (record.rule.catch_up == "last" or last_us >= now_us - LATE_US):
            due = [last_us]
        for tick_us in due:
            headers = {"schedule": plan.name, "tick": datetime.fromtimestamp(tick_us / 1e6, UTC).isoformat()}
            await plan.enqueue(tr, headers, random.uniform(0, record.rule.jitter))
        moved = structs.replace(record, last_us=last_us, next_us=first_after(times, last_us))
        tr.set(self._key(plan.name), _encode(moved))
        return moved

    async def records(self, tr: Transaction) -> dict[str, ScheduleRecord]:
        """Return the records by their names. For the layer.

        Raises:
            FormatError: one of them can't be read.
        """
        only_transaction(tr, "Schedules.records")
        return await self._records(tr)

    async def _records(self, tr: Transaction, names: Collection[str] | None = None) -> dict[str, ScheduleRecord]:
        """Return the records, all or those with these names."""
        found = await self._rows(tr)
        return {name: self._decoded(name, stored) for name, stored in found.items() if names is None or name in names}

    async def _rows(self, tr: Transaction) -> dict[str, bytes]:
        """Return the stored records by their names."""
        span = self._space.range()
        found = await rows(tr.snapshot, span.start, span.stop)
        return {name: row.value for (name,), row in self.queue.layout.own_rows("schedule", found)}

    async def _change(
        self, tr: Transaction | Database, name: str, change: Callable[[ScheduleRecord], ScheduleRecord]
    ) -> Schedule:
        key = self._key(name)

        async def body(tr: Transaction) -> ScheduleRecord:
            changed = change(await self._stored(tr, name))
            tr.set(key, _encode(changed))
            return changed

        return self._shown(name, await self.queue.transact(tr, body))

    async def _stored(self, tr: Transaction, name: str) -> ScheduleRecord:
        return self._decoded(name, await self._present(tr, name))

    async def _present(self, tr: Transaction, name: str) -> bytes:
        stored = await value_of(tr.get(self._key(name)))
        if not stored.present():
            known = ", ".join(await self._rows(tr)) or "none"
            raise LookupError(f"{self.queue!r} has no schedule {name!r}. It has: {known}.")
        return bytes(stored)

    def _decoded(self, name: str, stored: Any) -> ScheduleRecord:
        return read_schedule(self.queue.layout, self._key(name), bytes(stored))

    def _from_now(self, record: ScheduleRecord) -> ScheduleRecord:
        # Not before the last tick: a worker whose clock was ahead may have enqueued ticks that are still to come here.
        after_us = max(self._now_us(), record.last_us)
        return structs.replace(record, next_us=first_after(record.rule.times, after_us))

    def _shown_or_damaged(self, name: str, stored: bytes) -> Schedule:
        try:
            return self._shown(name, self._decoded(name, stored))
        except FormatError as error:
            return Schedule(name, "", str(error), "damaged", False, None, None)

    def _shown(self, name: str, record: ScheduleRecord) -> Schedule:
        stopped = is_stopped(record, self._now_us())
        status: Any = "paused" if record.paused else "stopped" if stopped else "on time"
        next_at = None if record.next_us == NEVER_US else record.next_us / 1e6
        last_at = record.last_us / 1e6 or None
        return Schedule(name, record.task, str(record.rule), status, record.rule != record.code, next_at, last_at)

    def _key(self, name: str) -> bytes:
        check_name(name, "schedule")
        key: bytes = self._space.pack((name,))
        return key

    def _now_us(self) -> int:
        return clock_us(self._clock())


def is_stopped(record: ScheduleRecord, now_us: int) -> bool:
    """Return whether a schedule's tick is over, and no worker has enqueued it."""
    return not record.paused and record.next_us < now_us - LATE_US


def read_schedule(layout: Layout, key: bytes, stored: bytes) -> ScheduleRecord:
    """Return the stored record of a schedule.

    Raises:
        FormatError: it can't be read.
    """
    return layout.decode(key, stored, _decode, _REMEDY)


def stopped_at(layout: Layout, key: bytes, stored: bytes, now_us: int) -> float | None:
    """Return the tick of a stored schedule that no worker has enqueued; None if it is on time, or paused.

    Raises:
        FormatError: it can't be read.
    """
    record = read_schedule(layout, key, stored)
    return record.next_us / 1e6 if is_stopped(record, now_us) else None


def rule_of(
    cron: str, *, every: float | None = None, tz: str = "UTC", catch_up: CatchUp = "last", jitter: float = 0.0
) -> Rule:
    """Return the rule with these times.

    Raises:
        TypeError, ValueError: there are no such times, or both a cron expression and `every` are given.
    """
    if bool(cron) == (every is not None):
        raise ValueError("Give a cron expression, as '*/5 * * * *', or every=SECONDS, and not both.")
    if catch_up not in get_args(CatchUp):
        raise ValueError(f"catch_up is 'none', 'last' or 'all', not {catch_up!r}.")
    not_negative(jitter, "jitter")
    if every is not None:
        Every(every)
    else:
        Cron(cron, tz)
    return Rule(cron, every or 0.0, tz, catch_up, jitter)


def _check_plans(plans: object) -> None:
    if not isinstance(plans, Sequence) or not all(isinstance(plan, Plan) for plan in plans):
        raise TypeError(f"The plans of schedules are a list of Plan, not {plans!r}.")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ScheduleRecord).decode


# Check that the records of schedules can be read, and tell which of them no worker serves.


class ScheduleCheck(ItemCheck):
    """Reads the records of all schedules of a queue. *Cost:* one range read."""

    def __init__(self, tr: Transaction | Database, queue: Queue) -> None:
        self._tr = tr
        self._layout = queue.layout

    def problems(self) -> list[str]:
        """Return what can't be read."""
        problems = []
        span = self._layout.space["schedule"].range()
        for page in pages(self._tr, span.start, span.stop):
            for _, row in self._layout.own_rows("schedule", page):
                try:
                    read_schedule(self._layout, row.key, row.value)
                except FormatError as error:
                    problems.append(str(error))
        return problems


CHECK_PART = CheckPart(ScheduleCheck, ("schedules",))
"""What schedules add to `fdbqueue.check`."""
