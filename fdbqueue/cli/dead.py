"""``fdbqueue dead``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, place, queue_of
from fdbqueue.cli.output import headers_shown, rank_of, wants_table, writing
from fdbqueue.cli.sessioning import tell_none
from fdbqueue.cli.tables import SCREENFUL, TableColumn, line_of, print_rows, time_text, value_text
from fdbqueue.cli.values import to_json
from fdbqueue.cli.where import ErrorBegins, Where, error_in, item_test, wanted_rows
from fdbqueue.layers.leases import StoredItem
from fdbqueue.layers.leases.browsing import browse
from fdbqueue.stored.layout import Layout


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
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db:
        if by_error:
            printed = _print_errors(db, source.layout, item_test(where, error, source.layout), limit, table=table)
        else:
            wanted = wanted_rows(where, source.layout, source.layout.dead, error)
            most = limit or (SCREENFUL if table else None)
            letters = browse(db, source, state="dead", limit=most, on_bad="null", wanted=wanted)
            printed = print_rows(letters, _columns(codec), partial(_line, codec=codec), table=table)
        if not printed:
            fitting = " that fit" if where is not None or error is not None else ""
            tell_none(db, source, f"dead letters{fitting}", "dead")
    if not printed:
        raise typer.Exit(errors.EMPTY)


def _print_errors(
    db: Any, layout: Layout, wanted: Callable[[bytes, bytes], bool], limit: int | None, *, table: bool
) -> int:
    """Print the first lines of errors with their numbers, and return how many.

    It reads all dead letters, without payloads in chunks.
    """
    found: Counter[str] = Counter()
    for page in pages(db, layout, Range(None, None), ("dead",), payloads=False):
        for at, value in enumerate(page.values):
            if wanted(layout.available.key(page.packed(at)), value):
                found[error_in(value).partition("\n")[0]] += 1
    listed = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:limit]
    return print_rows(listed, BY_ERROR, lambda one: line_of({"error": one[0], "items": one[1]}), table=table)


def _columns(codec: CodecName) -> tuple[TableColumn[StoredItem], ...]:
    return (
        TableColumn("item", lambda one: place(one.position), whole=True),
        TableColumn("value", lambda one: "null" if one.value is None else value_text(one, codec)),
        TableColumn("error", lambda one: one.error),
        TableColumn("attempt", lambda one: str(one.attempt)),
        TableColumn("died", lambda one: time_text(one.died_at or 0.0)),
    )


BY_ERROR: tuple[TableColumn[tuple[str, int]], ...] = (
    TableColumn("items", lambda one: f"{one[1]:,}", number=True),
    TableColumn("error", lambda one: one[0]),
)


def _value(letter: StoredItem, codec: CodecName) -> Any:
    return None if letter.value is None else to_json(letter.value, codec)


def _line(letter: StoredItem, codec: CodecName) -> bytes:
    with writing(letter.position):
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
        return line_of(shown)
