"""Decoders of msgspec for types that a program gives. They are made one at a time.

msgspec looks at the fields of a class when it first needs them, and keeps what it found at the class. Another thread
that decodes to this class meanwhile ends the process by SIGSEGV (msgspec 0.22.0). The library's own classes need no
lock: their decoders are made when their modules are imported. `filled_by_slots` makes objects of frozen dataclasses
fast.
"""

from __future__ import annotations

import os
import threading
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, TypeVar

import msgspec

_lock = threading.Lock()


def decoder(module: Any, type: Any, **hooks: Any) -> Any:
    """Return a decoder to `type`.

    Args:
        module: `msgspec.json` or `msgspec.msgpack`.
        type: a type that msgspec knows.
        hooks: as those of msgspec's own.

    Raises:
        TypeError: msgspec does not know the type.
    """
    with _lock:
        return module.Decoder(type, **hooks)


def look_at(type: object) -> None:
    """Let msgspec look at a type, before `msgspec.convert` or a decode to it needs that.

    Raises:
        TypeError: msgspec does not know the type.
    """
    decoder(msgspec.msgpack, type)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


# A short `__init__` for frozen dataclasses that are made for every item.

T = TypeVar("T")


def filled_by_slots(kind: type[T]) -> type[T]:
    """Let a frozen dataclass with slots fill them directly.

    The `__init__` that `dataclass` makes looks up `object.__setattr__`, and by it the attribute, for each of them. This
    one has the same parameters and defaults, and takes half the time. The class has no `__post_init__`.
    """
    told: Any = kind
    original: Any = told.__init__
    made: dict[str, Any] = {}
    positional: list[str] = ["self"]
    named: list[str] = []
    body: list[str] = []
    for one in fields(told):
        made[f"set_{one.name}"] = getattr(told, one.name).__set__
        parameter, value = one.name, one.name
        if _is_optional(one):
            made[f"default_{one.name}"] = one.default
            parameter = f"{one.name}=default_{one.name}"
        if one.default_factory is not MISSING:
            made[f"make_{one.name}"] = one.default_factory
            value = f"make_{one.name}() if {one.name} is default_{one.name} else {one.name}"
        (named if one.kw_only else positional).append(parameter)
        body.append(f" set_{one.name}(self, {value})")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    exec("\n".join([f"def __init__({parameters}):", *body]), made)
    told.__init__ = wraps(original)(made["__init__"])
    return kind


def _is_optional(one: Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING
