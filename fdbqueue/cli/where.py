"""``--where``: a condition in the language of selectors, on items in any state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.engine.api import KeyValue
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.layers.subscriptions._selectors import ItemTest
from fdbqueue.layout import Layout, Place
from fdbqueue.position import Position

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only items whose headers fit: \"color = 'red' AND weight > 2\". The language of selectors.",
    ),
]


def wanted_rows(where: str | None, layout: Layout, place: Place) -> Callable[[KeyValue], bool] | None:
    """Return a test of the rows of one state; None: all are wanted.

    Raises:
        SelectorError: it is no condition.
    """
    if where is None:
        return None
    test = ItemTest(layout, Selector(where))
    return lambda row: test(layout.available.key(place.packed(row.key)), row.value)


def chosen_positions(
    db: Any, where: str, layout: Layout, states: tuple[str, ...], limit: int | None
) -> Iterator[list[Position]]:
    """Yield the positions of wanted items in lists, up to `limit` in all, while they are read.

    Raises:
        SelectorError: it is no condition.
    """
    test, left = ItemTest(layout, Selector(where)), limit
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


def refuse_neither(where: str | None, items: list[str] | None) -> None:
    """Refuse a command that names no items and has no condition."""
    if where is None and not items:
        raise typer.BadParameter("name items, or give a condition", param_hint="INDEX:RANDOM / --where")


def refuse_both(where: str | None, items: list[str] | None) -> None:
    """Refuse a condition beside items that are named."""
    if where is not None and items:
        raise typer.BadParameter("name items or give a condition, not both", param_hint="--where")
