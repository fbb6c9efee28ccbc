"""Copies: the items that a recipient must fetch, the names that it confirms, and the registry of recipients."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from fdbqueue import Item, Position
from fdbqueue.lowlevel import (
    Database,
    KeyValue,
    Layout,
    Subspace,
    Transaction,
    locate,
    pack,
    rows,
    started,
    value_of,
    within,
)
from fdbqueue.moves.taking import EXPIRED_LIMIT, ItemRow, Takes, remove

from ..leases import Leases
from ..leases.timers import FIRE_LIMIT, due_timers, fire_first, next_due_us
from ..leases.transitions import Transitions
from .capacity import Watches, until_changed_or_due

# The registry of the recipients that fetch copies of a smart queue's items.

MOST_RECIPIENTS = 32
"""Each recipient takes space in the notes of every item that it must confirm."""


class RecipientRegistry(msgspec.Struct, forbid_unknown_fields=True):
    """The value stored under ``("recipients",)``."""

    last: int = 0
    """The highest number assigned so far."""
    numbers: dict[str, int] = {}
    """Numbers by name. A number is assigned only once."""


_decoder = msgspec.msgpack.Decoder(RecipientRegistry)
_encoder = msgspec.msgpack.Encoder()


class Recipients:
    """The registry of one queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    async def read(self, tr: Transaction) -> RecipientRegistry:
        """Read the registry.

        This is a plain read on purpose. Otherwise an enqueue could miss a registration that commits before it, and
        leave that recipient out. Registrations are rare, and only they write the key.
        """
        value = await value_of(tr.get(self._layout.recipients_key))
        if not value.present():
            return RecipientRegistry()
        return self._layout.decode(self._layout.recipients_key, bytes(value), _decoder.decode, what="recipients")

    def write(self, tr: Transaction, registry: RecipientRegistry) -> None:
        """Write the registry."""
        tr.set(self._layout.recipients_key, _encoder.encode(registry))

    async def numbers(self, tr: Transaction) -> list[int]:
        """Return the numbers of all registered recipients."""
        return sorted((await self.read(tr)).numbers.values())


def recipient_parts(layout: Layout, numbers: list[int]) -> tuple[bytes, ...]:
    """Return the parts that name these recipients in the notes of an item."""
    return tuple(layout.part_of(space[number]) for number in numbers for space in (layout.copies, layout.unsent))


# Copies: the items that a recipient must fetch, and the names that it confirms.

SEVERAL = b"several"
"""Stored in place of a packed position; no packed position begins with this byte."""
SENT_BEFORE = b"again"
"""The value of an unsent copy that a reset has made so. That of a copy that was never fetched is empty."""


@dataclass(frozen=True, slots=True, repr=False)
class Copy(Item):
    """A copy of an item, as one recipient has fetched it."""

    name: str = field(default="", kw_only=True)
    """Names the copy in a confirmation: the item's position, and its version if the item has got other values."""


class NamedCopies(NamedTuple):
    """The copy that a confirmation names."""

    position: Position
    version: bytes | None
    """Version of the copy; None: the copy fetched last."""


class Copies:
    """The copies of one queue's items."""

    __slots__ = ("_layout", "recipients")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.recipients = Recipients(layout)
        """The registry of recipients."""

    def prefix(self, space: Subspace, number: int) -> bytes:
        """Return the prefix of a recipient's keys of one kind."""
        prefix: bytes = space[number].key()
        return prefix

    def key(self, space: Subspace, number: int, packed: bytes) -> bytes:
        """Return a recipient's key of one kind for an item."""
        return self.prefix(space, number) + packed

    async def numbers(self, tr: Transaction, recipient: str) -> tuple[int, list[int]]:
        """Return a recipient's number, and the numbers of the others.

        Raises:
            TypeError: the name is not a str. ValueError: the recipient is not registered.
        """
        check_recipient(recipient)
        registry = await self.recipients.read(tr)
        number = registry.numbers.get(recipient)
        if number is None:
            there = ", ".join(sorted(registry.numbers)) or "nobody is"
            raise ValueError(
                f"{recipient!r} is not registered with {self._layout.describe()}: {there}. Register it first."
            )
        return number, [other for other in registry.numbers.values() if other != number]

    def known_key(self, number: int) -> bytes:
        """Return the key that records the fetched and unconfirmed copies of a recipient."""
        key: bytes = self._layout.fetched.pack((number,))
        return key

    async def state(self, tr: Transaction, number: int, packed: bytes) -> tuple[bytes | None, bytes | None]:
        """Return a copy's version, None if no confirmation is needed, and the value of its unsent key, or None."""
        reads = [tr.get(self.key(space, number, packed)) for space in (self._layout.copies, self._layout.unsent)]
        copy, unsent = await value_of(reads[0]), await value_of(reads[1])
        return bytes(copy) if copy.present() else None, bytes(unsent) if unsent.present() else None

    async def current(self, tr: Transaction, number: int, packed: bytes) -> bytes | None:
        """Return the version of a copy that the recipient has fetched at least once and has still to confirm.

        None if there is no such copy: it is confirmed, or was never fetched with these values.
        """
        version, unsent = await self.state(tr, number, packed)
        return version if unsent in (None, SENT_BEFORE) else None

    async def is_fetched(self, tr: Transaction, number: int, packed: bytes) -> bool:
        """Return whether a copy is fetched and not confirmed."""
        version, unsent = await self.state(tr, number, packed)
        return version is not None and unsent is None

    async def note_fetched(self, tr: Transaction, number: int, copies: list[Copy], known: bytes | None) -> None:
        """Record the only copy that is fetched and not confirmed, or that there are several."""
        packed = pack(copies[0].position)
        is_alone = len(copies) == 1 and known != SEVERAL
        if is_alone and known is not None and known != packed:
            is_alone = not await self.is_fetched(tr, number, known)
        noted = packed if is_alone else SEVERAL
        if noted != known:
            tr.set(self.known_key(number), noted)

    async def remove(self, tr: Transaction, packed: bytes, counter: str) -> bool:
        """Remove an item in any state; return whether it was there. The holder of a leased item loses its lease."""
        # Plain reads: a concurrent transaction that moves or takes the item conflicts with this one.
        for item in await locate(tr, self._layout, [packed]):
            moves = Transitions(tr, self._layout)
            notes, is_readable = (await moves.read_notes({packed: item.stored}))[packed]
            moves.leave(item.state, packed, notes)
            moves.vanish(packed, item.stored, counter, notes=notes, is_readable=is_readable)
            await moves.settle()
            moves.finish()
            return True
        return False


def check_recipient(name: object) -> None:
    """Check the name of a recipient.

    Raises:
        TypeError: it is not a str.
    """
    if not isinstance(name, str):
        raise TypeError(f"A recipient is named by a str, not by {name!r}.")


def named_by(copy: object, position: object) -> NamedCopies | None:
    """Return the copy that a confirmation names; None if it names none.

    Raises:
        TypeError, ValueError: an argument is no copy, name of a copy, or position; or both are given.
    """
    if copy is not None and position is not None:
        raise ValueError("A confirmation names its copy by `copy` or by `position`, not by both.")
    if position is not None:
        if not isinstance(position, Position):
            raise TypeError(f"position is an item's Position, not {position!r}; a copy's name is given as `copy`.")
        return NamedCopies(position, None)
    if copy is None:
        return None
    name = copy.name if isinstance(copy, Copy) else copy
    if not isinstance(name, str):
        raise TypeError(f"What a confirmation names is a Copy or its name, not {copy!r}.")
    text, _, version = name.partition("@")
    try:
        return NamedCopies(Position.parse(text), bytes.fromhex(version))
    except ValueError as error:
        raise ValueError(f"{name!r} is not the name of a copy: give `Copy.name`.") from error


def said(what: object) -> tuple[str, NamedCopies | None]:
    """Return the recipient and the copy in the result of a message type's `confirms`.

    Raises:
        TypeError, ValueError: the result is neither a recipient nor a pair of a recipient and a copy.
    """
    recipient, copy = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if not isinstance(recipient, str):
        raise TypeError(f"it returned {what!r}, and neither a recipient nor a pair of a recipient and a copy's name")
    return recipient, named_by(None, copy) if isinstance(copy, Position) else named_by(copy, None)


# Fetches the copies that one recipient has not fetched yet, in queue order, after it fires due timers.

WINDOW = 64
_COME_BACK = ("enqueued", "leased", "delayed", "dead")
"""When an item becomes available, one of these counters changes."""


@dataclass(slots=True)
class _Fetched:
    """The work of one fetching transaction."""

    limit: int
    takes: Takes
    moves: Transitions
    cut: bool
    """Whether it stops after it has removed many outdated items."""
    copies: list[Copy] = field(default_factory=list)
    all_seen: bool = False
    """Whether there is no further copy to fetch."""

    @property
    def is_full(self) -> bool:
        """Whether it has reached the limit of the call, or of one transaction."""
        return len(self.copies) >= self.limit or self.takes.stopped or (self.cut and self.takes.over >= EXPIRED_LIMIT)


class Fetched(NamedTuple):
    """The result of one fetching transaction."""

    copies: list[Copy]
    again: bool
    """Whether there were more timers or outdated items than one transaction handles, so that another must look."""


class Fetching:
    """Fetches copies of one queue's items.

    Args:
        leases: the queue's leases, with their clock and their rules for due timers.
    """

    __slots__ = ("_copies", "_layout", "_leases", "_queue")

    def __init__(self, leases: Leases, copies: Copies) -> None:
        self._leases = leases
        self._queue = leases.queue
        self._layout = leases.layout
        self._copies = copies

    async def fetch(self, tr: Transaction, recipient: str, limit: int, *, strict: bool) -> tuple[Fetched, bool]:
        """Fire due timers, then fetch. Also return whether it wrote.

        Args:
            strict: whether to return `again` if more timers are due, and leave the fetch to that transaction.
        """
        now_us = self._leases.now_us()
        due = started(due_timers(tr, self._layout, now_us, limit=FIRE_LIMIT))
        number, _ = await self._copies.numbers(tr, recipient)
        overdue = await due
        moves = Transitions(tr, self._layout)
        haul = _Fetched(limit, Takes(tr, self._queue, now_us), moves, strict)
        try:
            if overdue:
                _, later = await fire_first(tr, self._layout, moves, overdue, self._leases.retry, now_us, strict)
                if later:
                    return Fetched([], again=True), True
            known = started(_get(tr, self._copies.known_key(number)))
            await self._first_unsent(tr, number, haul)
            await moves.settle()
        finally:
            moves.finish()
        if haul.takes.error is not None and not haul.copies and not (strict and moves.any):
            raise haul.takes.error
        if haul.copies:
            await self._copies.note_fetched(tr, number, haul.copies, await known)
        written = bool(moves.any or haul.copies)
        # Commit the moves and removals first. The next transaction fetches the rest, or raises the error.
        return Fetched(haul.copies, again=strict and written and not haul.copies and not haul.all_seen), written

    async def _first_unsent(self, tr: Transaction, number: int, haul: _Fetched) -> None:
        """Fetch the first unsent copies of available items, up to one that can't be read."""
        prefix = self._copies.prefix(self._layout.unsent, number)
        begin, end = within(prefix)
        while not haul.is_full:
            # A snapshot read, with a conflict range up to the last copy: an enqueue behind it does not conflict.
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            at = 0
            while at < len(found) and not haul.is_full:
                group = found[at : at + haul.limit - len(haul.copies)]
                at += len(group)
                for packed, stored, version in await self._available(tr, number, prefix, group):
                    if not haul.is_full:
                        await self._fetch_one(tr, prefix, packed, stored, version, haul)
            if len(found) < WINDOW:
                haul.all_seen = not haul.is_full
                break
            begin = found[-1].key + b"\x00"
        if haul.all_seen and not haul.copies:
            tr.add_read_conflict_range(prefix, end)

    async def _available(
        self, tr: Transaction, number: int, prefix: bytes, group: list[KeyValue]
    ) -> list[tuple[bytes, bytes, bytes]]:
        """Return packed positions, stored values and versions of the copies whose items are available."""
        reads = []
        for row in group:
            packed = row.key[len(prefix) :]
            version = tr.snapshot.get(self._copies.key(self._layout.copies, number, packed))
            reads.append((packed, tr.get(self._layout.available.key(packed)), version))
        there = []
        for packed, read, version in reads:
            value, copied = await value_of(read), await value_of(version)
            if value.present():  # a leased or delayed item is fetched once it is available again
                there.append((packed, bytes(value), bytes(copied) if copied.present() else b""))
        return there

    async def _fetch_one(
        self, tr: Transaction, prefix: bytes, packed: bytes, stored: bytes, version: bytes, haul: _Fetched
    ) -> None:
        """Fetch one copy, or remove its item if it is over."""
        verdicts = await haul.takes.judge([ItemRow(self._layout.available.key(packed), stored)])
        if not verdicts:
            return
        [verdict] = verdicts
        if verdict.fate != "take":
            remove(haul.moves, verdict, packed, cleared=False)
            return
        item = verdict.item
        tr.add_read_conflict_range(prefix, prefix + packed + b"\x00")
        tr.clear(prefix + packed)
        name = item.position.text + (f"@{version.hex()}" if version else "")
        haul.copies.append(Copy(item.position, item.value, item.headers, name=name))

    async def wait(self, db: Database, recipient: str, seconds: float | None) -> None:
        """Wait until there may be a copy to fetch, or `seconds` have passed."""
        await until_changed_or_due(db, partial(self._watch, recipient=recipient), self._leases.now_us, seconds)

    async def _watch(self, tr: Transaction, recipient: str) -> Watches:
        """Return watches on keys that change when there may be a copy to fetch; none if there is one already."""
        number, _ = await self._copies.numbers(tr, recipient)
        prefix = self._copies.prefix(self._layout.unsent, number)
        begin, end = within(prefix)
        while True:
            found = await rows(tr.snapshot, begin, end, limit=WINDOW)
            if await self._available(tr, number, prefix, found):
                return [], None
            if len(found) < WINDOW:
                break
            begin = found[-1].key + b"\x00"
        due_us = await next_due_us(tr, self._layout, self._leases.now_us())
        keys = [self._layout.count_key(name) for name in _COME_BACK]
        return [tr.watch(key) for key in (*keys, self._layout.resent_key, self._layout.recipients_key)], due_us


async def _get(tr: Transaction, key: bytes) -> bytes | None:
    value = await value_of(tr.get(key))
    return bytes(value) if value.present() else None
