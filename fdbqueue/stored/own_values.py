"""Decode stored values by one function, whose error names the key of a record, or an item."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeVar

from fdbqueue.engine.keys import NOT_A_TUPLE
from fdbqueue.errors import FormatError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import Layout

T = TypeVar("T")
_SIGNED, _UNSIGNED, _IN_ORDER = (struct.Struct(form) for form in ("<q", "<Q", ">Q"))


def decoded(
    layout: Layout, key: bytes, value: bytes, decode: Callable[[bytes], T], remedy: str = "", *, what: str = "value"
) -> T:
    """Return what `decode` makes of a stored value.

    Args:
        layout: whose key it is.
        decode: raises what decoders of tuples, of MessagePack, of JSON and of texts raise, or FormatError.
        remedy: a sentence: what to do about a value that can't be read.
        what: what the value is.

    Raises:
        FormatError: the value can't be read. The message names the key.
    """
    try:
        return decode(value)
    except (FormatError, *UNREADABLE, *NOT_A_TUPLE) as error:
        told = f"The {what} of the key {key!r} of {layout.describe()} can't be read: {str(error).rstrip('.')}."
        newer = isinstance(error, FormatError) and error.newer
        raise FormatError(f"{told} {remedy}".rstrip(), newer=newer) from error


def signed(value: bytes) -> int:
    """Return a number that atomic adds change. This and the next two decode for `decoded`: 8 bytes, and no others."""
    number: int = _SIGNED.unpack(value)[0]
    return number


def unsigned(value: bytes) -> int:
    """Return a number in little-endian bytes."""
    number: int = _UNSIGNED.unpack(value)[0]
    return number


def in_order(value: bytes) -> int:
    """Return a number in big-endian bytes, whose order is that of the numbers."""
    number: int = _IN_ORDER.unpack(value)[0]
    return number


def of_item(layout: Layout, packed: bytes, stored: bytes, read: Callable[[bytes], T]) -> T:
    """Return what `read` finds in an item's stored bytes, such as `notes_of`.

    Raises:
        FormatError: they can't be read. The message names the item.
    """
    try:
        return read(stored)
    except FormatError as error:
        raise unreadable_item(layout, packed, error) from error


def unreadable_item(layout: Layout, packed: bytes, error: FormatError, remedy: str = "") -> FormatError:
    """Return the error for an item that can't be read.

    Args:
        packed: its packed position.
        error: says what is wrong with its stored bytes.
        remedy: a sentence: what to do.
    """
    position = layout.position_of(layout.prefix + packed)
    told = f"The item {position.text} of {layout.describe()} can't be read and was left there. {error} {remedy}"
    return FormatError(told.rstrip(), position=position, newer=error.newer)
