"""Check that sessions, their items and the line fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from fdbqueue import CheckReport, FormatError, Position
from fdbqueue.lowlevel import (
    Blob,
    Database,
    NoOrderCheck,
    Steps,
    Transaction,
    check_blobs,
    check_queue,
    items_of_all_places,
    pack,
    pages,
    run,
)

from ...leases.timer_check import check_timers
from ..line.line import Line
from ..line.slots import Entries
from ..line.tracking import with_items
from ..session.records import Record, name_of, pointer_of, unpack_record
from ..session.session import Session
from .gate_check import GateCheck
from .listing import Listing


def check_sessions(tr: Transaction | Database, line: Line) -> CheckReport:
    """Read all that the sessions own, and compare."""
    read = partial(_read, tr, line)
    read(line.shards.learn)
    reports = [line.leases.check(tr), *(check_queue(tr, layout) for layout in line.shards.layouts()[1:])]
    problems = [f"In the line of sessions: {problem}" for report in reports for problem in report.problems]
    for layout in line.shards.layouts()[1:]:
        problems += [
            f"In the line of sessions: {problem}" for problem in check_timers(tr, layout, counted=0, tracked=())
        ]
    items, counted = 0, all(report.counted for report in reports)
    blobs: dict[Position, Blob] = {}
    before = read(Listing(line).stats)
    pointers: dict[tuple[bytes, int], list[bytes]] = {}
    for packed, _, row in chain(*(items_of_all_places(tr, layout) for layout in line.shards.layouts())):
        try:
            pointer = pointer_of(row.value)
        except FormatError as error:
            problems.append(str(error))
            continue
        pointers.setdefault((pointer.name, pointer.generation), []).append(packed)
    records = dict(_records(tr, line, problems))
    gates = GateCheck(tr, line)
    for name, generation in with_items(tr, line):
        session = line.session(name, generation)
        told = f"The session {name_of(name)!r}"
        own: dict[Position, Blob] = {}
        found = check_queue(tr, session.layout, order=NoOrderCheck(), blobs=own)
        for position, blob in own.items():
            address = session.address(pack(position))
            blobs[line.layout.available.position(line.layout.available.key(address))] = blob
        items += found.items
        counted = counted and found.counted
        wrong = [*found.problems, *check_timers(tr, session.layout, counted=0, tracked=())]
        problems += [f"{told}: {problem}" for problem in wrong]
        record = records.get(name)
        if record is None or not 0 <= generation - record.generation <= 1:
            problems.append(f"{told} has items, and no record.")
    for name, record in records.items():
        there = pointers.pop((name, record.generation), [])
        entries = read(partial(_entries, line=line, session=line.session(name, record.generation)))
        if len(entries) != record.slots:
            problems.append(f"The session {name_of(name)!r} has {len(entries)} slots, and its record says another.")
        held = [entry.current for entry in entries.values() if entry.current]
        if len(held) != len(set(held)):
            problems.append(f"Two slots of the session {name_of(name)!r} hold the same item.")
        gates.add(name, record, entries.values())
        in_line = [entry.place for entry in entries.values() if entry.stage < 0]
        known = [*([record.pointer] if record.pointer else []), *in_line]
        if sorted(there) != sorted(known):
            problems.append(f"The session {name_of(name)!r} has {len(there)} pointers, and its record says another.")
        if not known and not entries and not record.paused and not record.blocked and _has_work(tr, line, name, record):
            problems.append(f"The session {name_of(name)!r} has items, and no pointer in the line.")
    problems += [f"A pointer of the session {name_of(name)!r} belongs to no record." for name, _ in pointers]
    problems += gates.problems()
    problems += check_blobs(tr, line.layout, blobs, read, unsettled=lambda: read(Listing(line).stats) != before)
    return CheckReport(items, tuple(problems), counted=counted)


def _records(tr: Transaction | Database, line: Line, problems: list[str]) -> Iterator[tuple[bytes, Record]]:
    span = line.keys.records.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            try:
                yield row.key[len(line.keys.record(b"")) :], unpack_record(row.value)
            except FormatError as error:
                problems.append(str(error))


def _entries(tr: Transaction, line: Line, session: Session) -> Steps[Entries]:
    return (yield from line.slots.entries(tr.snapshot, session))


def _has_work(tr: Transaction | Database, line: Line, name: bytes, record: Record) -> bool:
    session = line.session(name, record.generation)

    def body(tr: Transaction) -> Steps[list[bytes]]:
        head = yield from session.look(tr, limit=1)
        return [row.key for row in head.rows] or ([b""] if head.wake_at_us is not None else [])

    return bool(_read(tr, line, body))


def _read(tr: Transaction | Database, line: Line, body: Callable[[Transaction], Steps[Any]]) -> Any:
    return run(line.items.read(tr, body))
