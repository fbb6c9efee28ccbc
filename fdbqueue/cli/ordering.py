"""Orders of queues, as commands take and show them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.engine.steps import run
from fdbqueue.layers.common.levels import Levels, levels_named
from fdbqueue.moves.admission import read_high_water_mark
from fdbqueue.stored.counters import read_level_counts
from fdbqueue.verbs.queue import Queue

Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", "-p", help="Priority of the items. 0 is the soonest; with amqp/N levels 9 is. Default: last."
    ),
]
LevelCount = Annotated[
    str | None,
    typer.Option(
        "--levels", metavar="N|amqp/N", help="Number of levels of a new priority queue. Default: as stored, or 10."
    ),
]


def levels_of(db: Any, queue: Queue, priority: int | None, levels: str | None) -> Levels | None:
    """Return the levels to enqueue by; None if the queue has no levels.

    The command need not name an order that the queue already has.
    """
    try:
        named = None if levels is None else levels_named(levels if "/" in levels else f"levels/{levels}")
        if levels is not None and named is None:
            raise ValueError(f"{levels!r} is not a number of levels: give N or amqp/N")
        found = named or levels_named(_order_of(db, queue) or "") or (None if priority is None else Levels())
        if found is not None and priority is not None:
            found.rank_of(priority)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return found


def order_stats(db: Any, queue: Queue) -> dict[str, Any]:
    """Return the order of a queue, if it has its own, and the number of available items of each level."""
    order = _order_of(db, queue)
    if order is None:
        return {}
    counts = run(queue.read(db, partial(read_level_counts, layout=queue.layout)))
    levels = levels_named(order)
    ranks = sorted(counts) if levels is None else range(levels.count)
    return {"order": order, "levels": {str(rank): counts.get(rank, 0) for rank in ranks}}


def _order_of(db: Any, queue: Queue) -> str | None:
    return run(queue.read(db, partial(read_high_water_mark, layout=queue.layout))).order
