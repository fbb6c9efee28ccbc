"""``fdbqueue enqueue``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Annotated, Any

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.grouping import GroupOption
from fdbqueue.cli.input import groups_of_lines
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import Codec, CodecName, QueueName, Raw, Url, check_raw, queue_of
from fdbqueue.cli.ordering import LevelCount, Priority, levels_of
from fdbqueue.cli.output import say, wants_table
from fdbqueue.cli.records import enqueue_records, record_of
from fdbqueue.cli.sessioning import (
    USUAL_LEVEL,
    GateOption,
    Level,
    Plain,
    SessionOption,
    check_gates,
    gates_named,
    refuse_among_sessions,
    session_named,
    sessions_of,
)
from fdbqueue.cli.terms import At, Delay, HeadersText, ItemTerms, Ttl, terms_of
from fdbqueue.cli.tracking import Tracked
from fdbqueue.cli.values import parse
from fdbqueue.cli.waiting import Wait
from fdbqueue.engine import FDBError
from fdbqueue.errors import FdbQueueError
from fdbqueue.layers.common.levels import PRIORITY
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.sessions import Sessions
from fdbqueue.verbs.queue import Queue

AreRecords = Annotated[
    bool, typer.Option("--records", help="Each line is an item with headers and times, as --records prints it.")
]


def enqueue(
    queue: QueueName,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Values. Default: lines of standard input.")
    ] = None,
    priority: Priority = None,
    levels: LevelCount = None,
    headers: HeadersText = None,
    delay: Delay = None,
    at: At = None,
    ttl: Ttl = None,
    session: SessionOption = None,
    level: Level = None,
    gate: GateOption = None,
    plain: Plain = False,
    group: GroupOption = None,
    wait: Wait = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: AreRecords = False,
    raw: Raw = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --wait: print how each item ended, as a JSON object.")
    ] = False,
) -> None:
    """Append items: the given values, or one per line of standard input. Prints the positions of given values.

    A value is JSON. As an argument to a queue of str or bytes, it is the text itself. A value that begins with a dash
    goes after `--`. Lines are enqueued in order, in batches, each batch exactly once. An incomplete batch is enqueued
    if no line comes for half a second. If a line has an error, the message gives the number of enqueued lines.

    With --records each line is an object: {"value": 7, "headers": {"color": "red"}, "delay": 60}. It may also have
    "at", "ttl" and "ttl_at", in seconds like the options. A record's own terms override the options. You can pipe in
    the output of `lease` and `dead`, and that of `dequeue`, `peek` and `browse` with --records. A queue of other
    levels refuses a record's "rank". Each item gets a new position, and its attempts start again at 0.

    With --session the items go into that session of the queue: one runs at a time, in order. If sessions of the queue
    have gates, name those of a session that begins with --gate. Without --session, a queue with items in sessions is
    refused unless you give --plain. With --group the items belong to a group, which
    `fdbqueue groups` shows, closes and waits for.

    With --wait it waits for each batch until its items have ended, and prints their results, a line each; with --json
    how each ended. A number after --wait is the limit in seconds. The exit code is that of the first item without a
    result: 6 dead, 7 expired, 8 cancelled or removed, 9 not ended in time.

    Example: fdbqueue enqueue orders '{"sku": "teapot"}' --delay 60
    """
    check_raw(raw, codec)
    if raw and records:
        raise typer.BadParameter("a record is JSON, and no raw value", param_hint="--raw")
    if session is None and level is not None:
        raise typer.BadParameter("a level is one of a session: give --session too", param_hint="--level")
    if session is None and gate is not None:
        raise typer.BadParameter("a gate is one of a session: give --session too", param_hint="--gate")
    if session is not None and plain:
        raise typer.BadParameter("a plain item is in no session: leave --session or --plain out", param_hint="--plain")
    if session is not None and (records or priority is not None or levels is not None):
        wrong = "--records" if records else "--priority and --levels"
        raise typer.BadParameter(f"items of a session have --level, and take no {wrong}", param_hint="--session")
    if as_json and wait is None:
        raise typer.BadParameter("it prints how items ended: give --wait too", param_hint="--json")
    if wait is not None:
        wants_table(as_json)  # it raises if there is no standard output
    terms = terms_of(headers, delay, at, ttl)
    in_arguments = partial(parse, codec=codec, raw=raw or codec in (CodecName.str, CodecName.bytes))
    read = partial(record_of, codec=codec) if records else in_arguments
    items = 0
    try:
        given = iter([iter([read(value) for value in values])]) if values else _in_lines(codec, raw, records)
    except BadValue as error:
        raise BadValue(f"{error} Nothing was enqueued.") from error
    with opened(url, create=True) as db:
        leases, sessions, more = Leases(queue_of(queue, codec)), None, {}
        if session is None:
            if not plain:
                refuse_among_sessions(db, leases.queue, "Give --session NAME")
            leases, terms = _ordered(db, leases.queue, priority, levels, terms)
        else:
            name, gates = session_named(session, "--session"), gates_named(gate, "--gate")
            sessions = sessions_of(leases.queue, gates=(lambda _: gates) if gates else None)
            if gate is None:
                check_gates(db, sessions, name)
            more = {"session": name, "level": USUAL_LEVEL if level is None else level}
        tracked = Tracked(
            db,
            leases,
            sessions,
            terms,
            more,
            group=group,
            wait=wait,
            as_json=as_json,
            tells=bool(values) and sys.stdout is not None,
            is_plain=terms == ItemTerms() and not records,
        )
        is_tracked = bool(values) or group is not None or wait is not None
        enqueue_all = tracked.enqueue if is_tracked else _way_in(db, leases, sessions, terms, more, records)
        try:
            for lines in given:
                for number in enqueue_all(lines):
                    items += number
        except BadValue as error:
            raise BadValue(
                f"{error} {counted(items, 'item was', 'items were') if items else 'Nothing was'} enqueued."
            ) from error
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if items:
                typer.echo(f"{counted(items, 'item was', 'items were')} enqueued before.", err=True)
            raise
    say(f"{counted(items, 'item')} enqueued")
    if tracked.code:
        raise typer.Exit(tracked.code)


def _ordered(
    db: Any, queue: Queue, priority: int | None, levels: str | None, terms: ItemTerms
) -> tuple[Leases, ItemTerms]:
    """Return the leases of a queue, in its order, and the terms with the priority."""
    order = levels_of(db, queue, priority, levels)
    if order is not None:
        queue = PriorityQueue(queue, levels=order).queue
    if priority is not None:
        terms = replace(terms, headers={**(terms.headers or {}), PRIORITY: priority})
    return Leases(queue), terms


def _way_in(
    db: Any, leases: Leases, sessions: Sessions | None, terms: ItemTerms, more: dict[str, Any], records: bool
) -> Callable[[Iterable[Any]], Iterator[int]]:
    """Return a function that enqueues values or records. It yields the number that is in after each commit."""
    if records:
        return lambda lines: map(len, enqueue_records(db, leases, lines, terms))
    if sessions is not None or terms != ItemTerms():
        source: Any = leases if sessions is None else sessions
        given = {**terms.arguments(leases.clock()), **more}
        return lambda lines: iter([source.enqueue_many(db, lines, **given).items])
    return lambda lines: iter([leases.queue.enqueue_many(db, lines).items])


def _in_lines(codec: CodecName, raw: bool, records: bool) -> Iterator[Iterator[Any]]:
    numbers = count(1)
    return (_read(group, numbers, codec, raw, records) for group in groups_of_lines("values", "VALUE"))


def _read(lines: Iterable[bytes], numbers: Iterator[int], codec: CodecName, raw: bool, records: bool) -> Iterator[Any]:
    for line, number in zip(lines, numbers, strict=False):
        # Bytes that are not UTF-8 pass through a queue of bytes unchanged.
        text = line.decode("utf-8", "surrogateescape")
        where = f"Line {number}: "
        if not raw and not text.strip():
            continue
        if records:
            yield record_of(text, codec, where)
            continue
        try:
            yield parse(text, codec, raw=raw)
        except BadValue as error:
            raise BadValue(f"{where}{error}") from error
