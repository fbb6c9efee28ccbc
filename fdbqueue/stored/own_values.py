"""Decode the stored values of the library's own records: one function, whose error names the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fdbqueue.engine.keys import NOT_A_TUPLE
from fdbqueue.errors import FormatError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import Layout

T = TypeVar("T")


def decoded(layout: Layout, key: bytes, value: bytes, decode: Callable[[bytes], T], remedy: str = "") -> T:
    """Return what `decode` makes of a stored value.

    Args:
        layout: whose key it is.
        decode: raises what decoders of tuples, of MessagePack, of JSON and of texts raise, or FormatError.
        remedy: a sentence: what to do about a value that can't be read.

    Raises:
        FormatError: the value can't be read. The message names the key.
    """
    try:
        return decode(value)
    except (FormatError, *UNREADABLE, *NOT_A_TUPLE) as error:
        told = f"The value of the key {key!r} of {layout.describe()} can't be read: {str(error).rstrip('.')}."
        newer = isinstance(error, FormatError) and error.newer
        raise FormatError(f"{told} {remedy}".rstrip(), newer=newer) from error
