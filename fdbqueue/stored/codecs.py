"""Codecs: convert a user's values to stored bytes and back. Nothing is ever pickled or executed.

>>> from fdbqueue.stored.codecs import codec_named
>>> codec_named("json").encode({"a": 1})
b'{"a":1}'
>>> codec_named("str").decode(b"caf\\xc3\\xa9")
'café'

A dataclass, a msgspec Struct or a pydantic model is a codec too: its values are stored as JSON.

>>> from dataclasses import dataclass
>>> @dataclass
... class Order:
...     sku: str
>>> codec_named(Order).encode(Order("teapot"))
b'{"sku":"teapot"}'
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, cast, is_typeddict, overload, runtime_checkable

import msgspec

from fdbqueue.base.arguments import check_text
from fdbqueue.base.typed import decoder
from fdbqueue.engine.keys import Elements
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.errors import CodecError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    V = TypeVar("V", default=Any)
    """The type of a queue's values. A bare `Queue` is a `Queue[Any]`."""
else:
    from typing import TypeVar

    V = TypeVar("V")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of MessagePack decoders for bytes of unknown origin. They include invalid text and endless nesting."""
CODEC_ERRORS = (
    *(ValueError, TypeError, OverflowError, IndexError, KeyError, RecursionError),
    *(struct.error, msgspec.MsgspecError),
)
"""The errors of the built-in codecs for values that they don't take, and for bytes of another codec.

A codec of a caller's may raise any other, and so may a class that a built-in codec makes objects of.
"""


def why_buried(error: Exception) -> str:
    """Return the error of an item that can't be read, for the dead letter that it becomes: it does not stay there.

    >>> why_buried(ValueError("The item 7:72 of orders can't be read and was left there. It is damaged."))
    "The item 7:72 of orders can't be read. It is damaged."
    """
    return str(error).replace(" and was left there", "", 1)


def reason_of(error: BaseException) -> str:
    """Return the reason in an error of a codec as one line without a period, in its own words.

    >>> from fdbqueue.stored.codecs import reason_of
    >>> reason_of(ValueError("no sku."))
    'no sku'
    >>> reason_of(AttributeError("no attribute 'sku'"))
    "AttributeError: no attribute 'sku'"
    """
    if callable(parts := getattr(error, "errors", None)) and hasattr(error, "error_count"):
        # pydantic's text has a line for each part, the input, and a link to its own documents.
        found = [(".".join(map(str, part["loc"])), str(part["msg"])) for part in parts(include_url=False)]
        return "; ".join(f"{at}: {told}" if at else told for at, told in found).rstrip(".")
    told = " ".join(str(error).split()).rstrip(".")
    expected = isinstance(error, ValueError | TypeError | CodecError | msgspec.MsgspecError) and told
    return told if expected else f"{type(error).__name__}: {told}".removesuffix(": ")


@runtime_checkable
class Codec(Protocol[V]):
    """Two inverse functions, and a name for messages.

    Both functions raise `CodecError`, or another error, which the queue turns into a `CodecError`.
    """

    name: str

    def encode(self, value: V) -> bytes: ...
    def decode(self, data: bytes) -> V: ...


class BytesCodec:
    """Takes bytes, and stores them unchanged."""

    name = "bytes"

    def encode(self, value: object) -> bytes:
        if type(value) is not bytes:
            raise CodecError(f"The codec is 'bytes', so a value must be bytes, not {type(value).__name__}.")
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class StrCodec:
    """Text as UTF-8."""

    name = "str"

    def encode(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise CodecError(f"The codec is 'str', so a value must be str, not {type(value).__name__}.")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class _Msgspec(Generic[V]):
    """The common part of the two codecs of msgspec."""

    name: str

    def __init__(self, module: Any, type: Any) -> None:
        self._type = type
        self.typed = type is not Any
        """Whether values are checked against a type."""
        self._encode: Callable[[object], bytes] = module.Encoder().encode
        self._decode: Callable[[bytes], V] = decoder(module, type).decode

    def encode(self, value: V) -> bytes:
        data = self._encode(_checked(value, self._type) if self.typed else value)
        # Nothing that finds a changed part while it encodes is faster than to decode in C.
        back = self._decode(data)
        if back != value:
            refuse_if_changed(self.name, value, back)
        return data

    def decode(self, data: bytes) -> V:
        return self._decode(data)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._type,)


class JsonCodec(_Msgspec[V]):
    """JSON by msgspec.

    Args:
        type: the type to decode to: any type that msgspec knows (a Struct, a dataclass, ``dict[str, int]``). Values are
            checked against it in both directions.

    JSON has fewer types than Python, so `encode` refuses a value that would not come back equal: a tuple, a set, bytes,
    a date, a Decimal, NaN, a key that is no str. With a `type` it takes those that the type has. The codec msgpack
    takes bytes, all numbers, and keys that are numbers.
    """

    name = "json"

    @overload
    def __init__(self: JsonCodec[Any]) -> None: ...
    @overload
    def __init__(self: JsonCodec[V], type: type[V]) -> None: ...
    @overload
    def __init__(self: JsonCodec[Any], type: object) -> None: ...
    def __init__(self, type: object = Any) -> None:
        super().__init__(msgspec.json, type)


class MsgpackCodec(_Msgspec[V]):
    """MessagePack by msgspec. `type` is as for `JsonCodec`, and what would not come back equal is refused too."""

    name = "msgpack"

    @overload
    def __init__(self: MsgpackCodec[Any]) -> None: ...
    @overload
    def __init__(self: MsgpackCodec[V], type: type[V]) -> None: ...
    @overload
    def __init__(self: MsgpackCodec[Any], type: object) -> None: ...
    def __init__(self, type: object = Any) -> None:
        super().__init__(msgspec.msgpack, type)


class PydanticCodec(Generic[V]):
    """JSON of one pydantic model, made by pydantic. It uses the model's aliases and validates in both directions.

    Args:
        model: the model's class.
    """

    name = "json"

    def __init__(self, model: type[V]) -> None:
        self._model: Any = model

    def encode(self, value: V) -> bytes:
        if not isinstance(value, self._model):
            wanted = self._model.__name__
            raise CodecError(f"The codec is {wanted}, so a value must be one, not {type(value).__name__}.")
        text: str = value.model_dump_json(by_alias=True, round_trip=True)
        back = self._model.model_validate_json(text)  # a model may write JSON that it refuses to read
        if "null" in text:  # and NaN as null
            refuse_if_changed(self.name, value.model_dump(), back.model_dump())
        return text.encode()

    def decode(self, data: bytes) -> V:
        return cast(V, self._model.model_validate_json(data))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._model,)


class TupleCodec:
    """Tuples in FoundationDB's tuple encoding."""

    name = "tuple"

    def encode(self, value: object) -> bytes:
        if not isinstance(value, tuple):
            raise CodecError(f"The codec is 'tuple', so a value must be a tuple, not {type(value).__name__}.")
        packed: bytes = fdb_tuple.pack(value)
        return packed

    def decode(self, data: bytes) -> Elements:
        unpacked: Elements = fdb_tuple.unpack(data)
        return unpacked


def _checked(value: object, wanted: object) -> Any:
    if wanted is Any:
        return value
    if is_typeddict(wanted) or not (isinstance(wanted, type) and isinstance(value, wanted)):
        msgspec.convert(value, wanted, from_attributes=True)
    return value


BUILT_IN: dict[str, Callable[[], Codec[Any]]] = {
    "bytes": BytesCodec,
    "str": StrCodec,
    "json": JsonCodec,
    "msgpack": MsgpackCodec,
    "tuple": TupleCodec,
}
"""The codecs that the library knows by their names."""


def codec_named(codec: str | Codec[Any] | type) -> Codec[Any]:
    """Return the codec of that name, the one for that class, or the one given.

    Raises:
        ValueError: the name is unknown; that of an object is empty, or has a lone surrogate.
        TypeError: it is neither a name nor a codec, nor a class that can be one; the name of an object is no str.
    """
    if isinstance(codec, str):
        if codec not in BUILT_IN:
            raise ValueError(f"There is no codec {codec!r}. Built in are {', '.join(BUILT_IN)}; or give an object.")
        return BUILT_IN[codec]()
    if isinstance(codec, type):
        return _codec_of(codec)
    if not isinstance(codec, Codec):
        raise TypeError(
            f"A codec has a name, encode and decode, and {codec!r} does not. For a type that msgspec knows give"
            f" codec=JsonCodec({codec!r})."
        )
    _check_name(codec)
    return codec


def _check_name(codec: Codec[Any]) -> None:
    """Refuse a name that the queue can't be registered with."""
    name: object = codec.name
    if not isinstance(name, str):
        raise TypeError(f"The name of a codec is a str, and that of {codec!r} is {name!r}: give it one.")
    if not name:
        raise ValueError(f"The name of a codec has 1 character at least, and that of {codec!r} is empty: give it one.")
    check_text(name, "The name of a codec")


def _codec_of(kind: type) -> Codec[Any]:
    if hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump_json"):
        return PydanticCodec(kind)
    fields = dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_typeddict(kind)
    if fields or hasattr(kind, "__attrs_attrs__") or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return JsonCodec(kind)
    if kind.__name__ in BUILT_IN:
        remedy = f"codec={kind.__name__!r} is the codec for {kind.__name__}"
    elif hasattr(kind, "encode") and hasattr(kind, "decode"):
        remedy = f"give an object of it, codec={kind.__name__}()"
    else:
        remedy = f"for other types that msgspec knows give codec=JsonCodec({kind.__name__})"
    raise TypeError(
        f"The class {kind.__name__} is not a codec: a dataclass, a msgspec Struct, a TypedDict, a NamedTuple, an attrs"
        f" class or a pydantic model is one; {remedy}."
    )


# What a codec would change: the part of a value that does not come back equal.

_TEXTS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)


def refuse_if_changed(codec: str, value: object, back: object) -> None:
    """Raise an error if a part of a value did not come back equal.

    Args:
        codec: the name of the codec, for the message.
        value: the value.
        back: the value that was decoded from its bytes.

    Raises:
        CodecError: a part is different; the message has its path and the remedy.
    """
    part = changed_part(value, back)
    if part is not None:
        raise CodecError(
            f"The codec {codec!r} can't keep a value of {type(part.value).__name__} at {part.path}:"
            f" {_short(part.value)} would come back as {_short(part.back)}. {part.remedy()}"
        )


class ChangedPart(NamedTuple):
    """A part of a value that comes back as something else."""

    path: str
    """Where it is; ``$`` is the whole value."""
    value: object
    back: object

    def remedy(self) -> str:
        """Return what the caller can do."""
        value = self.value
        if _fields(self.back) is not None:
            return f"Give an object of {type(self.back).__name__}."
        if isinstance(value, float):
            return "Give None, or use the codec 'msgpack'."
        if isinstance(value, tuple | Set):
            return "Give a list."
        if isinstance(value, bytes | bytearray | memoryview):
            return "Use the codec 'msgpack', or give text."
        if isinstance(value, _TEXTS):
            return "Give its text, or name the type, as in codec=JsonCodec(dict[str, datetime.date])."
        if isinstance(value, Mapping):
            return "Give str keys, or use the codec 'msgpack'."
        if _fields(value) is not None:
            return f"Name its class, as in Queue(name, codec={type(value).__name__})."
        return "Give a value of JSON's types, or name the type, as in codec=JsonCodec(…)."


def changed_part(value: object, back: object, path: str = "$") -> ChangedPart | None:
    """Return the first part of `value` that differs in `back`; None if there is none.

    >>> import datetime
    >>> part = changed_part({"at": datetime.date(2026, 1, 1)}, {"at": "2026-01-01"})
    >>> part.path, part.back
    ('$.at', '2026-01-01')
    >>> changed_part([1, float("nan")], [1, float("nan")]) is None
    True
    """
    if isinstance(value, dict) and isinstance(back, dict):
        if value.keys() != back.keys():
            return ChangedPart(path, value, back)
        return _first(changed_part(part, back[key], f"{path}.{key}") for key, part in value.items())
    if isinstance(value, list | tuple) and isinstance(back, type(value)) and len(value) == len(back):
        pairs = enumerate(zip(value, back, strict=True))
        return _first(changed_part(one, other, f"{path}[{index}]") for index, (one, other) in pairs)
    names = _fields(value)
    if names is not None and type(value) is type(back):
        return _first(changed_part(getattr(value, name), getattr(back, name), f"{path}.{name}") for name in names)
    same = value == back or (value != value and back != back)  # NaN differs from itself
    return None if same else ChangedPart(path, value, back)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first(parts: Iterator[ChangedPart | None]) -> ChangedPart | None:
    return next((part for part in parts if part is not None), None)


def _fields(value: object) -> Iterable[str] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    attributes: Any = getattr(type(value), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]
