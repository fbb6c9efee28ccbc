"""``fdbqueue streams``: how far streams out of a queue are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import wants_table
from fdbqueue.cli.tables import TableColumn, line_of, print_rows, time_text

if TYPE_CHECKING:
    from fdbqueue.layers.streams import StreamState

COLUMNS: tuple[TableColumn[StreamState], ...] = (
    TableColumn("stream", lambda one: one.name),
    TableColumn("open batch", lambda one: "" if one.batch is None else str(one.batch)),
    TableColumn("items", lambda one: f"{one.items:,}"),
    TableColumn("acked batch", lambda one: str(one.acked)),
    TableColumn("acked items", lambda one: f"{one.acked_items:,}"),
    TableColumn("reader seen", lambda one: time_text(one.seen_at)),
)


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
    if not print_rows(found, COLUMNS, lambda one: line_of({"queue": queue, **asdict(one)}), table=table):
        raise typer.Exit(errors.EMPTY)
