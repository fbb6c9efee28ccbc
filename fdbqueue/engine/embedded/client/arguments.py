"""The arguments of a transaction's methods, as the client library takes them."""

from __future__ import annotations

from ctypes import ArgumentError
from typing import Any


def key_to_bytes(key: Any) -> bytes:
    """Return the bytes of a key, or of an object that has `as_foundationdb_key`.

    Raises:
        TypeError: the key is not bytes.
    """
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key


def value_to_bytes(value: Any) -> bytes:
    """Return the bytes of a value, or of an object that has `as_foundationdb_value`.

    Raises:
        TypeError: the value is not bytes.
    """
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value


def integer(value: Any, bits: int = 32) -> int:
    """Return a number as the client library gets it: truncated to a signed integer of `bits` bits.

    Raises:
        ctypes.ArgumentError: the value is not an integer.
    """
    if not isinstance(value, int):
        raise ArgumentError(f"a whole number was expected, not {type(value).__name__}")
    number, half = int(value), 1 << (bits - 1)
    return number if -half <= number < half else (number + half) % (2 * half) - half
