"""``fdbqueue enqueue``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from fdbqueue.bulk import BulkReport
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.options import Codec, CodecName, QueueName, Raw, Url, check_raw, queue_of
from fdbqueue.cli.ordering import LevelCount, Priority, levels_of
from fdbqueue.cli.output import say
from fdbqueue.cli.values import parse
from fdbqueue.engine import open
from fdbqueue.queue import Queue
from layers.priority import PriorityQueue


def enqueue(
    queue: QueueName,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Values; without one, lines of standard input.")
    ] = None,
    priority: Priority = None,
    levels: LevelCount = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    raw: Raw = False,
) -> None:
    """Append items: the values given, or a line of standard input each.

    A value is JSON; given as an argument to a queue of str or bytes, it is the text itself. One that begins with a dash
    stands behind `--`. Lines go in by batches, in their order and each batch exactly once; if something is wrong with
    one, the message says how many are in.
    """
    if not values and sys.stdin.isatty():
        raise typer.BadParameter("give values, or pipe lines into standard input", param_hint="VALUE")
    verbatim = raw or codec in (CodecName.str, CodecName.bytes)
    check_raw(raw, codec)
    given = [parse(value, codec, raw=verbatim) for value in values] if values else _lines(codec, raw)
    with open(url) as db:
        try:
            report = _enqueue(db, queue_of(queue, codec), given, priority, levels)
        except BadValue as error:
            raise BadValue(f"{error} Nothing was enqueued.") from error
    say(f"{report.items:,} items enqueued")


def _enqueue(db: Any, queue: Queue, values: Iterable[Any], priority: int | None, levels: str | None) -> BulkReport:
    order = levels_of(db, queue, priority, levels)
    if order is None:
        return queue.enqueue_many(db, values)
    prioritized = PriorityQueue(queue, levels=order)
    if priority is None:
        return prioritized.queue.enqueue_many(db, values)
    return prioritized.enqueue_many(db, values, priority=priority)


def _lines(codec: CodecName, raw: bool) -> Iterator[Any]:
    # Bytes that are no UTF-8 get through a queue of bytes unchanged.
    lines = (line.decode("utf-8", "surrogateescape") for line in sys.stdin.buffer)
    for number, line in enumerate(lines, 1):
        text = line.removesuffix("\n")
        if not raw and not text.strip():
            continue
        try:
            yield parse(text, codec, raw=raw)
        except BadValue as error:
            raise BadValue(f"Line {number}: {error}") from error
