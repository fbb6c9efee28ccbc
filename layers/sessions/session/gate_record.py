"""A gate, as a caller names it and as it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from fdbqueue import FormatError
from fdbqueue.lowlevel import Layout
from fdbqueue.stored.own_values import decoded

from .records import SessionName, pack_tuple

T = TypeVar("T")

MAX_GATES = 8
"""The most gates of one session."""
MAX_LIMIT = 1_000_000
"""The highest limit of a gate."""
_FORMAT = 1


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

    format: int = _FORMAT
    limit: int = 0
    held: int = 0
    """How many slots are taken."""
    kept: bool = False
    """Whether an operator set the limit."""
    default: int = 0
    """The limit that sessions give it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GateRecord).decode


def pack_gate_record(record: GateRecord) -> bytes:
    """Return the stored bytes of a record."""
    return _encode(record)


def unpack_gate_record(layout: Layout, key: bytes, stored: bytes) -> GateRecord:
    """Return a stored record, from its key among those of a queue.

    Raises:
        FormatError: it can't be read.
    """
    return decoded(layout, key, stored, _record)


def _record(stored: bytes) -> GateRecord:
    record = _decode(stored)
    if record.format > _FORMAT:
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
    if type(limit) is not int:
        raise TypeError(f"The limit of a gate is how many items run at once, a whole number, not {limit!r}.")
    if not 0 <= limit <= MAX_LIMIT:
        raise ValueError(f"The limit of a gate is how many items run at once, 0 to {MAX_LIMIT:,}, not {limit}.")


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
