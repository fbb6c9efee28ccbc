"""Keys and tuples: the binding's own codec. It needs no client library."""

from __future__ import annotations

import builtins
import struct
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import fdb.tuple as tuple  # under the binding's own name
from fdb.tuple import SingleFloat, Versionstamp, pack, pack_with_versionstamp, unpack

Elements: TypeAlias = builtins.tuple[Any, ...]
"""What a tuple of keys has: None, bool, int, float, str, bytes, UUID, a versionstamp, or such a tuple."""

if TYPE_CHECKING:
    from builtins import tuple as _tuple

    class Subspace:
        """The binding's own class, declared here because it has no type annotations."""

        rawPrefix: bytes

        def __init__(self, prefixTuple: Elements = (), rawPrefix: bytes = b"") -> None: ...
        def __getitem__(self, name: Any) -> Subspace: ...
        def key(self) -> bytes: ...
        def pack(self, t: Elements = ()) -> bytes: ...
        def pack_with_versionstamp(self, t: Elements = ()) -> bytes: ...
        def unpack(self, key: bytes) -> Elements: ...
        def range(self, t: Elements = ()) -> slice: ...
        def contains(self, key: bytes) -> bool: ...
        def as_foundationdb_key(self) -> bytes: ...
        def subspace(self, tuple: Elements) -> Subspace: ...
else:
    from fdb.subspace_impl import Subspace

# The binding's old copy of six adds an import finder for `fdb.six.moves`, which no code uses. Python 3.11 warns about
# it at every import that finds no module. Programs that turn warnings into errors would fail.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "fdb.six"]


def _versionstamp_bytes(stamp: Versionstamp) -> bytes:
    version = stamp._UNSET_TR_VERSION if stamp.tr_version is None else bytes(stamp.tr_version)
    return struct.pack(stamp._STRUCT_FORMAT_STRING, version, stamp.user_version)


# The tuple codec uses the client library only here, to check whether the version is a lazy value. This function returns
# the same bytes without it.
Versionstamp.to_bytes = _versionstamp_bytes


_NO_ELEMENT = b"\xff"
"""No element of a tuple begins so. Behind the NUL at the end of a text or of bytes, it says that these go on."""
_STAMP, _BEHIND_STAMPS = b"\x33", b"\x34"
"""The type code of a versionstamp, and the one behind it."""
NOT_A_TUPLE = (ValueError, TypeError, OverflowError, IndexError, RecursionError, struct.error)
"""What `unpack` raises for keys that are no tuples: a database may have any keys of other programs."""


def strinc(key: bytes) -> bytes:
    """Return the first key after every key that starts with `key`.

    >>> strinc(b"ab"), strinc(b"a\\xff")
    (b'ac', b'b')

    Raises:
        ValueError: `key` is empty or all ``\\xff``, so no key sorts after its prefix.
    """
    stripped = key.rstrip(b"\xff")
    if not stripped:
        raise ValueError("Key must contain at least one byte not equal to 0xFF.")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def within(prefix: bytes) -> _tuple[bytes, bytes]:
    """Return the begin and end of a prefix's own key and of all tuples below it.

    Every range of keys below a name is this one. The keys that begin with the prefix's bytes are more: a text goes on
    behind a NUL, so ``"a"`` packed begins the keys of ``"a\\x00b"``, too. Such keys go on with ``\\xff``.

    >>> within(pack(("a",))) == (b"\\x02a\\x00", b"\\x02a\\x00\\xff")
    True
    >>> begin, end = within(pack(("a",)))
    >>> begin <= pack(("a", 7)) < end, begin <= pack(("a\\x00b",)) < end
    (True, False)
    """
    return prefix, prefix + _NO_ELEMENT


def below(prefix: bytes) -> _tuple[bytes, bytes]:
    """Return the begin and end of all tuples below a prefix, without the prefix's own key."""
    return prefix + b"\x00", prefix + _NO_ELEMENT


def behind(prefix: bytes) -> bytes:
    """Return the end of `within`: the key to go on from behind all tuples below a prefix."""
    return prefix + _NO_ELEMENT


def is_within(key: bytes, prefix: bytes) -> bool:
    """Return whether a key is the prefix, or a tuple below it.

    >>> a = pack(("a",))
    >>> is_within(a, a), is_within(pack(("a", 7)), a), is_within(pack(("a\\x00b",)), a)
    (True, True, False)
    """
    return key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] != _NO_ELEMENT


def beginning(text: str, prefix: bytes = b"") -> _tuple[bytes, bytes]:
    """Return the begin and end of the tuples below a prefix whose next element is a text that begins so.

    >>> begin, end = beginning("ord")
    >>> begin <= pack(("orders", 7)) < end, begin <= pack(("or",)) < end
    (True, False)
    """
    begin = prefix + pack((text,))[:-1]  # without the end of the text
    return begin, strinc(begin)


def stamped(prefix: bytes) -> _tuple[bytes, bytes]:
    """Return the begin and end of the tuples below a prefix whose next element is a versionstamp."""
    return prefix + _STAMP, prefix + _BEHIND_STAMPS


def bytes_behind(prefix: bytes) -> _tuple[bytes, bytes]:
    """Return the begin and end of the keys that a prefix and any bytes make, where these bytes are no tuple.

    The prefix must end with an integer or a literal, so that no other name begins with it.
    """
    return prefix, strinc(prefix)


__all__ = [
    "NOT_A_TUPLE",
    "SingleFloat",
    "Subspace",
    "Versionstamp",
    "beginning",
    "behind",
    "below",
    "bytes_behind",
    "is_within",
    "pack",
    "pack_with_versionstamp",
    "stamped",
    "strinc",
    "tuple",
    "unpack",
    "within",
]
