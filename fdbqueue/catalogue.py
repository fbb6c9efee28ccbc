"""The catalogue: which queues a database has, so that people and tools find them.

A queue registers itself when something is enqueued into it. Its record has a key of its own, outside the queue: all
records together are one short range, however large the queues are. A queue's object knows that its queue is registered
for a minute, so that an enqueue costs nothing more. When it does not know, the enqueue reads the record by snapshot,
together with its other reads. If there is none, it writes one in the enqueueing transaction. It is an atomic operation:
of two processes that do this at the same time the first record stays, and neither conflicts.

The record goes with the queue's `clear`. A process that still believes the queue to be registered finds that out within
a minute. A queue that is not registered works as any other.
"""

from __future__ import annotations

import json
import time
from typing import Any
from weakref import ref

import msgspec

from fdbqueue.codecs import UNREADABLE
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import Steps
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.layout import Layout

KNOWN_SECONDS = 60.0
"""How long a queue's object relies on having seen the queue's record."""
FORMATS = ("json", "msgpack", "str", "tuple")
"""Codecs whose bytes another of these codecs does not read, or reads as other values."""
_NEWER = 2


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a queue's record says. Fields of newer versions are ignored."""

    codec: str = msgspec.field(name="c")
    """The name of its codec."""
    order: str = msgspec.field(default="", name="o")
    """The name of its order; "": first in, first out."""
    policy: str = msgspec.field(default="", name="p")
    """Its leases, as text; "" if they have no policy."""
    path: tuple[str, ...] = msgspec.field(default=(), name="d")
    """Its path in the directory layer; empty if it is in none."""
    format: int = msgspec.field(default=1, name="f")
    """The version of this format."""


class Registration:
    """What a queue's object would register, and what it knows of the record."""

    __slots__ = ("codec", "known_in", "known_until", "order", "path", "policy")

    def __init__(self, codec: str, order: str | None, path: tuple[str, ...], policy: str = "") -> None:
        self.codec = codec
        self.order = order or ""
        self.path = path
        self.policy = policy
        self.known_until = 0.0
        """Until this time the object relies on the record being there."""
        self.known_in: Any = _nothing
        """A weak reference to the database that has it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Registration, (self.codec, self.order, self.path, self.policy)

    @property
    def about(self) -> About:
        """The record."""
        return About(self.codec, self.order, self.policy, self.path)


def name_text(name: tuple[Any, ...] | bytes) -> str:
    """Return a queue's name as the command line takes it.

    >>> name_text(("orders",)), name_text(("shop", 7))
    ('orders', '["shop", 7]')
    """
    if isinstance(name, bytes):
        return repr(name)
    if len(name) == 1 and isinstance(name[0], str) and name[0] and not name[0].startswith("["):
        return name[0]
    if all(isinstance(part, str | int) and not isinstance(part, bool) for part in name):
        return json.dumps(list(name), ensure_ascii=False)
    return repr(name)


def name_of(prefix: bytes) -> tuple[Any, ...] | bytes:
    """Return the key tuple of a queue's prefix; the prefix itself if it is no tuple."""
    try:
        name: tuple[Any, ...] = fdb_tuple.unpack(prefix)
    except (ValueError, IndexError):
        return prefix
    return name


def path_of(name: object) -> tuple[str, ...]:
    """Return the path of a directory that a queue is named by; empty for other names."""
    path = getattr(name, "get_path", None)
    return () if path is None else tuple(map(str, path()))


def _nothing() -> None:
    return None


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(About)


def pack_about(created_us: int, about: About) -> bytes:
    """Return the bytes to store. Their order is that of the times, so that `byte_min` keeps the first record."""
    return created_us.to_bytes(8, "big") + _encode(about)


def read_about(layout: Layout, stored: bytes) -> tuple[int, About]:
    """Return the time of a registration in microseconds, and what it says.

    Raises:
        FormatError: this version of the library can't read it.
    """
    try:
        about = _decoder.decode(stored[8:])
    except UNREADABLE as error:
        raise FormatError(
            f"The registration of {layout.describe()} can't be read: {error}. Register the queue again."
        ) from error
    if about.format >= _NEWER:
        raise FormatError(
            f"The queue {layout.describe()} was registered by a newer version of fdbqueue. Update it here."
        )
    return int.from_bytes(stored[:8], "big"), about


def is_known(tr: Transaction, own: Registration) -> bool:
    """Return whether this object has seen the queue's record in this database within the last minute."""
    return own.known_until > time.monotonic() and own.known_in() is getattr(tr, "db", None)


def note_registered(tr: Transaction, layout: Layout, value: Any) -> Steps[None]:
    """Register a queue unless it is registered already; `value` is the read of its record, under way.

    Raises:
        CodecError: it is registered with another codec.
    """
    own: Registration | None = layout.registration
    if own is None:
        return
    stored = yield value
    if not stored.present():
        # Whether this transaction commits is not known here. So the next enqueue reads the record again.
        write_about(tr, layout, own.about)
        return
    check_codec(layout, bytes(stored))
    db = getattr(tr, "db", None)
    own.known_until, own.known_in = time.monotonic() + KNOWN_SECONDS, _nothing if db is None else ref(db)


def write_about(tr: Transaction, layout: Layout, about: About) -> None:
    """Write a queue's record unless there is one. An atomic operation never conflicts."""
    tr.byte_min(layout.catalogue_key, pack_about(time.time_ns() // 1_000, about))


def set_about(tr: Transaction, layout: Layout) -> Steps[None]:
    """Write a queue's record as its object has it. A queue that was registered keeps the time of that."""
    own: Registration | None = layout.registration
    if own is None:
        raise TypeError(f"{layout.describe()} has no codec to register: call register of its Queue.")
    stored = yield tr.get(layout.catalogue_key)
    created_us = time.time_ns() // 1_000
    if stored.present():
        created_us = int.from_bytes(bytes(stored)[:8], "big")
    tr.set(layout.catalogue_key, pack_about(created_us, own.about))


def forget_queue(tr: Transaction, layout: Layout) -> None:
    """Remove a queue's record."""
    tr.clear(layout.catalogue_key)
    doubt(layout)


def doubt(layout: Layout) -> None:
    """Let the next enqueue of this object read the queue's record again."""
    if layout.registration is not None:
        layout.registration.known_until = 0.0


def check_codec(layout: Layout, stored: bytes) -> None:
    """Refuse a codec that does not read the queue's items.

    Raises:
        CodecError: the queue is registered with another codec.
    """
    own: Registration | None = layout.registration
    if own is None or own.codec not in FORMATS:
        return
    try:
        _, about = read_about(layout, stored)
    except FormatError:
        return  # it says nothing that can be relied on; a list of queues reports it
    if about.codec in FORMATS and about.codec != own.codec:
        raise CodecError(
            f"The queue {layout.describe()} is registered with the codec {about.codec!r}, and this object has"
            f" {own.codec!r}. Nothing was changed. Give codec={about.codec!r}, or open it by Queue.open(db, name). If"
            " the registration is wrong, correct it by Queue(name, codec=…).register(db)."
        )
