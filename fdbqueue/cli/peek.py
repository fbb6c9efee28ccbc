"""``fdbqueue peek``."""

from __future__ import annotations

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, queue_of
from fdbqueue.cli.output import line, wants_table, write_lines
from fdbqueue.cli.tables import items_columns, shown_rows
from fdbqueue.layers.leases import StoredItem
from fdbqueue.layers.leases.browsing import browse
from fdbqueue.stored.items import Item


def peek(
    queue: QueueName,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Print the first item and leave it in its place. Exits with 1 if there is none.

    Example: fdbqueue peek orders
    """
    check_raw(raw, codec)
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db:
        item: Item | StoredItem | None
        if records:  # records show more of an item than `Queue.peek` returns
            item = next(iter(browse(db, source, state="available", limit=1)), None)
        else:
            item = source.peek(db)
    if item is None:
        raise typer.Exit(errors.EMPTY)
    if wants_table(as_json) and not raw:
        write_lines([shown_rows([item], items_columns(codec))])
    else:
        write_lines([line(item, codec, records=records, raw=raw)])
