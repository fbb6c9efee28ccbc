"""Change messages of a smart queue by their positions: the index, deadlines and copies change with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue import Queue
from fdbqueue.lowlevel import Editing, Envelope, Notes, Standing, Transaction
from fdbqueue.verbs.editing import EditPlan, ItemChange

from .admitting import Admitting
from .check_runner import CheckRunner
from .index import SmartIndex
from .scanning import Found


class SmartEditing(Editing[Any]):
    """Changes of one smart queue's messages.

    A new message has the type and the relation key of the old one. No queued item is asked about it, as when an item's
    own check replaces its message.
    """

    def __init__(
        self, queue: Queue, now_us: Callable[[], int], index: SmartIndex, checks: CheckRunner, admitting: Admitting
    ) -> None:
        super().__init__(queue, now_us)
        self._index = index
        self._checks = checks
        self._admitting = admitting

    async def revalued(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, now_us: int
    ) -> tuple[bytes, Notes, Any]:
        """Return the message to store, the item's notes with it, and its new dependent keys.

        Raises:
            CodecError: the message has no registered type, or does not fit it. CheckFailed: a function of its type is
                at fault.
            ValueError: it has another type or key than the item.
        """
        new = self._checks.incoming(change.value, now_us)
        if self._index.part(new.type.name, new.key) not in opened.notes.beside:
            raise ValueError(
                f"The item {self._position(one.packed).text} of {self.queue!r} is not a {new.type.name!r} with the key"
                f" {new.key!r}. An update keeps type and key. Nothing was written. Cancel the item, and enqueue the new"
                " message."
            )
        found = Found(one.packed, one.state, one.stored, opened, b"")
        rewritten = await self._admitting.rewritten(tr, found, new, now_us)
        return new.payload, rewritten.notes, rewritten

    def write_beside(self, tr: Transaction, plan: EditPlan) -> None:
        """Write the deadlines and copies of a new message."""
        self._admitting.write_beside(tr, plan.more)
