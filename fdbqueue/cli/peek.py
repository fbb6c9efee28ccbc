"""``fdbqueue peek``."""

from __future__ import annotations

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, queue_of
from fdbqueue.cli.output import line, print_items, wants_table, write_lines


def peek(
    queue: QueueName,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Print the first item and leave it where it is. Exits with 1 if there is none."""
    check_raw(raw, codec)
    with opened(url) as db:
        item = queue_of(queue, codec).peek(db)
    if item is None:
        raise typer.Exit(errors.EMPTY)
    if wants_table(as_json) and not raw:
        print_items([item], codec, "")
    else:
        write_lines([line(item, codec, records=records, raw=raw)])
