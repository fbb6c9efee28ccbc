"""``fdbqueue enqueue``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue, DoneItems, end_if, noted, refuse_if, tell
from fdbqueue.cli.input import (
    ItemTerms,
    ItemToEnqueue,
    Way,
    enqueue_records,
    groups_of_lines,
    parse,
    record_of,
    terms_of,
    to_json,
)
from fdbqueue.cli.naming import (
    check_gates,
    check_level,
    gates_named,
    levels_of,
    refuse_among_sessions,
    session_named,
    sessions_of,
)
from fdbqueue.cli.opening import CodecName, opened, queue_of
from fdbqueue.cli.options import check_raw
from fdbqueue.cli.output import print_json, say, wants_table, write_lines
from fdbqueue.cli.parts import held_open, until_ended
from fdbqueue.engine.api import Database
from fdbqueue.errors import CodecError, CompletionError, ItemTooLarge
from fdbqueue.layers.common.levels import PRIORITY
from fdbqueue.layers.groups import Groups
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.results import Completion, Results
from fdbqueue.layers.sessions import Sessions
from fdbqueue.verbs.queue import Queue

EXIT_CODES = {"dead": errors.DEAD, "expired": errors.EXPIRED}
"""The exit codes for ends without a result. Every other such end is `errors.REMOVED`."""
USUAL_LEVEL = 1
"""The level of items that are not urgent, with the two levels that sessions have by default."""


def enqueue(
    queue: str,
    values: list[str] | None = None,
    priority: int | None = None,
    levels: str | None = None,
    headers: str | None = None,
    delay: float | None = None,
    at: float | None = None,
    ttl: float | None = None,
    session: str | None = None,
    level: int | None = None,
    gate: list[str] | None = None,
    plain: bool = False,
    group: str | None = None,
    wait: float | None = None,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    records: bool = False,
    raw: bool = False,
    as_json: bool = False,
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

    Args:
        values (argument, VALUE): Values. Default: lines of standard input.
        levels (N|amqp/N): Number of levels of a new priority queue. Default: as stored, or 10.
        gate (NAME=LIMIT): A gate of the session and its default limit, if the session begins now. Several: the
            outermost first. Or: none.
        group (-g, reads=group): The group of the items. It is opened if there is none of this name.
        records: Each line is an item with headers and times, as --records prints it.
        as_json (--json): With --wait: print how each item ended, as a JSON object.

    Example: fdbqueue enqueue orders '{"sku": "teapot"}' --delay 60
    """
    check_raw(raw, codec)
    refuse_if(raw and records, "a record is JSON, and no raw value", "--raw")
    check_level(session, level)
    refuse_if(session is None and gate is not None, "a gate is one of a session: give --session too", "--gate")
    alone = "a plain item is in no session: leave --session or --plain out"
    refuse_if(session is not None and plain, alone, "--plain")
    wrong = "--records" if records else "--priority and --levels"
    is_odd = session is not None and (records or priority is not None or levels is not None)
    refuse_if(is_odd, f"items of a session have --level, and take no {wrong}", "--session")
    refuse_if(as_json and wait is None, "it prints how items ended: give --wait too", "--json")
    if wait is not None:
        wants_table(as_json)  # it raises if there is no standard output
    terms = terms_of(headers, delay, at, ttl)
    in_arguments = partial(parse, codec=codec, raw=raw or codec in (CodecName.str, CodecName.bytes))
    read = partial(record_of, codec=codec) if records else in_arguments
    code = 0
    with DoneItems("enqueued", "Nothing was") as progress:
        given = iter([iter([read(value) for value in values])]) if values else _in_lines(codec, raw, records)
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
            if not values and group is None and wait is None:
                enqueue_all = _way_in(db, leases, sessions, terms, more, records)
                for lines in given:
                    for number in enqueue_all(lines):
                        progress.items += number
            else:
                way = _tracked(leases, sessions, more, group, wait, is_plain=terms == ItemTerms() and not records)
                for lines in given:
                    items = (_record(leases, value) for value in lines)
                    for entered in enqueue_records(db, leases, items, terms, way):
                        progress.items += len(entered)
                        if wait is not None:
                            ended = print_results([one.at(db) for one in entered], wait, as_json=as_json)
                            code = code or ended
                        elif values and sys.stdout is not None:
                            write_lines(b"%b\n" % one.text.encode() for one in entered)
    say(f"{counted(progress.items, 'item')} enqueued")
    end_if(code, code)


def _ordered(
    db: Database, queue: Queue, priority: int | None, levels: str | None, terms: ItemTerms
) -> tuple[Leases, ItemTerms]:
    """Return the leases of a queue, in its order, and the terms with the priority."""
    order = levels_of(db, queue, priority, levels)
    if order is not None:
        queue = PriorityQueue(queue, levels=order).queue
    if priority is not None:
        terms = replace(terms, headers={**(terms.headers or {}), PRIORITY: priority})
    return Leases(queue), terms


def _way_in(
    db: Database, leases: Leases, sessions: Sessions | None, terms: ItemTerms, more: dict[str, Any], records: bool
) -> Callable[[Iterable[Any]], Iterator[int]]:
    """Return a function that enqueues values or records. It yields the number that is in after each commit."""
    if records:
        return lambda lines: map(len, enqueue_records(db, leases, lines, terms))
    if sessions is not None or terms != ItemTerms():
        source: Any = leases if sessions is None else sessions
        given = {**terms.arguments(leases.clock()), **more}
        return lambda lines: iter([source.enqueue_many(db, lines, **given).items])
    return lambda lines: iter([leases.queue.enqueue_many(db, lines).items])


def _tracked(
    leases: Leases,
    sessions: Sessions | None,
    more: dict[str, Any],
    group: str | None,
    wait: float | None,
    *,
    is_plain: bool,
) -> Way:
    """Return how items are enqueued whose positions or results the command prints, or that belong to a group.

    Args:
        more: other arguments of the enqueue: session and level.
        is_plain: whether the items are values without terms. They are stored as by `Queue.enqueue`.
    """
    source: Any = leases if sessions is None else sessions
    if wait is not None:
        source = Results(source)
    begin = None
    if group is not None:
        source = Groups(source)
        begin = partial(held_open, source, group)
        more = {**more, "group": group}
    if is_plain and source is leases:
        return Way(lambda tr, value, **_: leases.queue.enqueue.steps(tr, value))
    return Way(partial(source.enqueue.steps, **more), begin)


def _record(leases: Leases, value: object) -> ItemToEnqueue:
    if isinstance(value, ItemToEnqueue):
        return value
    try:
        return ItemToEnqueue("", len(leases.queue.encode(value)), value, ItemTerms())
    except (CodecError, ItemTooLarge) as error:
        raise BadValue(str(error)) from error


def print_results(completions: Iterable[Completion[Any]], seconds: float, *, as_json: bool) -> int:
    """Wait for items, and print the result of each. Return the exit code: that of the first one that has no result.

    Args:
        seconds: the longest wait for all of them.
        as_json: whether to print how each item ended, as an object, in place of its result.
    """
    deadline = time.monotonic() + seconds
    first = 0
    for completion in completions:
        code, told = 0, {"item": str(completion)}
        try:
            with noted(f"The item {completion} is enqueued. Its result was not printed."):
                result = until_ended(completion.wait, deadline)
            told |= {"state": "done", "result": to_json(result, CodecName.msgpack)}
        except CompletionError as error:
            code = EXIT_CODES.get(error.outcome, errors.REMOVED)
            told |= {"state": error.outcome, "error": error.error}
            tell(f"Error: {error}")
        except TimeoutError:
            code = errors.TIMED_OUT
            told |= {"state": "pending"}
            tell(f"Error: The item {completion} is enqueued, and has not ended in {seconds:g} s.")
        if as_json or not code:
            print_json(told if as_json else told["result"])
        first = first or code
    return first


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
