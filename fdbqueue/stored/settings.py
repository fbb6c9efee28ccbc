"""Settings of a queue that its calls meet: what is stored under each key, and the one function that reads it.

=====================  =================================================  ===========================
key                    what it may hold                                   read by
=====================  =================================================  ===========================
``(True, "type")``     the mark of a smart queue, a quota, a rename       `terms_of`
``("stopped",)``       a pause, a rename                                  `pause_of`, `mark_of`
``(True,)``            the last index that was given, and the order       `HighWaterMark.stored`
the catalogue's        codec, order, policy                               `catalogue.read_about`
=====================  =================================================  ===========================

A rename is marked under two keys that calls read anyway, so a queue that was never renamed pays nothing. The old name
keeps its marks until it is cleared. The new name has them until all items are there (`verbs/renaming.py`).

A quota is where each enqueue reads the queue's type (`moves/admission.py`), so all processes know it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from fdbqueue.base.contributions import Contributions
from fdbqueue.base.position import Position
from fdbqueue.base.reprs import utc
from fdbqueue.engine.api import ReadTransaction, Transaction, Value
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps, value_of
from fdbqueue.errors import FormatError, QueuePaused, QueueRenamed
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import Layout, name_of
from fdbqueue.stored.names import name_text

T = TypeVar("T")


class _Form(Generic[T]):
    """How a setting is stored: what its bytes begin with, and its fields in MessagePack."""

    def __init__(self, kind: type[T], begin: bytes = b"") -> None:
        self._begin = begin
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def pack(self, value: T) -> bytes:
        """Return the bytes to store."""
        return self._begin + self._encode(value)

    def is_in(self, stored: bytes) -> bool:
        """Return whether stored bytes are of this form, also some that can't be read."""
        return stored[: len(self._begin)] == self._begin

    def read(self, stored: bytes) -> T:
        """Return the stored value. It raises what decoders of MessagePack raise."""
        return self._decode(stored[len(self._begin) :])


# --- parts of layers


Keys: TypeAlias = Callable[[Layout], Subspace]
"""Returns where a layer has some of its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnItems:
    """The items that a layer keeps apart from a queue's plain ones, as sessions do."""

    what: str
    """What has them, in words, as "sessions"."""
    items: Keys
    """Where they are. A copy, and whatever reads plain items only, refuses a queue that has some."""
    records: Keys
    """Where it has keys while such items may be there. A quota does not count these items, and a rename moves none."""
    seen: str
    """How a program sees and takes them: a sentence."""
    ends: str
    """How they end: a sentence."""
    refuses: Callable[[Transaction, Layout, list[Position], str], Steps[None]]
    """Raises a ValueError if one of some positions, which are no plain items', is that of such an item.

    It is given the verb that was called, as "cancel", so that it can name its own one.
    """
    heads: Callable[[Layout], Iterable[Layout]] = lambda _: ()
    """Returns the keys of further heads that its workers take from: a pause and a rename close them, too."""
    codec_key: Callable[[Layout], bytes] | None = None
    """Where it stores the name of a codec of its own. A damaged one goes when a codec is replaced."""


own_items: Contributions[OwnItems] = Contributions(sessions="fdbqueue.layers.sessions.session.records:OWN_ITEMS")


@dataclass(frozen=True, slots=True)
class RenamePart:
    """What a rename has to know of a layer's keys. It moves all that no part names, byte for byte."""

    what: str = ""
    """What knows the queue by its name, in words: a rename is refused while it is there."""
    stays: Keys | None = None
    """Where that is."""
    remedy: str = ""
    """A sentence: what to do about it. "{queue}" in it is the queue."""
    waits: tuple[Keys, ...] = ()
    """Where processes that wait for items have keys: these are not moved."""
    moved: Callable[[bytes, bytes, Layout, Layout], bytes] | None = None
    """Returns the value of any key under the new name, given key and value, and the old and the new name."""


rename_parts: Contributions[RenamePart] = Contributions(
    transfer="fdbqueue.transfer.copying:RENAME_PART",
    streams="fdbqueue.layers.streams.records:RENAME_PART",
    spark="fdbqueue.spark.sink_batches:RENAME_PART",
    groups="fdbqueue.layers.groups.group:RENAME_PART",
    blobs="fdbqueue.layers.blobs.blobs:RENAME_PART",
    staged="fdbqueue.layers.staged.requests:RENAME_PART",
    subscriptions="fdbqueue.layers.subscriptions.records:RENAME_PART",
)
owner_readers: Contributions[Callable[[bytes], int | None]] = Contributions(
    subscriptions="fdbqueue.layers.subscriptions.records:owned_until_us"
)
"""Return until when a stored subscription is exclusive; None: it is not, or it can't be read."""


def heads_of(layout: Layout) -> list[Layout]:
    """Return the keys of a queue, and those of further heads that workers take from. It imports layers."""
    return [layout, *(head for part in own_items.all().values() for head in part.heads(layout))]


# --- the mark of a rename


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the marks of a rename say."""

    old: bytes = msgspec.field(name="o")
    """The prefix of the old name."""
    new: bytes = msgspec.field(name="n")
    """The prefix of the new name."""
    at_us: int = msgspec.field(name="t")
    """When the rename began."""
    done: bool = msgspec.field(default=False, name="d")
    """Whether all items are under the new name."""
    type: bytes = msgspec.field(default=b"", name="k")
    """The type that the queue had; b"" for none."""
    paused: bytes = msgspec.field(default=b"", name="p")
    """The pause that the queue had; b"" for none."""

    @property
    def text(self) -> str:
        """The rename as a sentence."""
        old, new = (name_text(name_of(prefix)) for prefix in (self.old, self.new))
        return f"{old} was renamed to {new}" if self.done else f"{old} is being renamed to {new}"


_MARK = _Form(Mark, b"renamed")
pack_mark = _MARK.pack


def mark_of(stored: bytes) -> Mark | None:
    """Return the mark in a stored type or pause; None if it has none.

    Raises:
        FormatError: this version of the library can't read it.
    """
    if not _MARK.is_in(stored):
        return None
    try:
        return _MARK.read(stored)
    except UNREADABLE as error:
        raise FormatError(
            f"A mark of a rename can't be read, or is of a newer version of fdbqueue: {error}. Update fdbqueue here."
        ) from error


def keys_of_marks(layout: Layout) -> list[bytes]:
    """Return the keys that get the mark: of the queue, and of the further heads of its layers."""
    return [key for head in heads_of(layout) for key in (head.type_key, head.paused_key)]


def refuse_renamed(stored: bytes) -> None:
    """Refuse a call that has read a queue's type or pause.

    Raises:
        QueueRenamed: it is a mark.
    """
    mark = mark_of(stored)
    if mark is not None:
        raise refusal(mark)


def refusal(mark: Mark) -> QueueRenamed:
    """Return the error of a call that meets a mark."""
    old, new = name_of(mark.old), name_of(mark.new)
    if mark.done:
        remedy = f"Use the new name. To use the old one for another queue, clear it: Queue({old!r}).clear(db)."
    else:
        remedy = (
            "Wait until that has ended, and use the new name. If its process was killed, finish it:"
            f" fdbqueue.rename(db, {old!r}, {new!r})."
        )
    return QueueRenamed(f"The queue {mark.text}. Nothing was changed. {remedy}", name=new)


async def check_renamed(tr: ReadTransaction, layout: Layout) -> None:
    """Refuse the old name of a queue: for calls that write records of their own under it; by snapshot, for calls that
    read, when they find nothing. A rename takes all items away, so a call that finds some has the right name.

    Raises:
        QueueRenamed: the queue has another name now, or will have it in a moment.

    *Conflicts:* with a rename that begins, except by snapshot. *Cost:* one read.
    """
    value = await value_of(tr.get(layout.type_key))
    if value.present():
        refuse_renamed(bytes(value))


async def read_mark(tr: ReadTransaction, layout: Layout) -> Mark | None:
    """Return the mark of a queue; None if it has none. One read."""
    value = await value_of(tr.get(layout.type_key))
    return mark_of(bytes(value)) if value.present() else None


async def renamed(tr: Transaction, layout: Layout) -> str:
    """Return a sentence about the queue's new name; "" if it has none. One read by snapshot."""
    mark = await read_mark(tr.snapshot, layout)
    return "" if mark is None or mark.old != layout.prefix else f"The queue {mark.text}."


# --- the type: a smart queue, a quota

WhenFull: TypeAlias = Literal["refuse", "wait"]
LEAST_BYTES = 1_000_000
"""The smallest quota of bytes: a cluster's estimate of less says little."""
SMART = b"smart"
"""The stored type of a smart queue."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a queue may have, and what an enqueue of more does. At least one of the limits is given.

    Raises:
        TypeError: a limit is no integer, or both are None.
        ValueError: `items` is less than 1, `size_bytes` less than 1,000,000, or `when_full` is not one of the choices.

    >>> from fdbqueue import Quota
    >>> Quota(1_000).when_full
    'refuse'
    """

    items: int | None = None
    """How many items there may be, in all states, dead letters included; None: any number."""
    when_full: WhenFull = "refuse"
    """"refuse": it raises `QueueFull`. "wait": given a database, it waits for room; in a transaction it is refused."""
    size_bytes: int | None = None
    """About how many bytes the queue's keys and values may have; None: any number."""

    def __post_init__(self) -> None:
        if self.items is None and self.size_bytes is None:
            raise TypeError("A quota has a number of items, or of bytes, or both: Quota(1_000).")
        _check(self.items, 1, "items, as 1_000", "To close a queue, pause its producers.")
        _check(self.size_bytes, LEAST_BYTES, "bytes, as 10**9", "A cluster only estimates a size.")
        if self.when_full not in get_args(WhenFull):
            raise ValueError(f"when_full is 'refuse' or 'wait', not {self.when_full!r}.")

    @property
    def text(self) -> str:
        """The quota in words."""
        limits = [] if self.items is None else [f"at most {self.items:,} items"]
        limits += [] if self.size_bytes is None else [f"about {self.size_bytes:,} bytes"]
        return f"{' and '.join(limits)}, then {self.when_full}"


def _check(given: object, least: int, unit: str, why: str) -> None:
    if given is None:
        return
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"A quota is a whole number of {unit}, not {given!r}.")
    if not least <= given < 1 << 63:
        raise ValueError(f"A quota of {unit.partition(',')[0]} is at least {least:,}, not {given:,}. {why}")


class _StoredQuota(msgspec.Struct, frozen=True, omit_defaults=True):
    items: int | None = msgspec.field(name="i")
    when_full: WhenFull = msgspec.field(name="w")
    size_bytes: int | None = msgspec.field(name="b", default=None)


_QUOTA = _Form(_StoredQuota, b"quota")
is_quota = _QUOTA.is_in
_SET_AGAIN = "If it is a quota, set it again: Queue.set_quota."


def pack_quota(quota: Quota) -> bytes:
    """Return the bytes to store as the queue's type."""
    return _QUOTA.pack(_StoredQuota(quota.items, quota.when_full, quota.size_bytes))


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """The terms on which items enter a queue: what the key ``(True, "type")`` says."""

    smart: bool = False
    """Whether each item has to pass the checks of the queued ones."""
    quota: Quota | None = None
    mark: Mark | None = None
    """The queue was renamed, or is being renamed."""

    @classmethod
    @lru_cache(maxsize=1_000)
    def parse(cls, stored: bytes) -> QueueTerms:
        """Parse the value of the key. Each value is parsed once in a process.

        Raises:
            FormatError: this version of the library can't read it.
        """
        if (mark := mark_of(stored)) is not None:
            return cls(mark=mark)
        if not is_quota(stored):
            return cls(smart=True)
        found = _QUOTA.read(stored)
        return cls(quota=Quota(found.items, found.when_full, found.size_bytes))

    def check(self) -> None:
        """Refuse a queue that has another name now.

        Raises:
            QueueRenamed: it has.
        """
        if self.mark is not None:
            raise refusal(self.mark)


NO_TERMS = QueueTerms()


def terms_of(layout: Layout, stored: bytes) -> QueueTerms:
    """Return what a stored type says; b"" if there is none.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return layout.decode(layout.type_key, stored, QueueTerms.parse, _SET_AGAIN) if stored else NO_TERMS


async def read_terms(tr: ReadTransaction, layout: Layout) -> QueueTerms:
    """Return the terms on which items enter a queue. One read.

    Raises:
        FormatError: this version of the library can't read them.
    """
    value = await value_of(tr.get(layout.type_key))
    return terms_of(layout, bytes(value)) if value.present() else NO_TERMS


# --- pauses: calls that take items find none, while producers and acks go on


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a queue, when and why."""

    by: str
    """Who paused it; host name and process id by default."""
    reason: str
    """Why; "" if none was given."""
    since: float
    """When, in seconds by the clock of that process."""

    @property
    def text(self) -> str:
        """The pause in one line."""
        told = f"by {self.by} since {utc(self.since)} UTC" if self.by else f"since {utc(self.since)} UTC"
        return f"{told}: {self.why}" if self.why else told

    @property
    def why(self) -> str:
        """The reason in one line."""
        return " ".join(self.reason.split())


class _StoredPause(msgspec.Struct, frozen=True):
    by: str = msgspec.field(name="b")
    reason: str = msgspec.field(name="r")
    at_us: int = msgspec.field(name="t")


_PAUSE = _Form(_StoredPause)


def pack_pause(by: str, reason: str, now_us: int) -> bytes:
    """Return the bytes to store while a queue is paused."""
    return _PAUSE.pack(_StoredPause(by, reason, now_us))


def pause_of(layout: Layout, stored: bytes) -> Pause:
    """Return a stored pause; a rename is told as one.

    Raises:
        FormatError: this version of the library can't read it.
    """
    return layout.decode(layout.paused_key, stored, _pause, "It is a pause. Resume the queue.")


def _pause(stored: bytes) -> Pause:
    mark = mark_of(stored)
    if mark is not None:
        return Pause("", mark.text, mark.at_us / 1e6)
    found = _PAUSE.read(stored)
    return Pause(found.by, found.reason, found.at_us / 1e6)


async def read_pause(tr: ReadTransaction, layout: Layout) -> Pause | None:
    """Return who paused a queue; None if it is not paused.

    Raises:
        FormatError: this version of the library can't read it.
    """
    value = await value_of(tr.get(layout.paused_key))
    return pause_of(layout, bytes(value)) if value.present() else None


def paused_error(layout: Layout, pause: Pause) -> QueuePaused:
    """Return the error of a call that a pause refuses."""
    why = f": {pause.why}" if pause.why else ""
    return QueuePaused(
        f"The queue {layout.describe()} is paused, by {pause.by}{why}. Nothing was taken. Call Queue.resume, or wait"
        " until it is resumed.",
        by=pause.by,
        reason=pause.reason,
    )


# --- the high-water mark

_ORDERED = b"\xff"  # no index begins so, and `byte_max` keeps it


class HighWaterMark(msgspec.Struct, frozen=True):
    """A queue's stored high-water mark."""

    index: int
    """Indices up to this one are never given again; 0: the mark says nothing."""
    order: str | None
    """The name of the queue's order; None: it is first in, first out, or nothing was ever enqueued."""

    @classmethod
    def parse(cls, value: Value) -> HighWaterMark:
        """Parse the value that was read of the mark's key."""
        return cls.stored(bytes(value) if value.present() else b"")

    @classmethod
    def stored(cls, stored: bytes) -> HighWaterMark:
        """Parse a stored mark; b"" if there is none."""
        if stored.startswith(_ORDERED):
            return cls(int.from_bytes(stored[1:9], "big"), stored[9:].decode("utf-8", "replace"))
        return cls(int.from_bytes(stored, "big"), None)

    def packed(self) -> bytes:
        """Return the bytes to store, by `byte_max`."""
        index = self.index.to_bytes(8, "big")
        return index if self.order is None else _ORDERED + index + self.order.encode()


async def read_high_water_mark(tr: Transaction, layout: Layout) -> HighWaterMark:
    """Read the high-water mark by snapshot."""
    return HighWaterMark.parse(await value_of(tr.snapshot.get(layout.high_water_mark_key)))
