"""What follows the fixed parts of a key, as data, and the one function that reads it.

A database may have keys of other programs, of damaged programs, and of newer versions of the library. Such a key among
a queue's own is *foreign*: it may not be a tuple, have more parts, or parts of other types. A `Shape` says which parts
a family of keys has. It returns the parts of a key, or None for a foreign one, and never raises.

>>> from fdbqueue.stored.shapes import Shape
>>> from fdbqueue.lowlevel import fdb_tuple
>>> timers = Shape("at_us, index, random, kind")
>>> timers.parts(fdb_tuple.pack((5, 7, b"random", "lease")))
(5, Position(index=7, random=b'random'), 'lease')
>>> timers.parts(fdb_tuple.pack((5, 7, "random", "lease"))) is None
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fdbqueue.base.arguments import check_text
from fdbqueue.base.position import Position
from fdbqueue.engine.keys import NOT_A_TUPLE, Elements, Versionstamp
from fdbqueue.engine.keys import tuple as fdb_tuple

_POSITIONS = {"index, random": "position", "0, client": "place of a client", "0, group": "place of a group"}
"""Parts that are one Position. In some keys a name stands in the place of the random part."""


class Due:
    """What is due at the time of a timer: its kind.

    In the timers of a grant or a group, a name stands in the place of an item's random part.
    """

    LEASE = "lease"
    """A lease ends."""
    DELAY = "delay"
    """A delay ends."""
    TTL = "ttl"
    """A time to live ends."""
    RESULT = "result"
    """An outcome is kept until then."""
    GO = "go"
    """Of a held follow-up, due at once: it becomes available."""
    DROP = "drop"
    """Of a held follow-up, due at once: it is removed."""
    GRANT = "grant"
    """Until then a client takes the granted leases."""
    GROUP = "group"
    """An ended group is removed."""
    HOLD = "hold"
    """A hold of a group ends."""
    SWEEP = "sweep"
    """The sweep of a cancelled group goes on."""


TIMER_KINDS = frozenset((Due.LEASE, Due.DELAY, Due.TTL, Due.RESULT, Due.GO, Due.DROP))
COUNTERS = frozenset(
    (
        *("leased", "delayed", "dead", "claimed", "enqueued", "dequeued", "expired", "purged", "deleted"),
        *("outcomes", "announced", "returned", "died", "blobs", "blob_bytes"),
    )
)
"""The names of the counters of a queue. A key with another name is foreign."""
GROUP_KINDS = frozenset((Due.GROUP, Due.HOLD, Due.SWEEP))
STAGES = frozenset(("near", "missed"))
MEMBER_STATES = frozenset(("available", "leased", "delayed", "done", "dead", "expired", "cancelled", "deleted"))
"""What becomes of the members of a group."""
NESTED, RAW = "key of a queue", "8 bytes"
"""Ends of keys that are more than one part, or no part of a tuple."""
RAW_BYTES = 8
NAME_BYTES = {"group": 100, "job": 1_000, "recipient": 100, "schedule": 200, "stream": 500, "subscription": 200}
"""How many bytes a name may have, and at least one, by what it names. A key with another name is foreign."""
MOST_US = (1 << 62) - 1
"""The last time that a key may have, in microseconds."""


def check_name(name: object, what: str) -> None:
    """Refuse a name that can't be a part of a key.

    Args:
        name: the argument.
        what: what it names: a key of `NAME_BYTES`.

    Raises:
        TypeError: it is not a str.
        ValueError: it is empty or too long, or has a lone surrogate.
    """
    if not isinstance(name, str):
        raise TypeError(f"A {what} is named by a str, not by {name!r}.")
    check_text(name, f"The name of a {what}")
    size, most = len(name.encode()), NAME_BYTES[what]
    if not 1 <= size <= most:
        raise ValueError(f"The name of a {what} has 1 to {most} bytes, not {size:,}: {name[:40]!r}.")


def _text(value: object) -> bool:
    return type(value) is str


def _text_of(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is str and 0 < len(value.encode()) <= most


def _bytes(value: object) -> bool:
    return type(value) is bytes


def _number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _time(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_US


def _name(value: object) -> bool:
    return isinstance(value, str | bytes | tuple) and bool(value)


def _stamp(value: Any) -> bool:
    return type(value) is Versionstamp and value.is_complete()


def _position(value: object) -> bool:
    return isinstance(value, Position)


def _place(value: object) -> bool:
    return isinstance(value, Position) and value.rank is None and not value.index


def _place_of_group(value: Any) -> bool:
    try:
        return _place(value) and value.random.decode() is not None
    except UnicodeDecodeError:
        return False


PARTS: dict[str, Callable[[Any], bool]] = {
    "position": _position,
    "place of a client": _place,
    "place of a group": _place_of_group,
    "kind of a group": lambda value: _text(value) and value in GROUP_KINDS,
    "at_us": _time,
    "until_us": _time,
    "counter": lambda value: _text(value) and value in COUNTERS,
    "kind": lambda value: _text(value) and value in TIMER_KINDS,
    "stage": lambda value: _text(value) and value in STAGES,
    "name": _text,
    "query": _text,
    "type": _text,
    "agent": _number,
    "session": _name,
    "gate": _name,
    "generation": _number,
    "shard": _number,
    "batch": _number,
    "number": _number,
    "rank": _number,
    "n": _number,
    "slot": _number,
    "id": _bytes,
    "client": _bytes,
    "key": _bytes,
    "first": _bytes,
    "last": _bytes,
    "token": _bytes,
    "submission": _bytes,
    "part": _number,
    "partition": _number,
    "state of a member": lambda value: _text(value) and value in MEMBER_STATES,
    "bucket": lambda value: True,
    "versionstamp": _stamp,
    **{what: _text_of(most) for what, most in NAME_BYTES.items()},
    # The dispatcher of arrivals has a pointer, too: its name is "".
    "subscription or dispatcher": lambda value: value == "" or _text_of(NAME_BYTES["subscription"])(value),
}
"""Whether a value may be the part of a key that has this name. A part in quotation marks is this text."""


class Shape:
    """The parts of the keys of one family, behind its fixed ones.

    Args:
        rest: the names of the parts, as the table of keys has them. The last may be `NESTED` or `RAW`.
    """

    __slots__ = ("_checks", "_is_raw", "_position_at", "is_nested", "rest")

    def __init__(self, rest: str) -> None:
        self.rest = rest
        told = rest
        for position, name in _POSITIONS.items():
            told = told.replace(position, name)
        names = [name for name in told.split(", ") if name]
        self._position_at = next((at for at, name in enumerate(names) if name in _POSITIONS.values()), None)
        self.is_nested = names[-1:] == [NESTED]
        """Whether the last part is the end of a key of another queue, which the caller looks at."""
        self._is_raw = names[-1:] == [RAW]
        self._checks = [_is_part(name) for name in names if name not in (NESTED, RAW)]

    def parts(self, tail: bytes) -> Elements | None:
        """Return the parts in the end of a key; None if it is foreign. A position is one part."""
        more: tuple[bytes, ...] = ()
        try:
            if self._is_raw:
                tail, more = tail[:-RAW_BYTES], (tail[-RAW_BYTES:],)
            values: Any = fdb_tuple.unpack(tail)
            if self.is_nested:
                values = values[: len(self._checks)]
                begin = fdb_tuple.pack(values)
                tail, more = tail[: len(begin)], (tail[len(begin) :],)
            if fdb_tuple.pack(values) != tail:
                return None  # numbers with a 0 in front, or a versionstamp that is incomplete
        except (*NOT_A_TUPLE, AttributeError):
            return None
        if self._position_at is not None:
            values = _with_position(values, self._position_at, len(self._checks))
        if values is None or len(values) != len(self._checks):
            return None
        for check, value in zip(self._checks, values, strict=True):
            if not check(value):
                return None
        return (*values, *more)

    def __repr__(self) -> str:
        return f"Shape({self.rest!r})"


def _is_part(name: str) -> Callable[[Any], bool]:
    text = name.strip('"')
    return PARTS[name] if text == name else lambda value: bool(value == text)


def _with_position(values: Elements, at: int, parts: int) -> Elements | None:
    """Return values with a Position in place of its two or three parts; None if they are none."""
    rank = None
    if len(values) == parts + 2:
        rank, *values_behind = values[at:]
        if not _number(rank):
            return None
    else:
        values_behind = list(values[at:])
    if len(values_behind) < 2:
        return None
    index, random, *rest = values_behind
    if not _number(index) or not _bytes(random):
        return None
    return (*values[:at], Position(index, random, rank=rank), *rest)
