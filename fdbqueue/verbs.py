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
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from fdbqueue.engine.steps import Steps, run, run_async

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


class BoundVerb(Generic[P, T]):
    # A verb of one object: call it, or await its `aio`. What it tells of itself, to `help` and to a notebook's `?`, is
    # what its method says; found when it is asked for, since one of these is made at every call.

    __slots__ = ("steps",)

    def __init__(self, steps: Callable[P, Steps[T]]) -> None:
        self.steps = steps
        """The verb as steps, to be part of another one: ``yield from queue.dequeue.steps(tr)``."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it, blocking the calling thread."""
        return run(self.steps(*args, **kwargs))

    def __repr__(self) -> str:
        method = cast(MethodType, self.steps)
        return f"<verb {method.__qualname__} of {method.__self__!r}>"

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.steps.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self.steps)

    async def aio(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it without blocking the event loop, and without a thread."""
        return await run_async(self.steps(*args, **kwargs))


class Verb(Generic[S, P, T]):
    """The descriptor behind `verb`."""

    def __init__(self, steps: Callable[Concatenate[S, P], Steps[T]]) -> None:
        self._steps = steps
        functools.update_wrapper(cast(Any, self), steps)

    def __call__(self, instance: S, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do it with that object, as ``Queue.dequeue(orders, db)``."""
        return run(self._steps(instance, *args, **kwargs))

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self._steps)

    @overload
    def __get__(self, instance: None, owner: Any) -> Verb[S, P, T]: ...
    @overload
    def __get__(self, instance: S, owner: Any) -> BoundVerb[P, T]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else BoundVerb(MethodType(self._steps, instance))


def verb(steps: Callable[Concatenate[S, P], Steps[T]]) -> Verb[S, P, T]:
    """Make a method that is a generator of steps a verb."""
    return Verb(steps)


def _signature(steps: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the call, which returns what the steps return."""
    signature = inspect.signature(steps)
    returned = signature.return_annotation  # a text, since annotations are not evaluated
    if isinstance(returned, str) and returned.startswith("Steps["):
        signature = signature.replace(return_annotation=returned[len("Steps[") : -1])
    return signature
