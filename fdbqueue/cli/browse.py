"""``fdbqueue browse``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, position, queue_of
from fdbqueue.cli.output import line, wants_table, write_lines
from fdbqueue.cli.sessioning import tell_none
from fdbqueue.cli.tables import items_columns, shown_rows
from fdbqueue.cli.where import ChosenState, Where, wanted_rows
from fdbqueue.layers.leases import StoredItem
from fdbqueue.layers.leases.browsing import browse as browse_kept
from fdbqueue.reads.browse import Browser
from fdbqueue.stored.items import Item

SCREENFUL = 20
IN_SESSIONS = {
    ChosenState.available: "available",
    ChosenState.leased: "busy",
    ChosenState.delayed: "delayed",
    ChosenState.dead: "dead",
}
"""The counters of items in sessions, by state."""


def browse(
    queue: QueueName,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Number of items. Default: all, or 20 on a terminal.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="From the last item to the first.")] = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="INDEX:RANDOM", help="Only items after this position.")
    ] = None,
    duty_cycle: Annotated[
        float,
        typer.Option(
            "--duty-cycle", min=0.001, max=1, help="Fraction of the time spent reading. Less disturbs others less."
        ),
    ] = 1.0,
    where: Where = None,
    state: Annotated[ChosenState, typer.Option("--state", help="The state of the items.")] = ChosenState.available,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Print items in order and leave them in their places. Exits with 1 if there is none.

    Example: fdbqueue browse orders --reverse --limit 5 --where "color = 'red'"
    """
    check_raw(raw, codec)
    table = wants_table(as_json) and not raw
    start = None if after is None else position(after)
    most = limit or (SCREENFUL if table else None)
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db:
        found: Browser[Item] | Browser[StoredItem]
        if records or where is not None or state is not ChosenState.available:
            found = browse_kept(
                db,
                source,
                state=state.value,
                after=start,
                limit=most,
                reverse=reverse,
                duty_cycle=duty_cycle,
                wanted=wanted_rows(where, source.layout, getattr(source.layout, state.value)),
            )
        else:
            found = source.browse(db, after=start, limit=most, reverse=reverse, duty_cycle=duty_cycle)
        printed = 0
        shown: list[Item | StoredItem] = []
        for item in found:
            if table:
                shown.append(item)
            else:
                write_lines([line(item, codec, records=records, raw=raw)])
            printed += 1
        if not printed:
            fitting = " that fit" if where is not None or after is not None else ""
            tell_none(db, source, f"{state.value} plain items{fitting}", IN_SESSIONS[state])
    if shown:
        write_lines([shown_rows(shown, items_columns(codec))])
    if not printed:
        raise typer.Exit(errors.EMPTY)
