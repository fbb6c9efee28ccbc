"""``fdbqueue browse``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, position, queue_of
from fdbqueue.cli.output import line, print_items, wants_table, write_lines

SCREENFUL = 20


def browse(
    queue: QueueName,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="How many items; default: all, on a terminal 20.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="From the last item to the first.")] = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="INDEX:RANDOM", help="Only items behind this position.")
    ] = None,
    share: Annotated[
        float, typer.Option("--share", min=0.001, max=1, help="Which part of the time it reads; less disturbs less.")
    ] = 1.0,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Print items in order and leave them where they are. Exits with 1 if there is none."""
    check_raw(raw, codec)
    table = wants_table(as_json) and not raw
    start = None if after is None else position(after)
    with opened(url) as db:
        found = queue_of(queue, codec).browse(
            db, after=start, limit=limit or (SCREENFUL if table else None), reverse=reverse, share=share
        )
        if table:
            printed = print_items(found, codec, "")
        else:
            printed = 0
            for item in found:
                write_lines([line(item, codec, records=records, raw=raw)])
                printed += 1
    if not printed:
        raise typer.Exit(errors.EMPTY)
