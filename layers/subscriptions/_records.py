"""The stored records of subscriptions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from fdbqueue import FormatError
from fdbqueue.lowlevel import Layout, fdb_tuple
from fdbqueue.stored.own_values import decoded

VERSION = 1
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


class BrowserPlace(SubscriptionPointer, frozen=True, gc=False, omit_defaults=True):
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


_encode = msgspec.msgpack.Encoder().encode
_registrations = msgspec.msgpack.Decoder(SubscriptionRecord)
_pointers = msgspec.msgpack.Decoder(BrowserPlace)


@lru_cache(maxsize=256)
def _packed(name: str) -> bytes:
    return bytes(fdb_tuple.pack((name,)))


def registration_key(layout: Layout, name: str) -> bytes:
    """Return the key of a subscription's registration."""
    prefix: bytes = layout.subscriptions.key()
    return prefix + _packed(name)


def pointer_key(layout: Layout, name: str) -> bytes:
    """Return the key of a subscription's pointer."""
    prefix: bytes = layout.pointers.key()
    return prefix + _packed(name)


def pack_record(record: SubscriptionRecord | SubscriptionPointer) -> bytes:
    """Return the bytes to store."""
    return _encode(record)


def read_registration(layout: Layout, name: str, stored: bytes) -> SubscriptionRecord:
    """Return the stored registration.

    Raises:
        FormatError: the registration can't be read.
    """
    found: SubscriptionRecord = _decoded(_registrations, layout, layout.subscriptions.pack((name,)), name, stored)
    return found


def read_pointer(layout: Layout, name: str, stored: bytes) -> BrowserPlace:
    """Return the stored pointer. That of a subscription has the defaults of a browser's place.

    Raises:
        FormatError: the pointer can't be read.
    """
    found: BrowserPlace = _decoded(_pointers, layout, pointer_key(layout, name), name, stored)
    return found


def _decoded(decoder: Any, layout: Layout, key: bytes, name: str, stored: bytes) -> Any:
    remedy = f"Unsubscribe {name!r}, and subscribe again."
    record = decoded(layout, key, stored, decoder.decode, remedy)
    if record.version > VERSION:
        raise FormatError(
            f"{_named(layout, name)} was written by a newer version of fdbqueue. Update fdbqueue here.", newer=True
        )
    return record


def _named(layout: Layout, name: str) -> str:
    return f"The subscription {name!r} of {layout.describe()}"
