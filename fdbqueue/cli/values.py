"""Values as JSON, for any codec.

JSON has no bytes. In a queue of bytes a value that is UTF-8 is written as a string, any other as ``{"base64": "…"}``.
Tuples, MessagePack and headers distinguish strings from bytes, so their bytes are always written in base64. A blob in
place of a value is written as its id and size.

>>> to_json(b"hello", CodecName.bytes), to_json(b"\\xff", CodecName.bytes), to_json((1, b"x"), CodecName.tuple)
('hello', {'base64': '/w=='}, [1, {'base64': 'eA=='}])
>>> from_json([1, {"base64": "eA=="}], CodecName.tuple)
(1, b'x')
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.options import CodecName
from fdbqueue.stored.items import Blob


def parse(text: str, codec: CodecName, *, raw: bool = False) -> Any:
    """Return the value that `text` describes: as JSON or, if `raw`, the text itself.

    Raises:
        BadValue: `text` is not JSON, or the codec does not take it.
    """
    stored = text.encode("utf-8", "surrogateescape")
    if raw:
        if codec is CodecName.bytes:
            return stored
        try:
            return stored.decode()
        except UnicodeDecodeError as error:
            raise BadValue(f"{_shortened(text)} is not valid text: {error}. For bytes use --codec bytes.") from error
    try:
        decoded = msgspec.json.decode(stored)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadValue(f"{_shortened(text)} is not JSON: {error}. For plain text use --codec str and --raw.") from error
    return from_json(decoded, codec)


def from_json(decoded: Any, codec: CodecName) -> Any:
    """Return the value for decoded JSON."""
    if codec is CodecName.bytes:
        return decoded.encode() if isinstance(decoded, str) else _bytes(decoded)
    if codec is CodecName.tuple:
        return _tuple(decoded)
    if codec is CodecName.msgpack:
        return _with_bytes(decoded)
    return decoded


def to_json(value: Any, codec: CodecName) -> Any:
    """Return a value in a form that JSON can hold."""
    if isinstance(value, Blob):
        return {"blob": value.id.hex(), "size_bytes": value.size_bytes}
    if codec is CodecName.bytes:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _base64(value)
    if codec is CodecName.tuple:
        return _list(value)
    return _without_bytes(value)


def encode_json(decoded: Any) -> str:
    """Return `decoded` as one line of JSON. A type that JSON lacks is written as text."""
    return msgspec.json.encode(decoded, enc_hook=str).decode()


def _bytes(decoded: Any) -> bytes:
    if not (isinstance(decoded, dict) and decoded.keys() == {"base64"}):
        raise BadValue(f'{_shortened(encode_json(decoded))} is neither a string nor {{"base64": "…"}}, as bytes are.')
    try:
        return base64.b64decode(decoded["base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise BadValue(f"{_shortened(encode_json(decoded))} is not base64: {error}") from error


def _tuple(decoded: Any) -> Any:
    if not isinstance(decoded, list):
        raise BadValue(f"{_shortened(encode_json(decoded))} is not a JSON array, and a tuple must be one.")
    return tuple(_tuple_part(part) for part in decoded)


def _tuple_part(part: Any) -> Any:
    if isinstance(part, list):
        return _tuple(part)
    return _bytes(part) if isinstance(part, dict) else part


def _list(value: tuple[Any, ...]) -> list[Any]:
    return [
        _list(part) if isinstance(part, tuple) else _base64(part) if isinstance(part, bytes) else part for part in value
    ]


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, dict):
        return {str(key): _without_bytes(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_bytes(part) for part in value]
    return value


def _with_bytes(decoded: Any) -> Any:
    if isinstance(decoded, dict):
        if decoded.keys() == {"base64"}:
            return _bytes(decoded)
        return {key: _with_bytes(part) for key, part in decoded.items()}
    if isinstance(decoded, list):
        return [_with_bytes(part) for part in decoded]
    return decoded


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
