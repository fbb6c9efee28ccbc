"""Check that sessions, their items, the line and the gates fit together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from fdbqueue import CheckReport, FormatError, Queue
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Transaction,
    fdb_tuple,
    pages,
    run,
    value_of,
    within,
)
from fdbqueue.reads.check import (
    SHOWN_KEYS,
    NoOrderCheck,
    check_queue,
    checked,
    contents_of,
    foreign_keys,
    read_in,
    told_all,
)
from fdbqueue.reads.queue_rows import MakesCheck
from fdbqueue.stored.counters import signed, unsigned
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.names import session_told
from fdbqueue.stored.positions import REMOVE_FOREIGN

from ...leases.reports import TimerCheck, Tracked, is_tracked
from ...leases.transitions import Retry
from ..line.line import Line, Rules
from ..line.mending import remove_stray
from ..line.slots import Entries, Entry
from ..line.tracking import with_items
from ..session.records import GateRecord, SessionRecord, name_of, pointer_of, unpack_gate_record, unpack_record
from ..session.session import Session
from ..session.states import read_codec_name
from .listing import read_session_stats


class GateCheck:
    """Compares the gates of one line with the entries of all slots.

    Args:
        tr: a transaction, or a database.
        line: the line.
    """

    def __init__(self, tr: Transaction | Database, line: Line) -> None:
        self._tr = tr
        self._line = line
        self._held: Counter[bytes] = Counter()
        self._waiting: dict[tuple[bytes, bytes], bytes] = {}

    def add(self, name: bytes, record: SessionRecord, entries: Iterable[Entry]) -> None:
        """Count the slots of gates that the slots of a session have, and note where they wait."""
        for entry in entries:
            self._held.update(
                gate for gate, _ in record.gates[: self._line.slots.gates.held(record.gates, entry.stage)]
            )
            if entry.stage >= 0:
                self._waiting[record.gates[entry.stage][0], entry.place] = name

    def problems(self) -> list[str]:
        """Return what does not fit, once all sessions were added."""
        keys = self._line.keys
        problems: list[str] = []
        records: dict[bytes, GateRecord] = {}
        for row in self._rows(keys.gate()):
            try:
                records[row.key[len(keys.gate()) :]] = unpack_gate_record(keys.layout, row.key, row.value)
            except FormatError as error:
                problems.append(str(error))
        waiters: Counter[bytes] = Counter()
        for row in self._rows(keys.gated().prefix):
            parts = FAMILIES["gate/line"].parts(row.key[len(keys.gated().prefix) :])
            if parts is None:
                continue
            name = parts[0]
            gate = fdb_tuple.pack((name,))
            waiters[gate] += 1
            try:
                pointer = pointer_of(row.value)
            except FormatError as error:
                problems.append(str(error))
                continue
            if self._waiting.pop((gate, keys.gated(gate).packed(row.key)), None) != pointer.name:
                problems.append(f"A pointer that waits at the gate {session_told(name)} belongs to no slot.")
        problems += [
            f"A slot of the session {session_told(name_of(name))} waits at the gate {session_told(name_of(gate))},"
            " and has no pointer there."
            for (gate, _), name in self._waiting.items()
        ]
        surplus = dict(self._numbers("gate/surplus", keys.surplus(b""), unsigned, problems))
        counted = dict(self._numbers("gate/waiting", keys.waiters(b""), signed, problems))
        for gate in {*records, *self._held, *waiters, *surplus, *counted}:
            record = records.get(gate, GateRecord())
            told = f"The gate {session_told(name_of(gate))}"
            if record.held != self._held[gate]:
                problems.append(f"{told} has {self._held[gate]} slots taken, and its record says {record.held}.")
            if surplus.get(gate, 0) != max(0, record.held - record.limit):
                problems.append(f"{told} has {surplus.get(gate, 0)} slots noted as too many, which is wrong.")
            if waiters[gate] and record.held < record.limit:
                problems.append(f"{told} has a free slot, and a pointer waits there.")
            if counted.get(gate, 0) != waiters[gate]:
                problems.append(f"{told} has {waiters[gate]} pointers that wait, and its counter says another number.")
            if gate in records and not (record.held or record.kept or waiters[gate]):
                problems.append(f"{told} is not in use, and has a record.")
        return problems

    def _rows(self, prefix: bytes) -> Iterator[KeyValue]:
        for page in pages(self._tr, *within(prefix)):
            yield from page

    def _numbers(
        self, family: str, prefix: bytes, decode: Callable[[bytes], int], problems: list[str]
    ) -> Iterator[tuple[bytes, int]]:
        layout = self._line.keys.layout
        for _, row in layout.own_rows(family, self._rows(prefix)):
            try:
                yield row.key[len(prefix) :], layout.decode(row.key, row.value, decode)
            except FormatError as error:
                problems.append(str(error))


_check_keys = partial(check_queue, with_contents=False, is_whole=False)
"""Checks keys of sessions. The caller checks what their items have elsewhere, and looks for foreign keys."""
ChecksSession: TypeAlias = Callable[[Transaction | Database, Layout], ItemCheck]
"""Begins a part of the check of one session's items."""


class _Pointers(ItemCheck):
    """Notes the pointers of sessions that are in the line, by name and generation."""

    def __init__(self) -> None:
        self.places: dict[tuple[bytes, int], list[bytes]] = {}
        self.unreadable: list[str] = []
        self.strange: list[bytes] = []
        """The packed positions of those that do not say whose they are."""

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        try:
            pointer = pointer_of(row.value)
        except FormatError as error:
            self.strange += [] if error.newer else [packed]
            self.unreadable.append(str(error))
            return
        if state == "dead":
            if pointer.name:
                self.unreadable.append(f"{_told(pointer.name)} was put out of the line. {_ENTERS}")
            else:
                self.strange.append(packed)
            return
        self.places.setdefault((pointer.name, pointer.generation), []).append(packed)


class _TrackedItems(ItemCheck):
    """Notes the items of one session that have a completion or a group, by their addresses."""

    def __init__(self, session: Session, found: list[Tracked]) -> None:
        self._session = session
        self._found = found

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        if notes is not None and is_tracked(notes):
            self._found.append((self._session.address(packed), state, notes))


class _OfOneSession(ItemCheck):
    """Shows the items of one session to the checks of what all sessions' items have beside themselves."""

    def __init__(self, session: Session, contents: list[ItemCheck]) -> None:
        self._session = session
        self._contents = contents

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        address = self._session.address(packed)
        for part in self._contents:
            part.see(address, state, row, notes)


def check_sessions(tr: Transaction | Database, line: Line, more: ChecksSession | None = None) -> CheckReport:
    """Read all that the sessions own, and compare. It reads each item of a session once.

    Args:
        more: begins a further part of the check of one session's items.
    """
    layout = line.items.layout

    def look(tr: Transaction | Database) -> CheckReport:
        report = _check_sessions(tr, line, more)
        foreign = [*report.foreign, *foreign_keys(tr, layout, bulk=False)]
        return replace(
            report, problems=(*report.problems, *told_all(layout, foreign)), foreign=(*foreign[:SHOWN_KEYS],)
        )

    return checked(tr, layout, look)


def _check_sessions(tr: Transaction | Database, line: Line, more: ChecksSession | None = None) -> CheckReport:
    read = partial(read_in, tr)
    items = 0
    foreign: list[bytes] = []
    certain: list[str] = []
    problems: list[str] = []
    noted: list[Tracked] = []
    contents = contents_of(tr, line.layout)
    of_sessions: list[tuple[bytes, int, list[str]]] = []
    for name, generation in with_items(tr, line):
        session = line.session(name, generation)
        parts: list[MakesCheck] = [
            partial(TimerCheck, tr, session.layout, tuple),
            partial(_TrackedItems, session, noted),
            partial(_OfOneSession, session, contents),
            *([] if more is None else [partial(more, tr, session.layout)]),
        ]
        found = _check_keys(tr, session.layout, *parts, order=NoOrderCheck())
        items += found.items
        foreign += found.foreign
        certain += [f"{_told(name)}: {problem}" for problem in found.problems]
        of_sessions.append((name, generation, list(found.unsure)))
    pointers = _Pointers()
    # The outcomes and groups of all sessions' items are kept beside the pointers.
    of_line = _check_keys(tr, line.layout, partial(TimerCheck, tr, line.layout, lambda: noted), lambda: pointers)
    certain += [f"In the line of sessions: {problem}" for problem in of_line.problems]
    problems += [f"In the line of sessions: {problem}" for problem in of_line.unsure]
    for body in (partial(_codec_of_states, line=line), partial(_totals, line=line)):
        try:
            read(body)
        except FormatError as error:
            certain.append(str(error))
    damaged: set[bytes] = set()
    records = dict(_records(tr, line, problems, damaged))
    problems += pointers.unreadable
    gates = GateCheck(tr, line)
    named: set[bytes] = set()
    for name, generation, wrong in of_sessions:
        told = _told(name)
        problems += [f"{told}: {problem}" for problem in wrong]
        record = records.get(name)
        if name in damaged:
            continue
        if record is None or not 0 <= generation - record.generation <= 1:
            problems.append(f"{told} has items, and no record. {_ENTERS}")
    for name, record in records.items():
        there = pointers.places.pop((name, record.generation), [])
        try:
            entries = read(partial(_entries, line=line, session=line.session(name, record.generation)))
        except FormatError as error:
            certain.append(str(error))
            continue
        if len(entries) != record.slots:
            problems.append(f"{_told(name)} has {len(entries)} slots, and its record says another.")
        held = [entry.current for entry in entries.values() if entry.current]
        if len(held) != len(set(held)):
            problems.append(f"Two slots of the session {session_told(name_of(name))} hold the same item.")
        gates.add(name, record, entries.values())
        in_line = [entry.place for entry in entries.values() if entry.stage < 0]
        known = [*([record.pointer] if record.pointer else []), *in_line]
        named.update(known)
        if sorted(there) != sorted(known):
            problems.append(f"{_told(name)} has {len(there)} pointers, and its record says another. {_ENTERS}")
        if not known and not entries and not record.paused and not record.blocked and _has_work(tr, line, name, record):
            problems.append(f"{_told(name)} has items, and no pointer in the line. {_ENTERS}")
    problems += [
        f"A pointer of the session {session_told(name_of(name))} belongs to no record."
        for name, _ in pointers.places
        if name not in damaged
    ]
    problems += [
        f"The pointer {line.layout.position_of(line.layout.prefix + packed).text} in the line of sessions belongs to no"
        f" session. {REMOVE_FOREIGN}"
        for packed in pointers.strange
        if packed not in named
    ]
    problems += gates.problems()
    problems += [problem for part in contents for problem in part.problems()]
    foreign += of_line.foreign
    foreign += [key for part in contents for key in part.foreign]
    return CheckReport(items, tuple(certain), counted=True, foreign=tuple(foreign), unsure=tuple(problems))


_ENTERS = "Sessions.resume enters it into the line again."


def _told(name: bytes) -> str:
    return f"The session {session_told(name_of(name))}"


def _records(
    tr: Transaction | Database, line: Line, problems: list[str], damaged: set[bytes]
) -> Iterator[tuple[bytes, SessionRecord]]:
    span = line.keys.records.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            name = row.key[len(line.keys.record(b"")) :]
            try:
                yield name, unpack_record(line.items.layout, row.key, row.value)
            except FormatError as error:
                problems.append(str(error))
                damaged.add(name)


async def _entries(tr: Transaction, line: Line, session: Session) -> Entries:
    return await line.slots.entries(tr.snapshot, session)


async def _totals(tr: Transaction, line: Line) -> None:
    await read_session_stats(tr, line.keys)


async def _codec_of_states(tr: Transaction, line: Line) -> None:
    stored = await value_of(tr.snapshot.get(line.keys.states))
    if stored.present():
        read_codec_name(line.items.layout, line.keys.states, bytes(stored))


def _has_work(tr: Transaction | Database, line: Line, name: bytes, record: SessionRecord) -> bool:
    session = line.session(name, record.generation)

    async def body(tr: Transaction) -> list[bytes]:
        head = await session.look(tr, limit=1)
        return [row.key for row in head.rows] or ([b""] if head.wake_at_us is not None else [])

    return bool(read_in(tr, body))


class SessionCheck(ItemCheck):
    """The check of a queue's sessions, as a part of the check of the queue."""

    def __init__(self, tr: Transaction | Database, queue: Queue) -> None:
        self._tr = tr
        self.line = Line(queue, Rules(1, None, Retry(queue.layout), blocks=False, holds=False), time.time)

    def problems(self) -> list[str]:
        """Check the sessions."""
        report = _check_sessions(self._tr, self.line)
        self.items, self.foreign = report.items, report.foreign
        return [*report.problems, *report.unsure]


def _remove_stray(tr: Transaction | Database, queue: Queue) -> int:
    line = SessionCheck(tr, queue).line
    return run(queue.transact(tr, partial(remove_stray, line=line)))


CHECK_PART = CheckPart(SessionCheck, ("sessions",), removes=_remove_stray)
"""What sessions add to `fdbqueue.check`."""
