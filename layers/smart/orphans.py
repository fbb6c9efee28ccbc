"""Checks that the dependent keys of items are those that their notes name. This needs no message types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fdbqueue import Queue
from fdbqueue.engine.keys import is_within, within
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Subspace,
    Transaction,
    pages,
)
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.states import CLAIMED

MESSAGES = "messages of a smart queue"


class DependentKeysCheck(ItemCheck):
    """Compares the dependent keys of a queue's items with those that their notes name.

    `SmartQueue.check` also checks that an item's index entry has the right type and key.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._layout = layout
        self._named: set[bytes] = set()

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the keys that an item's notes name."""
        if notes is not None and state not in ("dead", CLAIMED):
            self._named.update(self._layout.dependent_keys(notes.beside, packed))

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        layout, named = self._layout, self._named
        entries = set(keys_of(self._tr, layout.smart))
        begin: bytes = layout.smart.key()
        missing = sorted(key for key in named - entries if is_within(key, begin))
        problems = [f"The smart index has no {_told(layout, key)}, which its item's notes name." for key in missing]
        problems += surplus(layout, "smart index", sorted(entries), named)
        for name, space in other_dependent_keys(layout):
            problems += surplus(layout, name, keys_of(self._tr, space), named)
        return problems


def surplus(layout: Layout, name: str, keys: Iterable[bytes], named: set[bytes]) -> list[str]:
    """Return a sentence for each key of one kind that no item's notes name."""
    return [f"The key {_told(layout, key)} of a {name} belongs to no item." for key in keys if key not in named]


def keys_of(tr: Transaction | Database, space: Subspace) -> Iterator[bytes]:
    """Yield the keys of a subspace, a page at a time."""
    for page in pages(tr, *within(space.key())):
        for row in page:
            yield row.key


def other_dependent_keys(layout: Layout) -> tuple[tuple[str, Subspace], ...]:
    """Return the names and subspaces of dependent keys other than the index."""
    return ("deadline", layout.deadlines), ("copy", layout.copies), ("unsent", layout.unsent)


def _told(layout: Layout, key: bytes) -> str:
    return str(name_of(key[len(layout.prefix) :]))  # its bytes, if another program wrote it


def _part(tr: Transaction | Database, queue: Queue) -> DependentKeysCheck:
    return DependentKeysCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("dependent keys",), leaves_out=((MESSAGES, lambda layout: layout.smart),))
"""What smart queues add to `fdbqueue.check`."""
