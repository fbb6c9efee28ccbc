"""What is stored of subscriptions."""

from __future__ import annotations

from typing import Any

import msgspec

from fdbqueue import FormatError
from fdbqueue.lowlevel import UNREADABLE, Layout

VERSION = 1
NO_LOOK = -1
"""No number of items: a pointer that has it looks at everything next."""


class Registration(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A subscription, as it was registered."""

    version: int = msgspec.field(default=VERSION, name="v")
    """Of this format."""
    selector: str | None = msgspec.field(default="", name="s")
    """Its condition; None: a function, which only its consumers have."""
    suspended: bool = msgspec.field(default=False, name="p")
    credit: int | None = msgspec.field(default=None, name="c")
    """How many items its consumers may have at once; None: any number."""
    credit_bytes: int | None = msgspec.field(default=None, name="b")
    """How many bytes of payload."""
    owner: bytes = msgspec.field(default=b"", name="o")
    """Whose it is exclusively; b"": anybody's."""
    owned_until_us: int = msgspec.field(default=0, name="u")
    """Until when, unless that is renewed."""
    since_us: int = msgspec.field(default=0, name="t")
    """When it was registered."""

    @property
    def sole(self) -> bool:
        """Whether it is the only one and takes whatever is first, so that the queue's head is its pointer."""
        return bool(self.owner) and self.selector == ""


class Pointer(msgspec.Struct, frozen=True, gc=False):
    """How far a subscription has looked."""

    spans: list[tuple[bytes, bytes]]
    """What it has yet to look at."""
    seen: int
    """The version up to which it knows all arrivals."""
    unannounced: int
    """How many items had been enqueued without an announcement by then, or `NO_LOOK`."""
    at_us: int
    """When it was written."""
    version: int = VERSION


_encode = msgspec.msgpack.Encoder().encode
_registrations = msgspec.msgpack.Decoder(Registration)
_pointers = msgspec.msgpack.Decoder(Pointer)


def pack_record(record: Registration | Pointer) -> bytes:
    """Return what is stored."""
    return _encode(record)


def read_registration(layout: Layout, name: str, stored: bytes) -> Registration:
    """Return what was stored.

    Raises:
        FormatError: it can't be read.
    """
    found: Registration = _decoded(_registrations, layout, name, stored)
    return found


def read_pointer(layout: Layout, name: str, stored: bytes) -> Pointer:
    """Return what was stored.

    Raises:
        FormatError: it can't be read.
    """
    found: Pointer = _decoded(_pointers, layout, name, stored)
    return found


def _decoded(decoder: Any, layout: Layout, name: str, stored: bytes) -> Any:
    where = f"The subscription {name!r} of {layout.describe()}"
    try:
        record = decoder.decode(stored)
    except UNREADABLE as error:
        raise FormatError(f"{where} can't be read: {error}. Unsubscribe it, and subscribe again.") from error
    if record.version > VERSION:
        raise FormatError(f"{where} was written by a newer version of fdbqueue. Update fdbqueue here.")
    return record
