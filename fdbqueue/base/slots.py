"""A short `__init__` for frozen dataclasses that are made for every item."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, TypeVar

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
