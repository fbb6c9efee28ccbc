"""The stored records of subscriptions, and what is read of them: credit, stats, how far one has looked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, TypeVar

import msgspec

from fdbqueue import FormatError
from fdbqueue.engine.api import Value
from fdbqueue.engine.keys import is_within
from fdbqueue.lowlevel import UNREADABLE, Layout, Shown, Transaction, fdb_tuple, rows, started, value_of, within
from fdbqueue.stored.items import kept_size_of
from fdbqueue.stored.settings import RenamePart

# The stored records of subscriptions.

VERSION = 1
DISPATCHER = ""
"""The name of the dispatcher's pointer; no subscription has it."""
NO_LOOK = -1
"""In place of a number of items: a subscription with this pointer looks at everything next."""


Browses: TypeAlias = Literal["", "named", "passing"]


class SubscriptionRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The registration of a subscription."""

    version: int = msgspec.field(default=VERSION, name="v")
    """Version of this format."""
    selector: str | None = msgspec.field(default="", name="s")
    """Its condition; None: a function, which only its consumers know."""
    suspended: bool = msgspec.field(default=False, name="p")
    credit: int | None = msgspec.field(default=None, name="c")
    """How many items its consumers may hold at once; None: no limit."""
    credit_bytes: int | None = msgspec.field(default=None, name="b")
    """How many bytes of payload they may hold at once; None: no limit."""
    owner: bytes = msgspec.field(default=b"", name="o")
    """Token of its exclusive owner; b"": it is not exclusive."""
    owned_until_us: int = msgspec.field(default=0, name="u")
    """Time at which ownership ends unless it is renewed."""
    since_us: int = msgspec.field(default=0, name="t")
    """Time of its registration."""

    browser: Browses = msgspec.field(default="", name="w")
    """"" for consumers. A browser takes nothing: "named" keeps its place, "passing" ends with its process."""

    @property
    def exclusive_all(self) -> bool:
        """Whether it is exclusive and has no selector: the head of the queue is then its pointer."""
        return bool(self.owner) and self.selector == ""


class _Owned(msgspec.Struct):
    """What a record of any version says of its owner."""

    owner: bytes = msgspec.field(default=b"", name="o")
    owned_until_us: int = msgspec.field(default=0, name="u")


_owned = msgspec.msgpack.Decoder(_Owned).decode


def owned_until_us(stored: bytes) -> int | None:
    """Return until when a subscription is exclusive; None: it is not, or its own consumers get the error."""
    try:
        found = _owned(stored)
    except UNREADABLE:
        return None
    return found.owned_until_us if found.owner else None


class SubscriptionPointer(msgspec.Struct, frozen=True, gc=False):
    """How far a subscription has looked."""

    spans: list[tuple[bytes, bytes]]
    """The spans that it has yet to look at."""
    seen: int
    """The version up to which it knows all arrivals."""
    unannounced: int
    """How many items had been enqueued without an arrival record by then, or `NO_LOOK`."""
    at_us: int
    """Time at which the pointer was written."""
    version: int = VERSION


class BrowserPointer(SubscriptionPointer, frozen=True, gc=False, omit_defaults=True):
    """How far a browser has told. It tells the scan first, and then the arrivals in commit order."""

    keep_us: int = 0
    """Arrivals that it has yet to tell are kept for so long after `at_us`; 0: as long as those of subscriptions."""
    scan: bytes | None = None
    """The packed position from which the scan goes on; None: it is done."""
    scan_end: bytes = b""
    """The packed position of the last item of the scan."""
    after: bytes = b""
    """The key of the last arrival that was told completely; b"": all up to the version `seen` were."""
    within: bytes = b""
    """The packed position from which the next arrival's span goes on."""


R = TypeVar("R", "SubscriptionRecord", "BrowserPointer")
_encode = msgspec.msgpack.Encoder().encode
_registrations = msgspec.msgpack.Decoder(SubscriptionRecord)
_pointers = msgspec.msgpack.Decoder(BrowserPointer)


@lru_cache(maxsize=256)
def _packed(name: str) -> bytes:
    return bytes(fdb_tuple.pack((name,)))


def registration_key(layout: Layout, name: str) -> bytes:
    """Return the key of a subscription's registration."""
    return layout.subscriptions.key() + _packed(name)


def pointer_key(layout: Layout, name: str) -> bytes:
    """Return the key of a subscription's pointer."""
    return layout.pointers.key() + _packed(name)


def pack_record(record: SubscriptionRecord | SubscriptionPointer) -> bytes:
    """Return the bytes to store."""
    return _encode(record)


def read_registration(layout: Layout, name: str, stored: bytes) -> SubscriptionRecord:
    """Return the stored registration.

    Raises:
        FormatError: the registration can't be read.
    """
    return _decoded(_registrations, layout, registration_key(layout, name), name, stored)


async def record_in(layout: Layout, name: str, reading: Value) -> SubscriptionRecord | None:
    """Return the registration that a read of its key finds; None if there is none. Otherwise as `read_registration`."""
    stored = await value_of(reading)
    return read_registration(layout, name, bytes(stored)) if stored.present() else None


def read_pointer(layout: Layout, name: str, stored: bytes) -> BrowserPointer:
    """Return the stored pointer. That of a subscription has the defaults of a browser's.

    Raises:
        FormatError: the pointer can't be read.
    """
    return _decoded(_pointers, layout, pointer_key(layout, name), name, stored)


def _decoded(decoder: msgspec.msgpack.Decoder[R], layout: Layout, key: bytes, name: str, stored: bytes) -> R:
    record = layout.decode(key, stored, decoder.decode, f"Unsubscribe {name!r}, and subscribe again.")
    if record.version > VERSION:
        raise FormatError(
            f"The subscription {name!r} of {layout.describe()} was written by a newer version of fdbqueue. Update"
            " fdbqueue here.",
            newer=True,
        )
    return record


# Credit: how much more a subscription may deliver.
#
# There is no counter: credit is the limit less the items that the consumers hold. (docs/adr/0067)


@dataclass(frozen=True, slots=True, repr=False)
class Credit(Shown):
    """How many more items and bytes a subscription may deliver; None: no limit."""

    items: int | None
    size_bytes: int | None

    def less(self, stored: bytes) -> Credit | None:
        """Return what is left after this item; None if the item exceeds it."""
        items = None if self.items is None else self.items - 1
        size_bytes = None if self.size_bytes is None else self.size_bytes - kept_size_of(stored)
        return None if min(items or 0, size_bytes or 0) < 0 else Credit(items, size_bytes)


NO_LIMIT = Credit(None, None)


async def credit_left(tr: Transaction, layout: Layout, name: str, registration: SubscriptionRecord) -> Credit:
    """Return the credit that a subscription has left.

    The read is a snapshot read. A concurrent lease of the same subscription conflicts anyway, and an item that comes
    back at the same time only adds credit.
    """
    if registration.credit is None and registration.credit_bytes is None:
        return NO_LIMIT
    held = await rows(tr.snapshot, *within(layout.held[name].key()))
    items, size_bytes = registration.credit, registration.credit_bytes
    held_bytes = sum(int.from_bytes(row.value, "little") for row in held)
    return Credit(
        None if items is None else max(0, items - len(held)),
        None if size_bytes is None else max(0, size_bytes - held_bytes),
    )


# Stats of subscriptions: their terms, and the items that their consumers hold.


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionStats(Shown):
    """The terms of one subscription, and the items that its consumers hold."""

    name: str
    selector: str | None
    """Its condition, "" for none; None: a function."""
    suspended: bool
    credit: int | None
    """How many items its consumers may hold at once; None: no limit."""
    credit_bytes: int | None
    """How many bytes they may hold at once; None: no limit."""
    held: int
    """How many items they hold."""
    held_bytes: int
    """How many bytes they hold."""
    exclusive: bool
    """Whether a process owns it now."""
    browser: bool = False
    """Whether it is a browser, which takes nothing (`Subscriptions.follow`)."""


async def read_page(
    tr: Transaction, layout: Layout, now_us: int, *, after: str | None, limit: int
) -> list[SubscriptionStats]:
    """Read the stats of up to `limit` subscriptions by name, 0 for all, beginning after the name `after`."""
    span = layout.subscriptions.range()
    begin = span.start if after is None else registration_key(layout, after) + b"\x00"
    page = await rows(tr.snapshot, begin, span.stop, limit=limit)
    found = {
        name: read_registration(layout, name, row.value) for (name,), row in layout.own_rows("subscriptions", page)
    }
    held = await _held(tr, layout, min(found), max(found)) if found else {}
    return [_stats(name, one, now_us, held) for name, one in found.items()]


async def read_one(tr: Transaction, layout: Layout, now_us: int, name: str) -> SubscriptionStats | None:
    """Read the stats of one subscription; None if it is not registered."""
    held = started(_held(tr, layout, name, name))
    found = await record_in(layout, name, tr.snapshot.get(registration_key(layout, name)))
    return None if found is None else _stats(name, found, now_us, await held)


async def count_registrations(tr: Transaction, layout: Layout, *, limit: int) -> int:
    """Count the subscriptions, up to `limit`."""
    span = layout.subscriptions.range()
    return len(await rows(tr.snapshot, span.start, span.stop, limit=limit))


Held = dict[str, tuple[int, int]]
"""For each subscription: how many items, and how many bytes, its consumers hold."""


def _stats(name: str, one: SubscriptionRecord, now_us: int, held: Held) -> SubscriptionStats:
    exclusive = bool(one.owner) and one.owned_until_us > now_us
    terms = (one.selector, one.suspended, one.credit, one.credit_bytes)
    return SubscriptionStats(name, *terms, *held.get(name, (0, 0)), exclusive, bool(one.browser))


async def _held(tr: Transaction, layout: Layout, first: str, last: str) -> Held:
    """Read the items that consumers hold, for all subscriptions from a first to a last name, in one range read."""
    held: Held = {}
    found = await rows(tr.snapshot, layout.held[first].range().start, layout.held[last].range().stop)
    for (name, _), row in layout.own_rows("held", found):
        items, size_bytes = held.get(name, (0, 0))
        held[name] = items + 1, size_bytes + int.from_bytes(row.value, "little")
    return held


# How far a subscription has looked, and whether it is suspended, for monitoring.

BEHIND_ALL = b"\xff"
"""Behind every packed position: a subscription that has looked at all of its spans."""


def looks_from(layout: Layout, name: str, stored: bytes) -> bytes:
    """Return the packed position from which on a subscription has looked at nothing, from its stored pointer.

    Raises:
        FormatError: this version of the library can't read it.
    """
    spans = read_pointer(layout, name, stored).spans
    return spans[-1][0] if spans else BEHIND_ALL


def is_suspended(layout: Layout, name: str, stored: bytes) -> bool:
    """Return whether a subscription is suspended, from its stored registration.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return read_registration(layout, name, stored).suspended


def _moved(key: bytes, value: bytes, old: Layout, new: Layout) -> bytes:
    """Return the value of a key under another name. The pointer of a browser names a key of the queue."""
    if not is_within(key, old.pointers.key()):
        return value
    pointer = msgspec.msgpack.decode(value)
    after = pointer.get("after", b"")
    if not is_within(after, old.prefix):
        return value
    return msgspec.msgpack.encode({**pointer, "after": new.prefix + after[len(old.prefix) :]})


RENAME_PART = RenamePart(waits=(lambda layout: layout.waiting,), moved=_moved)
"""What a rename knows of subscriptions."""
