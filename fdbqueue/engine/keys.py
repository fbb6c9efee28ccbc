"""Keys and tuples: the binding's own codec. It needs no client library."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any

import fdb.tuple as tuple  # under the binding's own name
from fdb.tuple import SingleFloat, Versionstamp, pack, pack_with_versionstamp, unpack

if TYPE_CHECKING:
    from builtins import tuple as _tuple

    class Subspace:
        """The binding's own class, declared here because it has no type annotations."""

        rawPrefix: bytes

        def __init__(self, prefixTuple: _tuple[Any, ...] = (), rawPrefix: bytes = b"") -> None: ...
        def __getitem__(self, name: Any) -> Subspace: ...
        def key(self) -> bytes: ...
        def pack(self, t: _tuple[Any, ...] = ()) -> bytes: ...
        def pack_with_versionstamp(self, t: _tuple[Any, ...] = ()) -> bytes: ...
        def unpack(self, key: bytes) -> _tuple[Any, ...]: ...
        def range(self, t: _tuple[Any, ...] = ()) -> slice: ...
        def contains(self, key: bytes) -> bool: ...
        def as_foundationdb_key(self) -> bytes: ...
        def subspace(self, tuple: _tuple[Any, ...]) -> Subspace: ...
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


__all__ = [
    "NOT_A_TUPLE",
    "SingleFloat",
    "Subspace",
    "Versionstamp",
    "pack",
    "pack_with_versionstamp",
    "strinc",
    "tuple",
    "unpack",
]
