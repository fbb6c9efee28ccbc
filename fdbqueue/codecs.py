"""Codecs: between a user's values and stored bytes. Nothing is ever pickled or executed.

>>> codec_named("json").encode({"a": 1})
b'{"a":1}'
>>> codec_named("str").decode(b"caf\\xc3\\xa9")
'café'
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import msgspec

from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.errors import CodecError

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders of MessagePack raise for bytes that another wrote: also text that is none, and nesting without end."""
CODEC_ERRORS = (
    *(ValueError, TypeError, OverflowError, IndexError, KeyError, RecursionError),
    *(struct.error, msgspec.MsgspecError),
)
"""What codecs raise for values that they don't take and for bytes that another one wrote."""


@runtime_checkable
class Codec(Protocol):
    """Two functions, inverse to each other, and a name for messages.

    Both raise `CodecError`, or a TypeError or ValueError that is turned into one.
    """

    name: str

    def encode(self, value: Any) -> bytes: ...
    def decode(self, data: bytes) -> Any: ...


class BytesCodec:
    """Bytes as they are; nothing else is taken."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise CodecError(f"The queue's codec is 'bytes', so a value must be bytes, not {type(value).__name__}.")
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class StrCodec:
    """Text as UTF-8."""

    name = "str"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise CodecError(f"The queue's codec is 'str', so a value must be str, not {type(value).__name__}.")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class JsonCodec:
    """JSON by msgspec.

    Args:
        type: what to decode to, anything that msgspec knows (a Struct, a dataclass, ``dict[str, int]``); values are
            then checked against it in both directions.

    What JSON has no word for comes back as another: a tuple as a list, a key as str, dates and bytes as text, unless
    `type` says what they were; NaN and infinity as None. The codec msgpack keeps numbers, keys and bytes.
    """

    name = "json"

    def __init__(self, type: Any = Any) -> None:
        self._type = type
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def encode(self, value: Any) -> bytes:
        data = self._encoder.encode(_checked(value, self._type))
        if self._type is not Any and b"null" in data:
            self._decoder.decode(data)  # NaN is written as null, which is no float for whoever reads it
        return data

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)


class MsgpackCodec:
    """MessagePack by msgspec; `type` as for `JsonCodec`."""

    name = "msgpack"

    def __init__(self, type: Any = Any) -> None:
        self._type = type
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(type)

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(_checked(value, self._type))

    def decode(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type,)


class TupleCodec:
    """Tuples in FoundationDB's tuple encoding."""

    name = "tuple"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, tuple):
            raise CodecError(f"The queue's codec is 'tuple', so a value must be a tuple, not {type(value).__name__}.")
        packed: bytes = fdb_tuple.pack(value)
        return packed

    def decode(self, data: bytes) -> tuple[Any, ...]:
        unpacked: tuple[Any, ...] = fdb_tuple.unpack(data)
        return unpacked


def _checked(value: Any, wanted: Any) -> Any:
    if wanted is not Any and not (isinstance(wanted, type) and isinstance(value, wanted)):
        msgspec.convert(value, wanted, from_attributes=True)
    return value


_BUILT_IN: dict[str, Callable[[], Codec]] = {
    "bytes": BytesCodec,
    "str": StrCodec,
    "json": JsonCodec,
    "msgpack": MsgpackCodec,
    "tuple": TupleCodec,
}


def codec_named(codec: str | Codec) -> Codec:
    """Return the codec of that name, or the one given.

    Raises:
        ValueError: an unknown name.
        TypeError: neither a name nor a codec.
    """
    if isinstance(codec, str):
        if codec not in _BUILT_IN:
            raise ValueError(f"There is no codec {codec!r}. Built in are {', '.join(_BUILT_IN)}; or give an object.")
        return _BUILT_IN[codec]()
    if not isinstance(codec, Codec):
        raise TypeError(f"A codec has a name, encode and decode; {type(codec).__name__} does not.")
    return codec
