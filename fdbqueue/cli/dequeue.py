"""``fdbqueue dequeue``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import OutputFailed
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, queue_of
from fdbqueue.cli.output import line, print_items, wants_table, write_lines
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, run
from fdbqueue.items import Item
from fdbqueue.layers.leases import Leases
from fdbqueue.portion import Portion
from fdbqueue.queue import Queue

BATCH_ITEMS = 100


def dequeue(
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many items at most.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="Until the queue is empty.")] = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Take items out, from the first on, and print them. Exits with 1 if there was none.

    Before, what waited for a time that has come becomes available, and what has lived too long goes. What is printed is
    no longer in the queue. If whoever reads the pipe goes away, or the disk is full, the items of the last batch (at
    most 100) are written to standard error.
    """
    check_raw(raw, codec)
    table = wants_table(as_json) and not raw
    show = partial(line, codec=codec, records=records, raw=raw)
    source = queue_of(queue, codec)
    with opened(url) as db:
        while Leases(source).reclaim(db).more:
            pass  # each settles what fits into a transaction
        taken = _drain(db, source, None if everything else limit, show, codec if table else None)
    if not taken:
        raise typer.Exit(errors.EMPTY)


def _drain(db: Any, queue: Queue, left: int | None, show: Callable[[Item], bytes], table: CodecName | None) -> int:
    taken = 0
    portion = Portion(BATCH_ITEMS)
    while left is None or taken < left:
        take = partial(_take, queue=queue, portion=portion, left=left and left - taken, show=show)
        items, lines = run(queue.transact(db, take, on_retry=portion.note))
        if not items:
            break
        taken += len(items)
        try:
            if table:
                print_items(items, table, "")
            else:
                write_lines(lines)
        except (OutputFailed, OSError, KeyboardInterrupt):
            typer.echo(f"{len(items)} items were taken out that may not have been read; here they are:", err=True)
            sys.stderr.buffer.write(b"".join(lines))
            raise
    return taken


def _take(
    tr: Transaction, queue: Queue, portion: Portion, left: int | None, show: Callable[[Item], bytes]
) -> Steps[Any]:
    """Take items out and show them in one transaction, so that one that can't be shown stays in the queue."""
    items = yield from queue.dequeue_many.steps(tr, limit=min(portion.limit, left or portion.limit))
    return items, [show(item) for item in items]
