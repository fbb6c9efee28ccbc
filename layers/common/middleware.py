"""Put middleware around a consumer's handler.

A middleware is called with the lease and with the next call, and returns what that returns, or something else:

    async def told(lease, call_next):          def told(lease, call_next):
        print("begins", lease.position)            print("begins", lease.position)
        return await call_next(lease)              return call_next(lease)

A coroutine function runs in the event loop, around any handler. A plain function runs in the handler's thread. So it
can only be inside of the coroutine functions, around a plain handler.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

from ..leases import Lease
from .handlers import Handler, Threads, in_context, is_async, result_of
from .observing import around_all

Next: TypeAlias = Callable[[Any], Any]
"""Calls the next middleware with a lease, or the handler. In a coroutine function it is awaited."""
Middleware: TypeAlias = Callable[[Any, Next], Any]
"""Called with the lease and the next call. Its result is the handler's result for the consumer."""
Call: TypeAlias = Callable[[Lease], Any]
"""Calls a handler with all that is around it; to be awaited."""


class AsyncMiddleware(ABC):
    """A middleware that is a coroutine function. It gives a list of several kinds a type for type checkers."""

    @abstractmethod
    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        """Handle the item."""


def checked(given: object, handler: Handler) -> tuple[Middleware, ...]:
    """Return a consumer's middleware, outermost first.

    Raises:
        TypeError: `given` is no list, one of it can't be called with a lease and the next call, or a plain function is
            around a coroutine function.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"middleware is a list, the outermost first, as in middleware=[TimeLimit(60)], not {given!r}.")
    chain: tuple[Middleware, ...] = tuple(given)
    for one in chain:
        _check_one(one)
    inner_is_async = is_async(handler)
    for one in reversed(chain):
        if inner_is_async and not is_async(one):
            raise TypeError(
                f"The middleware {one!r} is a plain function around a coroutine function, and can't await it. Write"
                " `async def`, or put it behind those that are coroutine functions, around a plain handler."
            )
        inner_is_async = is_async(one)
    return chain


def _check_one(one: object) -> None:
    if isinstance(one, type):
        raise TypeError(f"A middleware is an object or a function, not the class {one.__name__}: give an instance.")
    if not callable(one):
        raise TypeError(f"A middleware is called with the lease and the next call, and {one!r} can't be.")
    call: Any = one
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"The middleware {one!r} is a generator, and none of it would run. Return `call_next(lease)`.")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"A middleware is called with two arguments, the lease and the next call; {one!r} takes {signature}."
        ) from error


def bound(chain: Sequence[Middleware], consumer: Any) -> list[Middleware]:
    """Return the middleware for one consumer. One with a method `for_consumer` may return another one in its place."""
    found = []
    for one in (*around_all, *chain):
        bind = getattr(one, "for_consumer", None)
        found.append(one if bind is None else bind(consumer))
    return found


def with_plain(handler: Handler, chain: Sequence[Middleware]) -> tuple[Handler, list[Middleware]]:
    """Return the handler with the plain functions that are around it, and the coroutine functions that are left."""
    left = list(chain)
    while left and not is_async(left[-1]):
        handler = _around(left.pop(), handler)
    return handler, left


def _around(one: Middleware, handler: Handler) -> Handler:
    def call(lease: Lease) -> Any:
        return one(lease, handler)

    return call


def call_of(handler: Handler, threads: Threads | None, chain: Sequence[Middleware]) -> Call:
    """Return the call of a handler, with the coroutine functions of `chain` around it."""
    call: Call = partial(result_of, handler, threads)
    if not chain:
        return call
    for one in reversed(chain):
        call = partial(_awaited, one, call)
    return partial(_in_own_context, call)


async def _awaited(one: Middleware, call: Call, lease: Lease) -> Any:
    result = one(lease, call)
    while inspect.isawaitable(result):  # it may have returned `call_next(lease)` without awaiting it
        result = await result
    return result


async def _in_own_context(call: Call, lease: Lease) -> Any:
    """Call in a copy of the context: what a middleware sets is seen by the handler, and not by the next item."""
    return await in_context(copy_context(), call(lease))
