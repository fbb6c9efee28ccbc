"""Marks: what ties an item to more than its own queue, such as a group. A file or another database can't keep them."""

from __future__ import annotations

from fdbqueue.engine.api import Transaction
from fdbqueue.errors import TransferError
from fdbqueue.layers.streams import refuse_sessions
from fdbqueue.moves.admission import refuse_smart
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.rename_marks import check_renamed
from fdbqueue.verbs.queue import Queue

REMEDY = {
    "blob": "Read the blob by fdbqueue.layers.Blobs, and ack the item",
    "completion": "Let its consumer end it first",
    "follow-ups": "Let its consumer end it first",
    "group": "Let the group end first, or cancel it",
    "held": "Let the item that it follows end first",
    "dependent keys": "Let the layer that wrote them take the item first",
}


def marks_of(notes: Notes, *, has_blob: bool = False) -> tuple[str, ...]:
    """Return the marks of an item.

    >>> marks_of(Notes(group="nightly", keep_s=60)), marks_of(Notes(attempt=3))
    (('completion', 'group'), ())
    """
    found = {
        "blob": has_blob,
        "completion": bool(notes.keep_s),
        "follow-ups": bool(notes.then),
        "group": bool(notes.group),
        "held": notes.held,
        "dependent keys": bool(notes.beside),
    }
    return tuple(name for name, there in found.items() if there)


def refusal(what: str, position: str, layout: Layout, marks: tuple[str, ...]) -> TransferError:
    """Return the error for an item with marks."""
    return TransferError(
        f"The item {position} of {layout.describe()} has {', '.join(marks)}, which {what} can't take along. It was"
        f" left there. {REMEDY[marks[0]]}."
    )


async def refuse_layers(tr: Transaction, layout: Layout, what: str) -> None:
    """Refuse a queue whose items belong to a layer: one with sessions, and a smart one.

    Raises:
        StreamError, ChecksBypassed: it is such a queue. QueueRenamed: it has another name now.

    *Conflicts:* none. *Cost:* three reads.
    """
    await check_renamed(tr, layout)
    await refuse_sessions(tr, layout, what)
    await refuse_smart(tr, layout)


def check_is_queue(queue: object, verb: str) -> None:
    """Refuse an argument that is no queue.

    Raises:
        TypeError: it is a layer, or something else.
    """
    if not isinstance(queue, Queue):
        raise TypeError(
            f"{verb} takes a Queue, as Queue('orders', codec='json'), not {queue!r}. Of a layer give its `queue`."
        )
