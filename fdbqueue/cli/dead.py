"""``fdbqueue dead``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, place, queue_of
from fdbqueue.cli.output import headers_shown, rank_of, to_copy, wants_table, write_lines, writing
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.cli.where import Where, wanted_rows
from fdbqueue.layers.leases import StoredItem
from fdbqueue.layers.leases.browsing import browse

SCREENFUL = 20


def dead(
    queue: QueueName,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="Number of dead letters. Default: all, or 20 on a terminal."),
    ] = None,
    where: Where = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Print dead letters with their last errors, and leave them in their places. Exits with 1 if there is none.

    `fdbqueue redrive` and `fdbqueue purge` take the "item" of a dead letter. One that can't be read has the value null.

    Example: fdbqueue dead orders --limit 5
    """
    table = wants_table(as_json)
    printed = 0
    shown = Table(header_style="bold")
    lines: list[bytes] = []
    for column in ("item", "value", "error", "attempts", "died"):
        shown.add_column(column, overflow="fold", no_wrap=column == "item")  # a column to copy from
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db:
        wanted = wanted_rows(where, source.layout, source.layout.dead)
        most = limit or (SCREENFUL if table else None)
        for letter in browse(db, source, state="dead", limit=most, on_bad="null", wanted=wanted):
            printed += 1
            with writing(letter.position):
                line = _line(letter, codec)
                if table:
                    shown.add_row(*_cells(letter, codec))
                    lines.append(line)
                else:
                    write_lines([line])
    if table and printed:
        write_lines([to_copy(shown, lines)])
    if not printed:
        raise typer.Exit(errors.EMPTY)


def _cells(letter: StoredItem, codec: CodecName) -> tuple[str | Text, ...]:
    value = Text(encode_json(_value(letter, codec)))
    died = datetime.fromtimestamp(letter.died_at or 0.0, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return place(letter.position), value, Text(letter.error), str(letter.attempt), died


def _value(letter: StoredItem, codec: CodecName) -> Any:
    return None if letter.value is None else to_json(letter.value, codec)


def _line(letter: StoredItem, codec: CodecName) -> bytes:
    shown = {
        "item": place(letter.position),
        "value": _value(letter, codec),
        "error": letter.error,
        "attempts": letter.attempt,
        "consumer": letter.consumer,
        "died_at": letter.died_at,
        **rank_of(letter.position),
        **headers_shown(letter.headers),  # its life has no end any more, as after a redrive
    }
    return encode_json(shown).encode() + b"\n"
