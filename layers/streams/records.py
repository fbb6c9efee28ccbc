"""The stored records of streams and batches. Each is one byte for the format's version, then MessagePack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from fdbqueue import FormatError
from fdbqueue.lowlevel import UNREADABLE

FORMAT_VERSION = 1
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))
MAX_PIECES = 500
"""A batch's record has at most so many pieces. Its size stays under the database's limit for a value."""

R = TypeVar("R", bound=msgspec.Struct)


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a stream."""

    epoch: str
    """Identifies the reader's log."""
    acked: int = 0
    """The last acked batch."""
    items: int = 0
    """How many items were acked in all."""
    run: str = ""
    """The run of the reader that claimed last."""
    released: int = 0
    """The batches up to this one were given back, and are refused."""
    begun_us: int = 0
    """When the first batch was claimed."""


class Split(msgspec.Struct, frozen=True, array_like=True):
    """Items of a batch that one task reads: all between two positions."""

    first: bytes
    """The packed position of its first item."""
    last: bytes
    """The packed position of its last item."""
    count: int
    """How many items it has."""
    size_bytes: int
    """About how many bytes their payloads have."""


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of an open batch."""

    sealed: bool = False
    """Whether it is complete. Only then its items are read."""
    count: int = 0
    size_bytes: int = 0
    splits: tuple[Split, ...] = ()
    """While it is not sealed, the pieces that were claimed so far; then the splits, in the queue's order."""
    begun_us: int = 0
    chunked: int = 0
    """How many of its items are stored in chunks."""
    tracked: int = 0
    """How many of its items have a completion, follow-ups or a group."""


_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (StreamRecord, BatchRecord)
}


def encode(record: msgspec.Struct) -> bytes:
    """Return the stored bytes of a record."""
    return _FIRST_BYTE + msgspec.msgpack.encode(record)


def decode(kind: type[R], stored: bytes, what: str) -> R:
    """Return the record in stored bytes.

    Raises:
        FormatError: this version of the library can't read them.
    """
    version = stored[0] >> 4 if stored else 0
    if version > FORMAT_VERSION:
        raise FormatError(
            f"The record of {what} was written in format {version} by a newer version of fdbqueue; this one reads"
            f" formats up to {FORMAT_VERSION}. Update fdbqueue here."
        )
    try:
        if stored[:1] != _FIRST_BYTE:
            raise FormatError(f"The record of {what} does not begin as one: it was not written by fdbqueue.")
        return cast(R, _decoders[kind].decode(stored[1:]))
    except UNREADABLE as error:
        raise FormatError(f"The record of {what} is damaged: {error}.") from error


def joined(pieces: Sequence[Split]) -> list[Split]:
    """Return pieces in the queue's order, with those that overlap joined.

    An item may come back in front of items that the batch already has. Then a later piece begins before an earlier
    one ends.

    >>> [piece.count for piece in joined([Split(b"c", b"e", 2, 0), Split(b"a", b"d", 3, 0), Split(b"f", b"f", 1, 0)])]
    [5, 1]
    """
    found: list[Split] = []
    for piece in sorted(pieces, key=lambda piece: piece.first):
        if found and piece.first <= found[-1].last:
            found[-1] = _joined(found[-1], piece)
        else:
            found.append(piece)
    return found


def thinned(pieces: Sequence[Split]) -> list[Split]:
    """Return the same items in fewer pieces, if there are too many for a record."""
    found = list(pieces)
    while len(found) > MAX_PIECES:
        found = joined(found)
        found = [_of_all(found[at : at + 2]) for at in range(0, len(found), 2)]
    return found


def splits_of(pieces: Sequence[Split], *, at_least: int, most_items: int) -> tuple[Split, ...]:
    """Return the splits of a complete batch. They need not be equal, since a piece is never cut.

    Args:
        pieces: what the batch has.
        at_least: how many splits to make, if there are so many pieces.
        most_items: about how many items a split has at most.
    """
    pieces = joined(pieces)
    count = sum(piece.count for piece in pieces)
    wanted = max(at_least, -(-count // most_items))
    share = count / wanted if wanted else 0.0
    groups: list[list[Split]] = []
    taken = 0
    for piece in pieces:
        if not groups or taken >= share * len(groups):
            groups.append([])
        groups[-1].append(piece)
        taken += piece.count
    return tuple(map(_of_all, groups))


def _joined(one: Split, other: Split) -> Split:
    return Split(
        min(one.first, other.first),
        max(one.last, other.last),
        one.count + other.count,
        one.size_bytes + other.size_bytes,
    )


def _of_all(pieces: Sequence[Split]) -> Split:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = _joined(whole, piece)
    return whole
