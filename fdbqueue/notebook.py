"""LEVEL 3: helpers for notebooks: tables, drawings of keys and of conflicts, a page that refreshes.

They need the extra ``fdbqueue[notebook]``, with JupyterLab and matplotlib.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fdbqueue.base.reprs import Table, brief, table
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import is_within
from fdbqueue.engine.transactional import only_database, only_transaction
from fdbqueue.reads.figures import FAINT, INK, OTHERS, bars, lines, new_figure, png
from fdbqueue.reads.inspecting import Inspection
from fdbqueue.stored.items import parse
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.positions import is_packed
from fdbqueue.verbs.queue import Queue

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

__all__ = ["bars", "conflicts", "keys", "lines", "live", "new_figure", "png", "table"]

MOST_KEYS = 50
MOST_COLUMNS = 24
"""A wider drawing can't be read."""
_CONFLICTS = "#D55E00"
_SPECIAL = b"\xff\xff/transaction/%b_conflict_range/"


def keys(db: Database, queue: Queue, *, limit: int = MOST_KEYS) -> Table:
    """Return the first keys of a queue as a table: each key as a tuple, and its value.

    Args:
        db: a database, or a transaction.
        queue: the queue.
        limit: how many keys at most.

    >>> import fdbqueue
    >>> from fdbqueue import notebook
    >>> orders = fdbqueue.Queue("orders", codec="str")
    >>> with fdbqueue.open("memory:") as db:
    ...     position = orders.enqueue(db, "teapot")
    ...     notebook.keys(db, orders).rows[0]
    ("('orders', 'count', 'enqueued')", '1')
    """
    begin, end = _queue(queue).layout.whole_range()
    found = list(islice(iter(db.get_range(begin, end, limit=limit + 1)), limit + 1))
    rows = tuple(
        (_key(queue, bytes(row.key)), _value(queue, bytes(row.key), bytes(row.value))) for row in found[:limit]
    )
    return Table("", ("key", "stored"), rows, more=len(found) > limit)


class _Range(NamedTuple):
    begin: bytes
    end: bytes


def conflicts(queue: Queue, /, **transactions: Any) -> Figure:
    """Draw which keys of a queue open transactions read and write, and where they would conflict.

    A transaction fails if another one that commits first writes a key that it reads. The ranges are those that the
    database itself compares at the commit. A snapshot read is not among them.

    Args:
        queue: the queue.
        transactions: open transactions, by the names that the drawing gives them.

    Raises:
        TypeError: one of them is no transaction.
    """
    begin, end = _queue(queue).layout.whole_range()
    if not transactions:
        raise TypeError("Give open transactions by names, as conflicts(queue, Ann=first, Bob=second).")
    reads: dict[str, list[_Range]] = {}
    writes: dict[str, list[_Range]] = {}
    for name, tr in transactions.items():
        only_transaction(tr, "conflicts")
        reads[name], writes[name] = (
            [_Range(max(one.begin, begin), min(one.end, end)) for one in _ranges(tr, kind) if one.end > begin]
            for kind in (b"read", b"write")
        )
    every = [one for ranges in (*reads.values(), *writes.values()) for one in ranges if one.begin < one.end]
    borders = sorted({border for one in every for border in one})
    columns = [_Range(*pair) for pair in pairwise(borders) if any(_covers(one, pair[0]) for one in every)]
    return _draw(queue, columns[:MOST_COLUMNS], reads, writes, more=len(columns) > MOST_COLUMNS)


async def live(db: Database, queue: Queue, *, seconds: float = 10.0, every: float = 0.5, limit: int = 3) -> Inspection:
    """Show a queue's page in a notebook cell, and refresh it for some time. Other tasks go on meanwhile.

    Args:
        db: a database.
        queue: the queue.
        seconds: how long, from when the page is first shown. A first chart imports matplotlib, which takes seconds.
        every: seconds between two reads of the page.
        limit: how many items to show at each end.

    Returns: the last page.

    Raises:
        ValueError: one of the times is not more than 0.
    """
    only_database(db, "live", "Inspect in the transaction, with queue.inspect(tr).")
    if not (seconds > 0 and every > 0):
        raise ValueError(f"seconds and every are numbers of seconds, more than 0, not {seconds} and {every}.")
    from IPython.display import display

    page: Inspection = await _queue(queue).inspect.aio(db, limit=limit)
    shown = display(page, display_id=True)  # type: ignore[no-untyped-call]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(min(every, max(0.0, until - time.monotonic())))
        page = await queue.inspect.aio(db, limit=limit)
        if shown is not None:
            shown.update(page)
    return page


def _queue(queue: object) -> Queue:
    if not isinstance(queue, Queue):
        raise TypeError(f"A queue was expected, not {type(queue).__name__}. Of a layer, give its leases.queue.")
    return queue


def _ranges(tr: Transaction, kind: bytes) -> list[_Range]:
    """Return the conflict ranges of a transaction, from its special keys."""
    prefix = _SPECIAL % kind
    found = [bytes(row.key)[len(prefix) :] for row in tr.snapshot.get_range_startswith(prefix)]
    return [_Range(found[at], found[at + 1]) for at in range(0, len(found) - 1, 2)]


def _covers(one: _Range, key: bytes) -> bool:
    return one.begin <= key < one.end


def _draw(
    queue: Queue,
    columns: Sequence[_Range],
    reads: Mapping[str, list[_Range]],
    writes: Mapping[str, list[_Range]],
    *,
    more: bool,
) -> Figure:
    names = list(reads)
    figure, [axes] = new_figure(1.6 + 0.75 * max(4, len(columns)), 1.5 + 0.45 * len(names))
    for row, name in enumerate(names):
        for column, piece in enumerate(columns):
            read = any(_covers(one, piece.begin) for one in reads[name])
            wrote = any(_covers(one, piece.begin) for one in writes[name])
            others = [one for other in names if other != name for one in writes[other]]
            fails = read and any(_covers(one, piece.begin) for one in others)
            if not (read or wrote):
                continue
            face = OTHERS[1] if wrote else "#cfe3f1"
            axes.add_patch(_box(column, row, face, _CONFLICTS if fails else FAINT, 2.5 if fails else 0.8))
            letters = "reads" if not wrote else "writes" if not read else "both"
            axes.annotate(letters, (column + 0.5, row + 0.5), ha="center", va="center", color=INK, fontsize=8)
    axes.set_xlim(0, max(1, len(columns)))
    axes.set_ylim(len(names), 0)
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    labels = [_label(queue, piece) for piece in columns]
    axes.set_xticks([at + 0.5 for at in range(len(columns))], labels, rotation=35, ha="right", fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(
        "red frame: fails if the other commits first" + ("; there are more keys" if more else ""),
        loc="left",
        fontsize=10,
    )
    return figure


def _box(column: int, row: int, face: str, edge: str, width: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.04, row + 0.08), 0.92, 0.84, facecolor=face, edgecolor=edge, linewidth=width)


def _label(queue: Queue, piece: _Range) -> str:
    layout = queue.layout
    if not layout.begin <= piece.begin < layout.end:
        return _key(queue, piece.begin, whole=False)
    if not is_packed(layout.available.packed(piece.begin)):
        return "between items"
    position = layout.position_of(piece.begin)
    return f"item {position.index}:{position.random.hex()[:4]}"


def _key(queue: Queue, key: bytes, *, whole: bool = True) -> str:
    """Return a key as a tuple; without the queue's own part if it is not to be whole."""
    behind = key[len(queue.layout.prefix) :]
    parts = name_of(key if whole else behind)
    if isinstance(parts, bytes):
        return brief(behind, 16)
    return repr(parts) if whole else "/".join(map(_part, parts))


def _part(one: object) -> str:
    return one.hex()[:4] if isinstance(one, bytes) else str(one)


def _value(queue: Queue, key: bytes, value: bytes) -> str:
    """Return a stored value in a readable form: an item's payload, a counter's number, or the bytes."""
    layout = queue.layout
    if is_within(key, layout.counts.key()) and len(value) == 8:
        return f"{int.from_bytes(value, 'little', signed=True):,}"
    if layout.begin <= key < layout.end:
        return brief(parse(value).payload, 60)
    return brief(value, 40)
