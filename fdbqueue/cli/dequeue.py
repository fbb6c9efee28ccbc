"""``fdbqueue dequeue``."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, queue_of
from fdbqueue.cli.output import line, print_items, wants_table, write_lines
from fdbqueue.engine import open
from fdbqueue.items import Item
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

    What is printed is no longer in the queue. If whoever reads the pipe goes away, the items of the last batch (at
    most 100) that it did not take are written to standard error.
    """
    with open(url) as db:
        taken = _drain(db, queue_of(queue, codec), None if everything else limit, codec, records, raw, as_json)
    if not taken:
        raise typer.Exit(errors.EMPTY)


def _drain(db: Any, queue: Queue, left: int | None, codec: CodecName, records: bool, raw: bool, as_json: bool) -> int:
    taken = 0
    while left is None or taken < left:
        items = queue.dequeue_many(db, limit=BATCH_ITEMS if left is None else min(BATCH_ITEMS, left - taken))
        if not items:
            break
        taken += len(items)
        if wants_table(as_json) and not raw:
            print_items(items, codec, "")
        else:
            _deliver(items, [line(item, codec, records=records, raw=raw) for item in items])
    return taken


def _deliver(items: list[Item], lines: list[bytes]) -> None:
    try:
        write_lines(lines)
    except BrokenPipeError:
        # Nothing more can be written there, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"Error: {len(items)} items were taken out, but nobody reads them; here they are:", err=True)
        sys.stderr.buffer.write(b"".join(lines))
        raise typer.Exit(errors.ENGINE) from None
