"""`file_verb`: `verb`, with a type by which checkers take the object for a file, as `shutil.copyfileobj` wants one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from fdbqueue.engine.verb import BoundVerb
from fdbqueue.lowlevel import Steps, verb

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def file_verb(steps: Callable[Concatenate[S, P], Steps[T]]) -> BoundVerb[P, T]:
    """Turn a method that returns steps into a verb. Type checkers match no descriptor with a protocol."""
    return cast(BoundVerb[P, T], verb(steps))
