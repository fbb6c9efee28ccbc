"""Ack, give back and extend leases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from msgspec import structs

from fdbqueue import FormatError, LeaseLost, Position, Queue
from fdbqueue.lowlevel import Editing, Layout, Notes, Place, Steps, Transaction, notes_of, pack, rows, started, value_of
from fdbqueue.moves.ends import encode_result
from fdbqueue.stored.settings import renamed

from .done import Done
from .lease import Disposition, Lease, LeaseHandle, LeaseRef
from .transitions import Retry, Transitions, uncounted

RANGE_READ_ITEMS = 4
"""From this number of leases on, one read of the whole range is tried."""
MOST_ASKED = 100
"""For how many lost leases of a call the reason is looked up."""
MOST_NAMED = 10
"""How many of them the message names."""


L = TypeVar("L", bound=LeaseRef)
_REFS = (Lease, LeaseHandle)
REF_TYPES = frozenset(_REFS)
"""The types of leases and handles that need no further look (`check_refs`)."""


def several(leases: Iterable[L], verb: str) -> list[L]:
    """Return leases as a list.

    Raises:
        TypeError: one lease was given, or something that is no iterable.
    """
    if type(leases) is list:
        return leases.copy()
    if isinstance(leases, (*_REFS, str, bytes, Mapping)) or not isinstance(leases, Iterable):
        one = verb.removesuffix("_many")
        raise TypeError(f"{verb} takes leases, as in {verb}(db, [lease]), not {leases!r}. For one lease use {one}.")
    return list(leases)


def check_refs(leases: Iterable[object]) -> None:
    """Refuse what is no lease of one item.

    Raises:
        TypeError: one is neither a lease nor a handle, or it is that of a session.
    """
    for lease in leases:
        if type(lease) in REF_TYPES:
            continue
        session = getattr(lease, "session", None)
        if session is not None and isinstance(lease, _REFS):
            raise TypeError(
                f"That of {session!r} is a session's lease, and nothing was done to it. Give it to its sessions:"
                " Sessions.ack(db, lease), and likewise nack, snooze and extend."
            )
        if not isinstance(lease, _REFS):
            raise TypeError(
                f"Give a lease, or its handle, not {lease!r}. (Where there is no item, `lease` returns None.)"
            )


Held: TypeAlias = tuple[bytes, bytes, Notes]
"""An item that a lease holds: its packed position, its stored bytes, and its notes during the lease."""


class Live(NamedTuple):
    """A lease that was live at a version."""

    version: int
    packed: bytes
    """The item's packed position."""
    stored: bytes
    """The item's stored bytes, from before or during the lease."""
    notes: Notes
    """The item's notes during the lease."""


class Holding:
    """Operations of lease holders on one queue's items. Each method writes nothing or all."""

    __slots__ = ("_layout", "_queue", "_retry")

    def __init__(self, queue: Queue, retry: Retry) -> None:
        self._queue = queue
        self._layout = queue.layout
        self._retry = retry

    async def ack(self, tr: Transaction, leases: list[LeaseRef], done: list[Done], *, now_us: int) -> None:
        """Remove the items. Store a result, and enqueue follow-ups, for each.

        Args:
            done: the results, in the order of the leases; empty: all of them None.
        """
        check_refs(leases)
        by_place: dict[bytes, Done] = {}
        results: dict[bytes, bytes] = {}
        if done:
            by_place = {pack(lease.position): one for lease, one in zip(leases, done, strict=True)}
            # Before the first read: a result that can't be stored is refused, also if no item keeps one.
            results = {packed: encode_result(one.result) for packed, one in by_place.items()}
        held = await self._held(tr, leases)
        for one in by_place.values():
            for follow_up in one.follow_ups:
                await follow_up.carry_out(tr)
        moves = Transitions(tr, self._layout, now_us)
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            moves.vanish(packed, stored, "dequeued", notes=notes, result=results.get(packed, b""))
        if moves.changed_groups:
            await moves.settle()
        moves.finish()

    def ack_unchanged(self, tr: Transaction, live: Iterable[Live], *, now_us: int) -> None:
        """Remove items whose leases were live at the version at which the transaction begins.

        The conflict on each leased item's key detects a transaction that ended or took away its lease since that
        version.
        """
        moves = Transitions(tr, self._layout, now_us)
        for one in live:
            tr.add_read_conflict_key(self._layout.leased.key(one.packed))
            moves.leave_leased(one.packed, one.notes)
            moves.vanish(one.packed, one.stored, "dequeued", notes=one.notes)
        moves.finish()

    async def nack(
        self, tr: Transaction, leases: list[LeaseRef], *, now_us: int, delay_us: int | None, error: str, last: bool
    ) -> list[Disposition]:
        """Give back items whose attempts have failed."""
        check_refs(leases)  # before the first read, which is `ask`
        moves = Transitions(tr, self._layout, now_us)
        asked = started(moves.ask())
        held = await self._held(tr, leases)
        await asked
        policy = await self._retry.known(tr, last=last)
        # Before the first write: if a policy raises, all leases must stay with their holder.
        waits = [policy.delay_us(notes.attempt) if delay_us is None else delay_us for _, _, notes in held]
        fates = {}
        for (packed, stored, notes), wait_us in zip(held, waits, strict=True):
            fates[packed] = moves.fail(packed, stored, notes, policy, now_us=now_us, delay_us=wait_us, error=error)
        await moves.settle()
        moves.finish()
        return [fates[pack(lease.position)] for lease in leases]

    async def snooze(self, tr: Transaction, leases: list[LeaseRef], *, now_us: int, delay_us: int) -> list[Disposition]:
        """Give items back without counting an attempt."""
        check_refs(leases)  # before the first read, which is `ask`
        moves = Transitions(tr, self._layout, now_us)
        asked = started(moves.ask())
        held = await self._held(tr, leases)
        await asked
        fates = {}
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            fates[packed] = moves.put_back(packed, stored, uncounted(notes), now_us=now_us, delay_us=delay_us)
        await moves.settle()
        moves.finish()
        return [fates[pack(lease.position)] for lease in leases]

    async def extend(self, tr: Transaction, leases: list[Lease], *, expires_at_us: int) -> list[Lease]:
        """Change the end of leases.

        Raises:
            TypeError: one is a handle, which has no end.
        """
        for lease in leases:
            if isinstance(cast(object, lease), LeaseHandle):
                raise TypeError(f"extend returns the lease with its new end, so it takes the lease, not {lease!r}.")
        refs = list[LeaseRef](leases)
        check_refs(refs)
        held = await self._held(tr, refs)
        moves = Transitions(tr, self._layout)
        for packed, stored, notes in held:
            moves.leave_leased(packed, notes)
            moves.enter_leased(packed, stored, structs.replace(notes, expires_at_us=expires_at_us))
        moves.finish()
        return [dataclasses.replace(lease, expires_at=expires_at_us / 1e6) for lease in leases]

    def _held(self, tr: Transaction, leases: list[LeaseRef]) -> Steps[list[Held]]:
        """Return packed position, stored value and notes of leased items. Raise if one of the leases is lost."""
        return self._held_alone(tr, leases[0]) if len(leases) == 1 else self._held_together(tr, leases)

    async def _held_alone(self, tr: Transaction, lease: LeaseRef) -> list[Held]:
        packed = pack(lease.position)
        value = await value_of(tr.get(self._layout.leased.key(packed)))
        if value.present():
            stored = bytes(value)
            try:
                notes = notes_of(stored)
            except FormatError as error:
                raise self._layout.unreadable_item(packed, error) from error
            if notes.token == lease.token:
                return [(packed, stored, notes)]
        raise await self._lost(tr, [lease.position])

    async def _held_together(self, tr: Transaction, leases: list[LeaseRef]) -> list[Held]:
        found = await held_by(tr, self._layout, leases)
        lost = [lease.position for lease, one in zip(leases, found, strict=True) if one is None]
        if lost:
            raise await self._lost(tr, lost)
        return list({one[0]: one for one in found if one is not None}.values())

    async def _lost(self, tr: Transaction, lost: list[Position]) -> LeaseLost:
        """Return the error of lost leases. It says why they are lost, if that is known."""
        layout = self._layout
        if told := await renamed(tr, layout):
            return LeaseLost(
                f"The lease of {_named(lost)} of {self._queue!r} is not under this name any more. {told}"
                " If the item was leased then, its lease is valid there: give it to the Leases of the new name.",
                lost=lost,
            )
        places = {pack(position): position for position in list(dict.fromkeys(lost))[:MOST_ASKED]}
        found = await Editing.why_lost(tr, layout, {packed: layout.completions.key(packed) for packed in places})
        reasons = {position: found[packed] for packed, position in places.items() if packed in found}
        known = "".join(f" {position.text}: {reason}" for position, reason in list(reasons.items())[:MOST_NAMED])
        return LeaseLost(
            f"The lease of {_named(lost)} of {self._queue!r} is lost: "
            + (
                f"a call by position took the item away.{known} Undo its work, or make the work repeatable."
                if known
                else f"{mostly_lost(*lost)}. Undo its work, or make the work repeatable. Extend leases whose work takes"
                " longer."
            ),
            lost=lost,
            reasons=reasons,
        )


def _named(lost: Sequence[Position]) -> str:
    more = f" and {len(lost) - MOST_NAMED:,} more" if len(lost) > MOST_NAMED else ""
    return ", ".join(map(str, lost[:MOST_NAMED])) + more


def mostly_lost(*lost: Position, taker: str = "another consumer took the item") -> str:
    """Return how leases are mostly lost, if no call has left a word of it.

    >>> mostly_lost(Position(1, bytes(8)), taker="another worker has the session").partition(", or ")[2]
    'the lease expired and another worker has the session'
    """
    # A call by position that changes an item's rank moves it, and no word is left in its old place.
    moved = " or it got another priority or rank," if any(one.rank is not None for one in lost) else ""
    return (
        "the item was acked or given back already, perhaps by a call that was cancelled,"
        f"{moved} or the lease expired and {taker}"
    )


async def held_by(
    tr: Transaction, layout: Layout, leases: Sequence[LeaseRef], *, keeps: bool = True
) -> list[Held | None]:
    """Return what each lease holds; None if it is lost.

    Args:
        leases: the leases.
        keeps: whether to conflict with a transaction that meanwhile ends one of these leases, or takes it away: on each
            of these keys and on nothing else.

    Raises:
        FormatError: an item can't be read.

    *Cost:* one read each, in parallel, or one of all.
    """
    places = [pack(lease.position) for lease in leases]
    found = await _read_leased(tr, layout.leased, sorted(set(places)), keeps)
    held: list[Held | None] = []
    for packed, lease in zip(places, leases, strict=True):
        stored = found.get(packed, b"")
        notes = layout.read_item(packed, stored, notes_of) if stored else None
        held.append(None if notes is None or notes.token != lease.token else (packed, stored, notes))
    return held


async def _read_leased(tr: Transaction, leased: Place, places: list[bytes], keeps: bool) -> dict[bytes, bytes]:
    if len(places) >= RANGE_READ_ITEMS:
        # Leases of one consumer are mostly adjacent, and one range read costs less than many reads of keys. By
        # snapshot: keys between them belong to others.
        limit = 2 * len(places)
        near = await rows(tr.snapshot, leased.key(places[0]), leased.key(places[-1]) + b"\x00", limit=limit)
        if len(near) < limit:
            for packed in places if keeps else ():
                tr.add_read_conflict_key(leased.key(packed))
            return {leased.packed(row.key): row.value for row in near}
    reader = tr if keeps else tr.snapshot
    reads: list[tuple[bytes, Any]] = [(packed, reader.get(leased.key(packed))) for packed in places]
    found = {}
    for packed, read in reads:
        value = await value_of(read)
        if value.present():
            found[packed] = bytes(value)
    return found
