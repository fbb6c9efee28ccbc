"""Checks a smart queue's index against a rescan of its items, and counts the items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fdbqueue import CheckFailed, FormatError, Queue
from fdbqueue.engine.keys import is_within
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Shown,
    Subspace,
    Transaction,
    pages,
    parse,
    rows,
    within,
)
from fdbqueue.stored.codecs import reason_of
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.places import CLAIMED

from ..leases import LeaseStats
from .copies import Copies
from .messages import Functions, Messages
from .scanning import SmartIndex, position_of

# Checks that the dependent keys of items are those that their notes name. This needs no message types.

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
        return [*problems, *self._surplus_of_others()]

    def _surplus_of_others(self) -> list[str]:
        """Return a sentence for each deadline and copy that no item's notes name."""
        layout = self._layout
        spaces = (("deadline", layout.deadlines), ("copy", layout.copies), ("unsent", layout.unsent))
        return [told for name, space in spaces for told in surplus(layout, name, keys_of(self._tr, space), self._named)]


def surplus(layout: Layout, name: str, keys: Iterable[bytes], named: set[bytes]) -> list[str]:
    """Return a sentence for each key of one kind that no item's notes name."""
    return [f"The key {_told(layout, key)} of a {name} belongs to no item." for key in keys if key not in named]


def keys_of(tr: Transaction | Database, space: Subspace) -> Iterator[bytes]:
    """Yield the keys of a subspace, a page at a time."""
    for page in pages(tr, *within(space.key())):
        for row in page:
            yield row.key


def _told(layout: Layout, key: bytes) -> str:
    return str(name_of(key[len(layout.prefix) :]))  # its bytes, if another program wrote it


def _part(tr: Transaction | Database, queue: Queue) -> DependentKeysCheck:
    return DependentKeysCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("dependent keys",), leaves_out=((MESSAGES, lambda layout: layout.smart),))
"""What smart queues add to `fdbqueue.check`."""


COUNTED = 1_000


@dataclass(frozen=True, slots=True, repr=False)
class RecipientStats(Shown):
    """The items that one recipient has yet to handle, each counted up to 1,000."""

    unsent: int
    """Items that it must fetch."""
    unconfirmed: int
    """Items that it must confirm, fetched or not."""


@dataclass(frozen=True, slots=True, repr=False)
class SmartStats(Shown):
    """The contents of a smart queue."""

    items: LeaseStats
    """Items by state."""
    types: dict[str, int]
    """Items of each type without dead letters, counted up to 1,000."""
    recipients: dict[str, RecipientStats]
    """Recipients by name."""


async def read_smart_stats(
    tr: Transaction, layout: Layout, index: SmartIndex, messages: Messages, items: LeaseStats
) -> SmartStats:
    """Count the items, by snapshot reads."""
    types = {}
    for name in messages.types:
        span = index.span(name)
        types[name] = len(await rows(tr.snapshot, span.begin, span.end, limit=COUNTED))
    recipients = {}
    registry = await Copies(layout).registry(tr)
    for name, number in registry.numbers.items():
        counts = []
        for space in (layout.unsent, layout.copies):
            copies = within(space[number].key())
            counts.append(len(await rows(tr.snapshot, *copies, limit=COUNTED)))
        recipients[name] = RecipientStats(*counts)
    return SmartStats(items, types, recipients)


class IndexCheck(DependentKeysCheck):
    """Compares the index and the other dependent keys of items with the items' messages.

    Args:
        tr: a transaction, or a database.
        layout: the layout of the queue, or of a session.
        messages: the types of the messages.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, messages: Messages) -> None:
        super().__init__(tr, layout)
        self._index = SmartIndex(layout)
        self._messages = messages
        self._functions = Functions(messages.types.values())
        self._problems: list[str] = []
        self._wanted: set[bytes] = set()

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the index entry that an item should have, and the keys that its notes name."""
        super().see(packed, state, row, notes)
        if notes is None or state in ("dead", CLAIMED):
            return
        problem, entry = self._entry_of(packed, row)
        if entry:
            self._wanted.add(entry)
        if problem or entry not in self._layout.dependent_keys(notes.beside, packed):
            told = problem or "has notes that do not name its index entry"
            self._problems.append(f"The item {position_of(self._layout, packed)} {told}.")

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        layout, wanted = self._layout, self._wanted
        found = set(keys_of(self._tr, layout.smart))
        problems = [f"The item {self._told(key)} is missing in the index." for key in sorted(wanted - found)]
        problems += [f"The index has an entry of {self._told(key)}, which is no such item's." for key in found - wanted]
        return [*self._problems, *problems, *self._surplus_of_others()]

    def _entry_of(self, packed: bytes, row: KeyValue) -> tuple[str, bytes]:
        """Return the problem of an item, and the index key that it should have by its own message."""
        layout, messages = self._layout, self._messages
        try:
            opened = parse(row.value)
            payload = opened.payload
            if opened.chunked is not None:
                begin, end = layout.chunk_range_of(packed)
                payload = b"".join(chunk.value for page in pages(self._tr, begin, end) for chunk in page)
        except FormatError as error:
            return f"can't be read as a message: {error}", b""
        try:
            message = messages.decode(payload)
        except Exception as error:  # noqa: BLE001 - the class of a message may be code that is not ours
            return f"can't be read as a message: {reason_of(error)}", b""
        own = messages.type_of(message)
        try:
            key = self._functions.key(own, message, whose="that item")
        except CheckFailed as error:
            return f"can't be given its entry in the index. {str(error).rstrip('.')}", b""
        return "", layout.prefix + self._index.part(own.name, key) + packed

    def _told(self, key: bytes) -> str:
        return f"{position_of(self._layout, self._index.packed(key))} of type {self._index.type_of(key)!r}"
