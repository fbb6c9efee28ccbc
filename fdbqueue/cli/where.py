"""``--where`` and ``--error``: conditions on items in any state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.base.position import Position
from fdbqueue.cli.input import is_terminal
from fdbqueue.engine.api import KeyValue
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.layers.subscriptions.selectors import ItemTest
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.layout import Layout, Place


def _condition(where: str | None) -> str | None:
    """Refuse a condition that is wrong or empty, before anything else is done.

    Raises:
        SelectorError: it is.
    """
    if where is not None:
        Selector(where)
    return where


Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only items whose headers fit: \"color = 'red' AND weight > 2\". The language of selectors.",
        callback=_condition,
    ),
]


def _beginning(error: str | None) -> str | None:
    if error == "":
        raise typer.BadParameter("it is empty: each error begins so")
    return error


ErrorBegins = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="Only dead letters whose last error begins with this.", callback=_beginning
    ),
]


class ChosenState(StrEnum):
    """The states that a command may be limited to."""

    available = "available"
    leased = "leased"
    delayed = "delayed"
    dead = "dead"


def item_test(where: str | None, error: str | None, layout: Layout) -> Callable[[bytes, bytes], bool]:
    """Return a test of an item's key, as an available item has it, and its stored value."""
    fits = None if where is None else ItemTest(layout, Selector(where))

    def test(key: bytes, value: bytes) -> bool:
        if error is not None and not error_in(value).startswith(error):
            return False
        return fits is None or fits(key, value)

    return test


def error_in(value: bytes) -> str:
    """Return the last error of a stored item, as far as its notes can be read."""
    return salvaged_notes(value)[0].error


def wanted_rows(
    where: str | None, layout: Layout, place: Place, error: str | None = None
) -> Callable[[KeyValue], bool] | None:
    """Return a test of the rows of one state; None: all are wanted.

    Raises:
        SelectorError: it is no condition.
    """
    if where is None and error is None:
        return None
    test = item_test(where, error, layout)
    return lambda row: test(layout.available.key(place.packed(row.key)), row.value)


def chosen_positions(
    db: Any, where: str | None, layout: Layout, states: tuple[str, ...], limit: int | None, error: str | None = None
) -> Iterator[list[Position]]:
    """Yield the positions of wanted items in lists, up to `limit` in all, while they are read.

    Raises:
        SelectorError: it is no condition.
    """
    test, left = item_test(where, error, layout), limit
    for page in pages(db, layout, Range(None, None), states, payloads=False):
        keys = [layout.available.key(page.packed(at)) for at in range(len(page))]
        fitting = [key for key, value in zip(keys, page.values, strict=True) if test(key, value)]
        found = [layout.position_of(key) for key in fitting[:left]]
        if found:
            yield found
        if left is not None:
            left -= len(found)
            if not left:
                return


def check_chosen(where: str | None, items: list[str] | None, everything: bool, *, error: str | None = "") -> None:
    """Refuse a command unless it says in one way which items it means.

    Args:
        where: the condition.
        items: the named items.
        everything: whether all are meant.
        error: how the last error begins; "": the command has no word for that.
    """
    named = {"INDEX:RANDOM": bool(items), "--where": where is not None, "--error": bool(error), "--all": everything}
    given = [word for word, is_given in named.items() if is_given]
    if len(given) == 1 or given == ["--where", "--error"]:
        return
    words = [word for word in named if word != "--error" or error != ""]
    if given:
        raise typer.BadParameter("only one of these says which items are meant", param_hint=" / ".join(given))
    last = ", give --error" if error is None else ""
    raise typer.BadParameter(f"name items, give a condition{last}, or --all", param_hint=" / ".join(words))


def confirm_removal(what: str, *, yes: bool, verb: str = "remove") -> None:
    """Ask whether something may be removed, unless the command says so.

    Args:
        what: the things to remove, with their number, as in "3 items of orders".
        yes: whether the command says so.
        verb: what else happens to them.
    """
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise typer.BadParameter(f"to {verb} {what} unasked, say --yes", param_hint="--yes")
    try:
        typer.confirm(f"{verb.capitalize()} {what}?", abort=True, err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # a signal, and not an answer
            typer.echo(err=True)
            raise error.__context__ from None
        raise
