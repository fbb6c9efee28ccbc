"""Verbs: methods written once as steps, called blocking or awaited.

>>> from fdbqueue.engine.steps import Steps
>>> class Greeter:
...     @verb
...     def greet(self, name: str) -> Steps[str]:
...         return f"hello {name}"
...         yield
>>> Greeter().greet("you")
'hello you'
>>> import asyncio
>>> asyncio.run(Greeter().greet.aio("you"))
'hello you'
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from fdbqueue.engine.steps import Steps, run, run_async

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


class BoundVerb(Generic[P, T]):
    """A verb of one object: call it, or await its `aio`."""

    __slots__ = ("steps",)

    def __init__(self, steps: Callable[P, Steps[T]]) -> None:
        self.steps = steps
        """The verb as steps, to be part of another one: ``yield from queue.dequeue.steps(tr)``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, blocking the calling thread."""
        return run(self.steps(*args, **kwargs))

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it without blocking the event loop, and without a thread."""
        return await run_async(self.steps(*args, **kwargs))


class Verb(Generic[S, P, T]):
    """The descriptor behind `verb`."""

    def __init__(self, steps: Callable[Concatenate[S, P], Steps[T]]) -> None:
        self._steps = steps
        functools.update_wrapper(cast(Any, self), steps)

    @overload
    def __get__(self, instance: None, owner: Any) -> Verb[S, P, T]: ...
    @overload
    def __get__(self, instance: S, owner: Any) -> BoundVerb[P, T]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else BoundVerb(MethodType(self._steps, instance))


def verb(steps: Callable[Concatenate[S, P], Steps[T]]) -> Verb[S, P, T]:
    """Make a method that is a generator of steps a verb."""
    return Verb(steps)
