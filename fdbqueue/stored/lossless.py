"""Find what a codec would change: the part of a value that does not come back equal.

>>> import datetime
>>> from fdbqueue.stored.lossless import changed_part
>>> part = changed_part({"at": datetime.date(2026, 1, 1)}, {"at": "2026-01-01"})
>>> part.path, part.back
('$.at', '2026-01-01')
>>> changed_part([1, float("nan")], [1, float("nan")]) is None
True
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from fdbqueue.errors import CodecError

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
    """Return the first part of `value` that differs in `back`; None if there is none."""
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
