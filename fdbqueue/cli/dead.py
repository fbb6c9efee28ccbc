"""``fdbqueue dead``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, place, queue_of
from fdbqueue.cli.output import headers_shown, print_shown, rank_of, to_copy, wants_table, write_lines, writing
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.cli.where import ErrorBegins, Where, error_in, item_test, wanted_rows
from fdbqueue.layers.leases import StoredItem
from fdbqueue.layers.leases.browsing import browse
from fdbqueue.stored.layout import Layout

SCREENFUL = 20


def dead(
    queue: QueueName,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="Number of dead letters. Default: all, or 20 on a terminal."),
    ] = None,
    where: Where = None,
    error: ErrorBegins = None,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Print each first line of an error with the number of its dead letters.")
    ] = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Print dead letters with their last errors, and leave them in their places. Exits with 1 if there is none.

    `fdbqueue redrive` and `fdbqueue purge` take the "item" of a dead letter. One that can't be read has the value null.

    With --by-error it prints one line for each error instead, the most frequent one first.

    Example: fdbqueue dead orders --limit 5
    """
    table = wants_table(as_json)
    printed = 0
    shown = Table(header_style="bold")
    lines: list[bytes] = []
    for column in ("item", "value", "error", "attempt", "died"):
        shown.add_column(column, overflow="fold", no_wrap=column == "item")  # a column to copy from
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db:
        if by_error:
            _print_errors(db, source.layout, item_test(where, error, source.layout), limit, table=table)
            return
        wanted = wanted_rows(where, source.layout, source.layout.dead, error)
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


def _print_errors(
    db: Any, layout: Layout, wanted: Callable[[bytes, bytes], bool], limit: int | None, *, table: bool
) -> None:
    """Print the first lines of errors with their numbers. It reads all dead letters, without payloads in chunks."""
    found: Counter[str] = Counter()
    for page in pages(db, layout, Range(None, None), ("dead",), payloads=False):
        for at, value in enumerate(page.values):
            if wanted(layout.available.key(page.packed(at)), value):
                found[error_in(value).partition("\n")[0]] += 1
    if not found:
        raise typer.Exit(errors.EMPTY)
    listed = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit]
    if table:
        shown = Table(header_style="bold")
        shown.add_column("items", justify="right")
        shown.add_column("error", overflow="fold")
        for error, items in listed:
            shown.add_row(f"{items:,}", Text(error))
        print_shown(shown)
    else:
        write_lines([encode_json({"error": error, "items": items}).encode() + b"\n" for error, items in listed])


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
        "attempt": letter.attempt,
        "consumer": letter.consumer,
        "died_at": letter.died_at,
        **rank_of(letter.position),
        **headers_shown(letter.headers),  # its life has no end any more, as after a redrive
    }
    return encode_json(shown).encode() + b"\n"
