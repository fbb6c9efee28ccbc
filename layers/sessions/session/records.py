"""What is stored of a session and of a gate: records, pointers, and the keys. The checks of their names and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from fdbqueue import FormatError
from fdbqueue.base.arguments import check_whole, surrogate
from fdbqueue.base.deprecation import deprecated
from fdbqueue.base.typed import filled_by_slots
from fdbqueue.engine.keys import NOT_A_TUPLE
from fdbqueue.lowlevel import (
    NO_NOTES,
    UNREADABLE,
    KeyValue,
    Layout,
    Notes,
    Place,
    Subspace,
    Transaction,
    envelope,
    fdb_tuple,
    parse,
    within,
)
from fdbqueue.stored.names import session_told
from fdbqueue.stored.settings import OwnItems

from .address import refuse_of_session

SessionName: TypeAlias = str | bytes | tuple[Any, ...]
"""A session's name."""

NAME_BYTES = 1_000
"""The most bytes of the name of a session, or of a gate, as a key."""
OPEN, REFUSING, RENEWING = 0, 1, 2
"""Whether a session takes items, refuses them until it is removed, or collects them for its next generation."""
_FORMAT = 1
_SLOTS_FORMAT = 2
"""The format of records and pointers of sessions with slots. Older versions of the library must not change these."""
_GATES_FORMAT = 3
"""The format of records of sessions with gates, for the same reason."""
INTEGERS = b"\x14", b"\x1d"
"""The begin and end of the packed integers from 0 on, as the numbers of former shards."""
WAKER = b"\x00"
"""The slot of a pointer that wakes delayed items, and takes none."""


class SessionRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The record of a session. It exists while the session has items, dead letters or something that an operator set.

    An enqueue reads it by snapshot, and conflicts only with changes that matter to it (`Keys.guard`). So a pointer that
    moves in the line conflicts with no enqueue.
    """

    format: int = _FORMAT
    pointer: bytes = b""
    """The packed position of its pointer in the line; b"" if it has none."""
    generation: int = 0
    """The generation whose items are being done. Each has its own keys."""
    asleep_until_us: int = 0
    """If all its items are delayed: when its pointer wakes. An item that is available sooner has to wake it."""
    paused: bool = False
    blocked: str = ""
    """Why it is blocked until an operator redrives or skips; "" if it is not."""
    closing: int = OPEN
    limit: int = 0
    """How many items run at once, each in a slot with an entry; 0: the session is serial, and has no entry."""
    slots: int = 0
    """How many slots it has. Each has a pointer in the line. `pointer` is then that of the delayed items, the waker."""
    kept: bool = False
    """Whether an operator set the limit, so that it stays when the session ends."""
    gates: tuple[tuple[bytes, int], ...] = ()
    """The packed names and default limits of the gates that its slots need, the innermost first."""

    @property
    def is_stopped(self) -> bool:
        """Whether no item of it begins."""
        return self.paused or bool(self.blocked)

    @property
    def room(self) -> int:
        """How many more slots it may have. As long as a pointer without an entry is at work, it has none."""
        return 0 if self.pointer and not self.asleep_until_us else max(0, (self.limit or 1) - self.slots)


class SessionPointer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of a session's item in the line."""

    format: int
    name: bytes
    """The session's packed name."""
    generation: int = 0
    used: int = 0
    """How many items were done in the session's present turn."""
    current: bytes = b""
    """The packed position of the item in progress, while the session is leased."""
    since_us: int = 0
    """When its worker took the session, or its present item."""
    slot: bytes = b""
    """The id of its slot, if the session has slots."""
    edits: int = 0
    """How many calls changed waiting items of the session by their positions since it was leased. A consumer that sees
    it change reads the items again that it has read ahead."""
    acked: bytes = b""
    """The packed position of the last item that this lease has acked, if its consumer reads ahead. Of the items that
    the consumer has begun, those behind this one must be as it has read them."""


@filled_by_slots
@dataclass(frozen=True, slots=True)
class Held:
    """The value of a session's lease: its pointer and, if this process read it, the item in progress."""

    pointer: SessionPointer
    row: KeyValue | None = None
    """The row of the item in progress; None: not read yet, or there is none."""
    state: bytes | None = None
    """The session's stored state, if `row` was read; None: it has none."""
    is_alone: bool = False
    """Whether the session had no item behind it when it was leased."""


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(SessionRecord).decode
_decode_pointer = msgspec.msgpack.Decoder(SessionPointer).decode


MENDED = "Sessions.resume writes it again from what is stored of the session."
"""What to do about a damaged record, or a damaged entry of a slot."""
DAMAGED = SessionPointer(_FORMAT, b"")
"""Stands in for a pointer that can't be read. No session has this name."""


class HeldCodec:
    """The codec of the line. A value that was read of the database has no row."""

    name = "session"
    stand_in = Held(DAMAGED)

    def encode(self, value: Held) -> bytes:
        return _pack_pointer(value.pointer)

    def decode(self, data: bytes) -> Held:
        return Held(unpack_pointer(data))


def stored_pointer(pointer: SessionPointer) -> bytes:
    """Return the stored bytes of an item in the line."""
    return envelope(_pack_pointer(pointer))


def _pack_pointer(pointer: SessionPointer) -> bytes:
    if pointer.edits or pointer.acked:
        return _encode(pointer if not pointer.slot else replace(pointer, format=_SLOTS_FORMAT))
    if pointer.slot:
        return _encode(astuple(replace(pointer, format=_SLOTS_FORMAT))[:-2])
    return _encode(astuple(pointer)[:-3])  # in the first format


def pointer_of(stored: bytes) -> SessionPointer:
    """Return the pointer in the stored bytes of an item in the line.

    Raises:
        FormatError: it can't be read.
    """
    return unpack_pointer(parse(stored).payload)


def unpack_pointer(payload: bytes) -> SessionPointer:
    """Return an encoded pointer.

    Raises:
        FormatError: it can't be read.
    """
    try:
        pointer = _decode_pointer(payload)
    except UNREADABLE as error:
        raise FormatError(f"The pointer of a session can't be read: {error}.") from error
    _check_format(pointer.format)
    return pointer


def pack_record(record: SessionRecord) -> bytes:
    """Return the stored bytes of a record."""
    if record.gates:
        return _encode(replace(record, format=_GATES_FORMAT))
    if record.limit:
        return _encode((_SLOTS_FORMAT, *astuple(record)[1:-1]))
    return _encode((_FORMAT, *astuple(record)[1:-4]))  # in the first format


def unpack_record(layout: Layout, key: bytes, stored: bytes) -> SessionRecord:
    """Return a stored record, from its key among those of a queue.

    Raises:
        FormatError: it can't be read. The message names the session, and the way out.
    """
    try:
        return _record(stored)  # `decoded` is for the error alone: all verbs read records
    except (FormatError, *UNREADABLE) as error:
        parts, newer = layout.parts("session", key), getattr(error, "newer", False)
        told = "" if parts is None or newer else f"It is the record of the session {session_told(parts[0])}. {MENDED}"
        return layout.decode(key, stored, _record, told)


def _record(stored: bytes) -> SessionRecord:
    record = _decode_record(stored)
    _check_format(record.format)
    return record


def _check_format(written: int) -> None:
    if written > _GATES_FORMAT:
        raise FormatError(
            f"A session was written in format {written} by a newer version of fdbqueue: update it here.", newer=True
        )


def until(visible_at_us: int) -> Notes:
    """Return the notes of a pointer that sleeps."""
    return replace(NO_NOTES, visible_at_us=visible_at_us)


def new_pointer(name: bytes, generation: int, *, slot: bytes = b"") -> SessionPointer:
    """Return the pointer of a session whose turn has not begun."""
    return SessionPointer(_FORMAT, name, generation, slot=slot)


_PACKED = {
    name: fdb_tuple.pack((name,)) for name in ("session", "items", "slot", "state", "summed", "line", "lines", "gate")
}
_PACKED_OF_GATES = {name: fdb_tuple.pack(("gate", name)) for name in ("limit", "surplus", "line", "waiting")}


class PartOfQueue(Layout):
    """The layout of a session's items, or of the line: a queue within a queue, which errors name as people know it."""

    home: Layout
    """The layout of the queue."""
    packed_name: bytes = b""
    """The session's packed name; b"" if it is the line."""

    def describe(self) -> str:
        """Return which part of which queue it is, for messages."""
        name = self.packed_name
        part = f"the session {session_told(name_of(name))}" if name else "the line of sessions"
        return f"{part} of {self.home.describe()}"


def part_of(home: Layout, prefix: bytes, packed_name: bytes = b"") -> PartOfQueue:
    """Return the layout of a session's items, or of the line, which errors name as such."""
    layout = PartOfQueue.at(prefix)
    layout.home, layout.packed_name = home, packed_name
    return layout


class Keys:
    """The keys of all sessions of one queue, beside those of each session's items (`session.py`).

    Args:
        layout: the queue's layout.
    """

    __slots__ = (
        "_gates",
        "_prefix",
        "_totals",
        "items",
        "layout",
        "line",
        "records",
        "shards",
        "slots",
        "states",
        "summed",
    )

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._prefix = prefix = layout.prefix
        self.records = Subspace(rawPrefix=prefix + _PACKED["session"])
        self.items: bytes = prefix + _PACKED["items"]
        self.slots: bytes = prefix + _PACKED["slot"]
        self.states: bytes = prefix + _PACKED["state"]
        self.summed = Subspace(rawPrefix=prefix + _PACKED["summed"])
        self.line = part_of(layout, prefix + _PACKED["line"])
        self.shards = Subspace(rawPrefix=prefix + _PACKED["lines"])
        self._gates: dict[str, bytes] = {name: prefix + packed for name, packed in _PACKED_OF_GATES.items()}
        self._totals: dict[tuple[str, int], bytes] = {}

    def clear(self, tr: Transaction) -> None:
        """Clear everything but the line. The number of former shards stays, for versions that would use them."""
        begin = self.shards.key()
        tr.clear_range(*(begin + integer for integer in INTEGERS))
        for name in ("session", "items", "slot", "state", "summed", "gate"):
            tr.clear_range(*within(self._prefix + _PACKED[name]))

    def total(self, counter: str, shard: int) -> bytes:
        """Return the key of one part of a total of all sessions."""
        key = self._totals.get((counter, shard))
        if key is None:
            key = self._totals[counter, shard] = self.summed.pack((counter, shard))
        return key

    def of_session(self, name: bytes, generation: int) -> Layout:
        """Return the layout of a session's items, from its packed name."""
        return part_of(self.layout, self.items + name + fdb_tuple.pack((generation,)), name)

    def record(self, name: bytes) -> bytes:
        """Return the key of a session's record, from its packed name."""
        return self.records.key() + name

    def guard(self, name: bytes) -> bytes:
        """Return a key for the conflicts between enqueues and changes of a record. It is never written."""
        return self.record(name) + b"\x00"

    def gate(self, gate: bytes = b"") -> bytes:
        """Return the key of a gate's record, from its packed name."""
        return self._gates["limit"] + gate

    def surplus(self, gate: bytes) -> bytes:
        """Return the key that says how many slots of a gate are too many. It exists if there are any."""
        return self._gates["surplus"] + gate

    def waiters(self, gate: bytes) -> bytes:
        """Return the key that counts the pointers that wait at a gate."""
        return self._gates["waiting"] + gate

    def gated(self, gate: bytes = b"") -> Place:
        """Return the line of the pointers that wait at a gate."""
        return Place(self._gates["line"] + gate)


OWN_ITEMS = OwnItems(
    what="sessions",
    items=lambda layout: layout.space["items"],
    records=lambda layout: layout.space["session"],
    seen="`list` and `browse` of fdbqueue.layers.Sessions show them. Take them by Sessions or a Consumer of it, which"
    " keeps the order of each session.",
    ends="Wait until their consumers have ended them, or remove them: Sessions.remove. A paused session ends only after"
    " Sessions.resume, and a blocked one only after Sessions.skip.",
    refuses=refuse_of_session,
    heads=lambda layout: (Layout(layout.space["line"]),),
    codec_key=lambda layout: layout.space["state"].key(),
)
"""What a queue's own verbs know of items in sessions."""


def pack_name(session: SessionName) -> bytes:
    """Return a session's name as a part of keys.

    Raises:
        TypeError: it is no str, bytes or tuple.
        ValueError: it is empty or too long.
    """
    if type(session) is str or (type(session) is tuple and _KEPT_PARTS.issuperset(map(type, session))):
        return _pack_kept(session)
    return pack_tuple(session, "session")


_KEPT_PARTS = frozenset((str, int))
"""Names of such parts are equal only if they pack to the same bytes. 1, 1.0 and True are equal, and pack to others."""


@lru_cache(maxsize=4_096)
def _pack_kept(session: SessionName) -> bytes:
    """Return a packed name, and keep it: each call about a session packs it."""
    return pack_tuple(session, "session")


def pack_tuple(name: SessionName, what: str) -> bytes:
    """Return the name of something as a part of keys, as `pack_name` does."""
    if not isinstance(name, str | bytes | tuple):
        raise TypeError(f"A {what} is named by a str, bytes or a tuple, not {name!r}.")
    if not name:
        raise ValueError(f"A {what} needs a name; {name!r} is empty.")
    try:
        packed: bytes = fdb_tuple.pack((name,))
    except UnicodeEncodeError as error:
        raise surrogate(name, f"The name of a {what}") from error
    except (TypeError, ValueError) as error:
        raise TypeError(f"The {what} {name!r} can't be a key: {error}") from error
    if len(packed) > NAME_BYTES:
        raise ValueError(
            f"The name of the {what} that begins with {packed[1:31]!r} has {len(packed):,} bytes as a key. It may have"
            f" {NAME_BYTES:,}. Give a shorter one, such as a hash of it."
        )
    return packed


def name_of(packed: bytes) -> SessionName:
    """Return the session's name that was packed; the bytes themselves if they are none, since the key is foreign."""
    try:
        (name,) = fdb_tuple.unpack(packed)
    except NOT_A_TUPLE:
        return packed
    return name if isinstance(name, str | bytes | tuple) else packed


def session_in_key(tail: bytes) -> tuple[bytes, int] | None:
    """Return the packed session and the generation in the key of a session's item; None if it is foreign.

    Args:
        tail: what follows in the key behind the family's own parts.
    """
    try:
        name, generation, *_ = fdb_tuple.unpack(tail)
        packed = fdb_tuple.pack((name,))
        is_own = isinstance(name, str | bytes | tuple) and type(generation) is int and generation >= 0
        return (packed, generation) if is_own and tail.startswith(packed + fdb_tuple.pack((generation,))) else None
    except NOT_A_TUPLE:
        return None


T = TypeVar("T")

MAX_GATES = 8
"""The most gates of one session."""
MAX_LIMIT = 1_000_000
"""The highest limit of a gate."""
_GATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit that many sessions share: how many of their items run at once.

    >>> from fdbqueue.layers import Gate
    >>> Gate(("tenant", "acme"), limit=10)
    Gate(name=('tenant', 'acme'), limit=10)

    Raises:
        TypeError, ValueError: the name can't be a key, or the limit is no number from 0 to 1,000,000.
    """

    name: SessionName
    """Its name: a str, bytes or a tuple."""
    limit: int
    """How many items run at once, unless `Sessions.set_limit` has set another limit; 0: none."""

    def __post_init__(self) -> None:
        pack_gate(self.name)
        check_gate_limit(self.limit)


@dataclass(frozen=True, slots=True)
class GateInfo:
    """A gate, as it was when it was read."""

    gate: SessionName
    """Its name."""
    limit: int
    """How many of its slots may be taken at once."""
    taken: int
    """How many are taken: by items in progress, and by sessions that are ready for a worker. It is over the limit for
    a while after the limit was lowered."""
    waiting: int
    """How many items wait for a slot, at most one for each slot of a session."""
    kept: bool
    """Whether the limit was set by `Sessions.set_limit`."""


class GateRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The record of a gate. It exists while slots are taken, or a pointer waits, or an operator set the limit."""

    format: int = _GATE_FORMAT
    limit: int = 0
    held: int = 0
    """How many slots are taken."""
    kept: bool = False
    """Whether an operator set the limit."""
    default: int = 0
    """The limit that sessions give it."""


_encode_gate = msgspec.msgpack.Encoder().encode
_decode_gate = msgspec.msgpack.Decoder(GateRecord).decode


def pack_gate_record(record: GateRecord) -> bytes:
    """Return the stored bytes of a record."""
    return _encode_gate(record)


def unpack_gate_record(layout: Layout, key: bytes, stored: bytes) -> GateRecord:
    """Return a stored record, from its key among those of a queue.

    Raises:
        FormatError: it can't be read.
    """
    return layout.decode(key, stored, _gate_record)


def _gate_record(stored: bytes) -> GateRecord:
    record = _decode_gate(stored)
    if record.format > _GATE_FORMAT:
        raise FormatError(
            f"A gate was written in format {record.format} by a newer version of fdbqueue: update it here."
        )
    return record


def pack_gate(gate: SessionName) -> bytes:
    """Return a gate's name as a part of keys.

    Raises:
        TypeError: it is no str, bytes or tuple.
        ValueError: it is empty or too long.
    """
    return pack_tuple(gate, "gate")


def check_gate_limit(limit: object) -> None:
    """Raise an error if this is no limit of a gate."""
    check_whole(limit, "The limit of a gate is how many items run at once", most=MAX_LIMIT)


def called(told: str, function: Callable[[Any], T], session: SessionName) -> T:
    """Call a function of the user for a session.

    Raises:
        ValueError: it raised.
    """
    try:
        return function(session)
    except Exception as error:
        raise ValueError(
            f"The function {told!r} raised {type(error).__name__} for the session {session!r}: {error}"
        ) from error


def check_gates(session: SessionName, given: object) -> list[Gate]:
    """Return the gates of a session, as the function `gates` returned them.

    Raises:
        TypeError, ValueError: they are no list of different gates.
    """
    told = f"gates returns a tuple of gates, as (Gate('acme', limit=10),), and for the session {session!r}"
    if not isinstance(given, list | tuple):
        raise TypeError(f"{told} {given!r}.")
    for gate in given:
        if not isinstance(gate, Gate):
            raise TypeError(f"{told} one with {gate!r}.")
    if len(given) > MAX_GATES:
        raise ValueError(f"{told} {len(given)} of them. A session has at most {MAX_GATES} gates.")
    if len({pack_gate(gate.name) for gate in given}) < len(given):
        raise ValueError(f"{told} the same gate twice: {', '.join(repr(gate.name) for gate in given)}.")
    return [*given]


MAX_CONCURRENCY = 256


def check_concurrency(given: object) -> None:
    """Raise an error if this is no number of items that may run at once."""
    check_whole(given, "concurrency is how many items of a session run at once", least=1, most=MAX_CONCURRENCY)


def deprecated_shards(given: object, name: str, *, stacklevel: int = 3) -> None:
    """Warn that the caller spreads ready sessions over shards, which has no effect any more."""
    check_whole(given, "shards was over how many lines ready sessions were spread", least=1, most=64)
    deprecated(name, since="0.3.0", instead="Sessions without it: there is one line", stacklevel=stacklevel)


def check_choice(given: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise an error if this is none of the choices."""
    if given not in choices:
        raise ValueError(f"{name} is {' or '.join(map(repr, choices))}, not {given!r}.")
