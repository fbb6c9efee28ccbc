"""``fdbqueue enqueue``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Annotated, Any

import typer

from fdbqueue.bulk import BulkReport
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.input import groups_of_lines
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import Codec, CodecName, QueueName, Raw, Url, check_raw, queue_of
from fdbqueue.cli.ordering import LevelCount, Priority, levels_of
from fdbqueue.cli.output import say
from fdbqueue.cli.values import parse
from fdbqueue.engine import FDBError
from fdbqueue.errors import FdbQueueError
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
    stands behind `--`. Lines go in by batches, in their order and each batch exactly once, and all that have come when
    none comes for half a second; if something is wrong with one, the message says how many are in.
    """
    verbatim = raw or codec in (CodecName.str, CodecName.bytes)
    check_raw(raw, codec)
    given = [iter([parse(value, codec, raw=verbatim) for value in values])] if values else _in_lines(codec, raw)
    items = 0
    with opened(url, create=True) as db:
        enqueue_all = _way_in(db, queue_of(queue, codec), priority, levels)
        try:
            for group in given:
                items += enqueue_all(group).items
        except BadValue as error:
            raise BadValue(f"{error} {f'{items:,} items were' if items else 'Nothing was'} enqueued.") from error
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if items:
                typer.echo(f"{items:,} items were enqueued before.", err=True)
            raise
    say(f"{items:,} items enqueued")


def _way_in(db: Any, queue: Queue, priority: int | None, levels: str | None) -> Callable[[Iterable[Any]], BulkReport]:
    order = levels_of(db, queue, priority, levels)
    if order is None:
        return partial(queue.enqueue_many, db)
    prioritized = PriorityQueue(queue, levels=order)
    if priority is None:
        return partial(prioritized.queue.enqueue_many, db)
    return partial(prioritized.enqueue_many, db, priority=priority)


def _in_lines(codec: CodecName, raw: bool) -> Iterator[Iterator[Any]]:
    numbers = count(1)
    return (_values(group, numbers, codec, raw) for group in groups_of_lines("values", "VALUE"))


def _values(lines: Iterable[bytes], numbers: Iterator[int], codec: CodecName, raw: bool) -> Iterator[Any]:
    for line, number in zip(lines, numbers, strict=False):
        # Bytes that are no UTF-8 get through a queue of bytes unchanged.
        text = line.decode("utf-8", "surrogateescape")
        if not raw and not text.strip():
            continue
        try:
            yield parse(text, codec, raw=raw)
        except BadValue as error:
            raise BadValue(f"Line {number}: {error}") from error
