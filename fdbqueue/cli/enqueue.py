"""``fdbqueue enqueue``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Annotated, Any

import typer

from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.input import groups_of_lines
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import Codec, CodecName, QueueName, Raw, Url, check_raw, queue_of
from fdbqueue.cli.ordering import LevelCount, Priority, levels_of
from fdbqueue.cli.output import say
from fdbqueue.cli.records import enqueue_records, record_of
from fdbqueue.cli.sessioning import USUAL_LEVEL, Level, SessionOption, session_named, sessions_of
from fdbqueue.cli.terms import At, Delay, HeadersText, Terms, Ttl, terms_of
from fdbqueue.cli.values import parse
from fdbqueue.engine import FDBError
from fdbqueue.errors import FdbQueueError
from fdbqueue.layers.common._levels import PRIORITY
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.queue import Queue

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
    url: Url = None,
    codec: Codec = CodecName.json,
    records: AreRecords = False,
    raw: Raw = False,
) -> None:
    """Append items: the given values, or one per line of standard input.

    A value is JSON. As an argument to a queue of str or bytes, it is the text itself. A value that begins with a dash
    goes after `--`. Lines are enqueued in order, in batches, each batch exactly once. An incomplete batch is enqueued
    if no line comes for half a second. If a line has an error, the message gives the number of enqueued lines.

    With --records each line is an object: {"value": 7, "headers": {"color": "red"}, "delay": 60}. It may also have
    "at", "ttl" and "ttl_at", in seconds like the options. A record's own terms override the options. You can pipe in
    the output of `lease` and `dead`, and that of `dequeue`, `peek` and `browse` with --records. A queue of other
    levels refuses a record's "rank". Each item gets a new position, and its attempts start again at 0.

    With --session the items go into that session of the queue: one runs at a time, in order.

    Example: fdbqueue enqueue orders '{"sku": "teapot"}' --delay 60
    """
    check_raw(raw, codec)
    if raw and records:
        raise typer.BadParameter("a record is JSON, and no raw value", param_hint="--raw")
    if session is None and level is not None:
        raise typer.BadParameter("a level is one of a session: give --session too", param_hint="--level")
    if session is not None and (records or priority is not None or levels is not None):
        wrong = "--records" if records else "--priority and --levels"
        raise typer.BadParameter(f"items of a session have --level, and take no {wrong}", param_hint="--session")
    terms = terms_of(headers, delay, at, ttl)
    in_arguments = partial(parse, codec=codec, raw=raw or codec in (CodecName.str, CodecName.bytes))
    read = partial(record_of, codec=codec) if records else in_arguments
    items = 0
    try:
        given = iter([iter([read(value) for value in values])]) if values else _in_lines(codec, raw, records)
    except BadValue as error:
        raise BadValue(f"{error} Nothing was enqueued.") from error
    with opened(url, create=True) as db:
        if session is None:
            enqueue_all = _way_in(db, queue_of(queue, codec), priority, levels, terms, records)
        else:
            enqueue_all = _into_session(db, queue_of(queue, codec), session, level, terms)
        try:
            for group in given:
                for number in enqueue_all(group):
                    items += number
        except BadValue as error:
            raise BadValue(f"{error} {f'{items:,} items were' if items else 'Nothing was'} enqueued.") from error
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if items:
                typer.echo(f"{items:,} items were enqueued before.", err=True)
            raise
    say(f"{items:,} items enqueued")


def _way_in(
    db: Any, queue: Queue, priority: int | None, levels: str | None, terms: Terms, records: bool
) -> Callable[[Iterable[Any]], Iterator[int]]:
    """Return a function that enqueues values or records. It yields the number that is in after each commit."""
    order = levels_of(db, queue, priority, levels)
    if order is not None:
        queue = PriorityQueue(queue, levels=order).queue
    if priority is not None:
        terms = replace(terms, headers={**(terms.headers or {}), PRIORITY: priority})
    leases = Leases(queue)
    if records:
        return lambda group: enqueue_records(db, leases, group, terms)
    if terms != Terms():
        return lambda group: iter([leases.enqueue_many(db, group, **terms.arguments(leases.clock())).items])
    return lambda group: iter([queue.enqueue_many(db, group).items])


def _into_session(
    db: Any, queue: Queue, session: str, level: int | None, terms: Terms
) -> Callable[[Iterable[Any]], Iterator[int]]:
    """Return a function that enqueues values into a session."""
    name, source = session_named(session, "--session"), sessions_of(queue)
    rank = USUAL_LEVEL if level is None else level
    given = terms.arguments(source.line.leases.clock())
    return lambda group: iter([source.enqueue_many(db, group, session=name, level=rank, **given).items])


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
