"""``fdbqueue streams``: how far streams out of a queue are."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import print_shown, wants_table, write_lines
from fdbqueue.cli.values import encode_json

COLUMNS = ("stream", "open batch", "items", "acked batch", "acked items", "reader seen")


def streams(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """List the streams out of a queue, as Spark reads them, and their open batches. Exits with 1 if there is none.

    The items of an open batch are claimed: no consumer gets them before the batch is acked or given back.

    Example: fdbqueue streams orders
    """
    from fdbqueue.spark.stream.operators import streams as all_streams

    own = queue_of(queue)
    table = wants_table(as_json)
    with opened_queue(url, own) as db:
        found = list(all_streams(db, own.layout.space))
    if not found:
        raise typer.Exit(errors.EMPTY)
    if not table:
        write_lines([encode_json({"queue": queue, **asdict(one)}).encode() + b"\n" for one in found])
        return
    shown = Table(header_style="bold")
    for column in COLUMNS:
        shown.add_column(column, overflow="fold")
    for one in found:
        seen = "" if one.seen_at is None else datetime.fromtimestamp(one.seen_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        batch = "" if one.batch is None else str(one.batch)
        shown.add_row(Text(one.name), batch, f"{one.items:,}", str(one.acked), f"{one.acked_items:,}", seen)
    print_shown(shown)
