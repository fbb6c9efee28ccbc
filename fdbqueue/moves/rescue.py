"""What an item's keys say of it: its notes, for a call that takes away an item whose envelope can't be read.

A damaged item is removed, or becomes a dead letter, like any other: its completion and its group end, and its entries
in the smart index, its deadlines, copies, timers and credit go with it. Its notes name all of these, but can't be read.
The keys themselves hold the item's position:

====================  ==============================================================================
its completion        a key of its own, read at once
its group             one look for each group of the queue
its subscription      one look for each subscription that has items
copies                one look for each recipient
index and deadlines   a scan of the entries of all items
timers                a scan of all timers, which also tell its delay and its time to live
====================  ==============================================================================

Nothing more is written for a healthy item. A reverse key would cost each item of a group or a smart queue one more key
in the transaction that enqueues it and in the one that ends it. A damaged item is rare, so its removal pays instead.

The follow-ups of such an item are named in its notes only. They stay held, until a call by position releases or cancels
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import structs

from fdbqueue.base.times import HELD_US
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import Subspace, behind, below
from fdbqueue.engine.steps import rows, started, value_of
from fdbqueue.errors import FormatError
from fdbqueue.moves.ends import PENDING, OutcomeRecord, group_keys
from fdbqueue.stored.items import Notes, salvaged_notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.shapes import Due

KEEP_S = 3_600
"""How many seconds the outcome of such an item is kept. Its own number is lost; this one is the default."""
MOST_KEYS = 100_000
"""So many entries and timers one transaction looks at. `check` names what is left beyond."""
MOST_NAMES = 1_000
"""So many groups, subscriptions or recipients one transaction asks."""
PAGE_KEYS = 10_000
_KINDS = {b"\x02%b\x00" % kind.encode(): kind for kind in (Due.LEASE, Due.DELAY, Due.TTL)}


class FoundNotes(NamedTuple):
    """The notes of an item that a call takes away."""

    notes: Notes
    is_readable: bool
    """Whether they are its own. Otherwise its keys told them."""


async def found_notes(
    tr: Transaction, layout: Layout, home: Layout, stored: Mapping[bytes, bytes], address: Callable[[bytes], bytes]
) -> dict[bytes, FoundNotes]:
    """Return the notes of items, by their packed positions. Of one that can't be read, return what its keys say.

    Args:
        layout: the items' keys.
        home: where their outcomes and groups are kept.
        stored: their stored bytes, by packed position.
        address: returns how an item is named in `home`.

    *Conflicts:* none. It reads by snapshot: these keys change only together with the item, which the caller has read.
    *Cost:* none for items that can be read. For others about two reads for each group, subscription with leased items
    and recipient of the queue, and one scan of the smart index, the deadlines and the timers, up to 100,000 keys.
    """
    found: dict[bytes, FoundNotes] = {}
    lost: list[bytes] = []
    for packed, value in stored.items():
        notes, is_readable = salvaged_notes(value)
        found[packed] = FoundNotes(notes, is_readable)
        if not is_readable:
            lost.append(packed)
    if lost:
        told = await _told_by_keys(tr, layout, home, {packed: address(packed) for packed in lost})
        # What is left of its own notes is better than what its keys tell: of a newer version it may be all.
        found |= {packed: FoundNotes(_merged(found[packed].notes, notes), False) for packed, notes in told.items()}
    return found


def _merged(own: Notes, told: Notes) -> Notes:
    """Return an item's own notes, with what its keys tell in place of fields that are lost."""
    lost = [name for name in Notes.__struct_fields__ if not getattr(own, name)]
    return structs.replace(own, **{name: getattr(told, name) for name in lost})


async def _told_by_keys(
    tr: Transaction, layout: Layout, home: Layout, addresses: Mapping[bytes, bytes]
) -> dict[bytes, Notes]:
    told: dict[bytes, dict[str, Any]] = {packed: {} for packed in addresses}
    completions = [(packed, tr.snapshot.get(home.completions.key(at))) for packed, at in addresses.items()]
    scanned = started(scanned_notes(tr, layout, set(addresses)))
    for packed, read in completions:
        value = await value_of(read)
        if value.present():
            told[packed] |= _of_record(home, home.completions.key(addresses[packed]), bytes(value))
    for name, _ in await _below(tr, home, "groups"):
        members = group_keys(home, name).members
        for packed in await _there(tr, members, addresses):
            told[packed]["group"] = name
    own = {packed: packed for packed in addresses}
    for name, prefix in await _below(tr, layout, "held"):
        for packed in await _there(tr, prefix, own):
            told[packed]["subscription"] = name
    beside, times = await scanned
    for family in ("copies", "unsent"):
        for _, prefix in await _below(tr, layout, family):
            for packed in await _there(tr, prefix, own):
                beside.setdefault(packed, []).append(prefix[len(layout.prefix) :])
    for packed, parts in beside.items():
        told[packed]["beside"] = tuple(parts)
    for packed, changes in times.items():
        told[packed] |= changes
    return {packed: Notes(**changes) for packed, changes in told.items()}


def _of_record(home: Layout, key: bytes, stored: bytes) -> dict[str, Any]:
    """Return what an item's pending outcome says of its notes."""
    try:
        record = OutcomeRecord.read(home, key, stored)
    except FormatError:
        return {"keep_s": KEEP_S}  # the item's end replaces it
    return {"keep_s": KEEP_S, "ttl_at_us": record.until_us} if record.how == PENDING else {}


async def scanned_notes(
    tr: Transaction, layout: Layout, wanted: set[bytes]
) -> tuple[dict[bytes, list[bytes]], dict[bytes, dict[str, Any]]]:
    """Return the parts of the dependent keys of items, and what their timers say, by packed position."""
    sizes = {len(packed) for packed in wanted}
    left = MOST_KEYS

    def owner(key: bytes) -> bytes:
        return next((key[-size:] for size in sizes if key[-size:] in wanted), b"")

    beside: dict[bytes, list[bytes]] = {}
    times: dict[bytes, dict[str, Any]] = {}
    for space in (layout.smart, layout.deadlines, layout.timers):
        begin, end = below(space.key())
        while left > 0:
            found = await rows(tr.snapshot, begin, end, limit=min(left, PAGE_KEYS))
            left -= len(found)
            for row in found:
                key, kind = row.key, ""
                if space is layout.timers:
                    tail = key[key.rfind(b"\x02") :]
                    kind, key = _KINDS.get(tail, ""), key[: -len(tail)]
                packed = owner(key)
                if packed and kind:
                    times.setdefault(packed, {}).update(_of_timer(layout, row.key, kind))
                elif packed and space is not layout.timers:
                    beside.setdefault(packed, []).append(key[len(layout.prefix) : -len(packed)])
            if len(found) < PAGE_KEYS:
                break
            begin = found[-1].key + b"\x00"
    return beside, times


def _of_timer(layout: Layout, key: bytes, kind: str) -> dict[str, Any]:
    """Return what a timer says of its item's notes."""
    timer = layout.timer_of(key)
    if timer is None:
        return {}
    at_us = timer[0]
    if kind == Due.DELAY:
        return {"visible_at_us": at_us, "held": at_us >= HELD_US}
    return {"expires_at_us" if kind == Due.LEASE else "ttl_at_us": at_us}


async def _below(tr: Transaction, layout: Layout, family: str) -> list[tuple[Any, bytes]]:
    """Return the first parts of the keys of a family, and their prefixes. One read jumps over each one's keys."""
    space: Subspace = getattr(layout, family)
    begin, end = below(space.key())
    found: list[tuple[Any, bytes]] = []
    while len(found) < MOST_NAMES:
        first = await layout.first_own(tr.snapshot, family, begin, end)
        if first is None:
            break
        name = first[0][0]
        found.append((name, space[name].key()))
        begin = behind(space[name].key())
    return found


async def _there(tr: Transaction, prefix: bytes, wanted: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the packed positions whose addresses are behind a prefix, all read at once."""
    reads = [(packed, tr.snapshot.get(prefix + at)) for packed, at in wanted.items()]
    found = []
    for packed, read in reads:
        value = await value_of(read)
        if value.present():
            found.append(packed)
    return found
