"""Messages: the values of a smart queue, and how they are stored.

A registry is the queue's codec, so plain and staged dequeues, leases and browsing all return messages. A message is
stored as one JSON or MessagePack object with its type's name under ``"type"``, which any program can read.

>>> from fdbqueue.layers import Messages, MessageType
>>> from dataclasses import dataclass
>>> @dataclass
... class Progress:
...     file: str
...     percent: int
>>> messages = Messages(MessageType("progress", Progress, key=lambda progress: progress.file))
>>> messages.encode(Progress("a.txt", 10))
b'{"type":"progress","file":"a.txt","percent":10}'
>>> messages.decode(messages.encode(Progress("a.txt", 10)))
Progress(file='a.txt', percent=10)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from fdbqueue import CodecError, Position
from fdbqueue.base.typed import decoder
from fdbqueue.stored.lossless import refuse_if_changed

from ..leases.times import positive
from ._functions import Functions
from ._types import MessageType
from .limits import MOST_COUNTED

_JSON_TAG = b'{"type":"'


class Messages:
    """A registry of message types, and the codec of their queue.

    Args:
        types: the types.
        format: "json" or "msgpack".

    Raises:
        ValueError, TypeError: the types are inconsistent; the message says why.
    """

    def __init__(self, *types: MessageType, format: Literal["json", "msgpack"] = "json") -> None:
        self.is_over: Callable[[Any, int, Position], bool] | None = None
        """Returns whether a predicate says that an item is outdated. It gets the item's message, the time in
        microseconds, and the position. None if no type has a predicate. Every call that takes items out uses it."""
        if format not in ("json", "msgpack"):
            raise ValueError(f"The format is 'json' or 'msgpack', not {format!r}.")
        self.name = f"{format} messages"
        self.types: dict[str, MessageType] = {}
        self._by_class: dict[type[Any], MessageType] = {}
        self._decoders: dict[str, Any] = {}
        self._by_tag: dict[bytes, tuple[MessageType, Any]] = {}
        self._json = format == "json"
        module: Any = msgspec.json if self._json else msgspec.msgpack
        self._encoder = module.Encoder()
        self._tag_decoder = module.Decoder(_Tagged)
        for given in types:
            _check_type(given)
            self._add(given, module)
        for given in types:
            self._check_scope(given)
        functions = Functions(types)
        if functions.predicates:
            self.is_over = partial(self._is_over, functions)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Messages, format="json" if self._json else "msgpack"), tuple(self.types.values())

    def __repr__(self) -> str:
        return f"Messages({', '.join(self.types)})"

    def type_of(self, message: Any) -> MessageType:
        """Return a message's type.

        Raises:
            CodecError: it has no registered type.
        """
        found = self._by_class.get(type(message))
        if found is None and isinstance(message, dict):
            found = self.types.get(message.get("type", ""))
            found = None if found is None or found.cls is not None else found
        if found is None:
            raise CodecError(
                f"{type(message).__name__} is not a message of a registered type: {', '.join(self.types)}."
                " A message is an object of a registered class, or a dict whose 'type' is that of a type without one."
            )
        return found

    def encode(self, value: Any) -> bytes:
        """Encode a message."""
        return self.encode_as(self.type_of(value), value)

    def encode_as(self, found: MessageType, value: Any) -> bytes:
        """Encode a message whose type is known.

        Raises:
            CodecError: a part of it would not come back equal.
        """
        if found.cls is None:
            encoded: bytes = self._encoder.encode(value)
        elif self._json:
            body: bytes = self._encoder.encode(value)
            encoded = b'{"type":%b%b' % (self._encoder.encode(found.name), b"," + body[1:] if len(body) > 2 else b"}")
        else:
            encoded = self._encoder.encode({"type": found.name, **msgspec.to_builtins(value, builtin_types=(bytes,))})
        back = self._decoders[found.name].decode(encoded)
        if back != value:
            refuse_if_changed(self.name, value, back)
        return encoded

    def decode(self, data: bytes) -> Any:
        """Decode a message into its class, or plain data into a dict."""
        return self.decode_typed(data)[1]

    def decode_typed(self, data: bytes) -> tuple[MessageType, Any]:
        """Decode a message; return its type and the message."""
        if data.startswith(_JSON_TAG):  # as `encode` writes it; other programs may write it differently
            known = self._by_tag.get(data[len(_JSON_TAG) : data.find(b'"', len(_JSON_TAG))])
            if known is not None:
                return known[0], known[1].decode(data)
        name = self._tag_decoder.decode(data).type
        found = self.types.get(name)
        if found is None:
            raise CodecError(f"The message is of type {name!r}, which is not registered: {', '.join(self.types)} are.")
        return found, self._decoders[name].decode(data)

    def _is_over(self, functions: Functions, message: Any, now_us: int, position: Position) -> bool:
        return functions.is_over(self.type_of(message), message, now_us, position)

    def _add(self, given: MessageType, module: Any) -> None:
        if not given.name or given.name in self.types:
            raise ValueError(f"Message types have names, each its own; {given.name!r} is empty or there twice.")
        if given.cls is None:
            self._decoders[given.name] = module.Decoder(dict[str, Any])
        else:
            self._check_class(given.name, given.cls)
            self._by_class[given.cls] = given
            self._decoders[given.name] = decoder(module, given.cls)
        self.types[given.name] = given
        if self._json:
            self._by_tag[self._encoder.encode(given.name)[1:-1]] = (given, self._decoders[given.name])

    def _check_class(self, name: str, cls: type[Any]) -> None:
        if cls in self._by_class:
            raise ValueError(f"{cls.__name__} is the class of two types, {self._by_class[cls].name!r} and {name!r}.")
        is_struct = issubclass(cls, msgspec.Struct)
        if not is_struct and not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__name__} is neither a dataclass nor a msgspec.Struct.")
        if is_struct and (cls.__struct_config__.array_like or cls.__struct_config__.tag_field == "type"):
            raise TypeError(f"{cls.__name__} is array_like, or tagged as 'type': its type's name has no place.")
        if is_struct and cls.__struct_config__.forbid_unknown_fields:
            raise TypeError(
                f"{cls.__name__} forbids unknown fields. Allow them: a stored message also has its type's name."
            )
        if "type" in (cls.__struct_encode_fields__ if is_struct else [field.name for field in dataclasses.fields(cls)]):
            raise TypeError(f"{cls.__name__} has a field 'type', where its type's name is stored.")

    def _check_scope(self, given: MessageType) -> None:
        for field, seconds in (("expires", given.expires), ("deadline", given.deadline)):
            if seconds is not None and not callable(seconds):
                positive(seconds, f"{field} of {given.name!r}")
        for name in given.sees.types or ():
            if name not in self.types:
                raise ValueError(f"The type {given.name!r} sees the type {name!r}, which is not registered.")
        if given.key is None and (given.sees.same_key or given.key_limit is not None):
            raise ValueError(f"The type {given.name!r} uses a key in sees= or key_limit=, but has none. Give it key=….")
        for limit in (given.limit, given.key_limit):
            if limit is not None and limit.most > MOST_COUNTED:
                raise ValueError(
                    f"A limit of a type or a key is counted item by item, up to {MOST_COUNTED:,}, and {limit.most:,} of"
                    f" {given.name!r} are more. Limit the queue, or choose a finer key."
                )


def _check_type(given: object) -> None:
    if not isinstance(given, MessageType):
        raise TypeError(f"Messages are made of MessageTypes, as in Messages(MessageType('order')), not of {given!r}.")


class _Tagged(msgspec.Struct):
    type: str
