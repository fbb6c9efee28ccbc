"""The one `transactional` decorator, for functions and for coroutine functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import adopt_binding
from fdbqueue.engine.marker import transact_body
from fdbqueue.engine.steps import Awaited, Steps, finished, run, run_async, value_of
from fdbqueue.engine.transactional import connected, is_database, is_snapshot

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

_NO_GENERATORS = "Generators can not be wrapped with transactional"
_ASYNC = "wrap the async function itself with transactional, and await its calls."


@overload
def transactional(  # type: ignore[overload-overlap]  # a method's first parameter is `self`
    func: Callable[Concatenate[Transaction, P], T], /
) -> Callable[Concatenate[Transaction | Database, P], T]: ...
@overload
def transactional(
    func: Callable[Concatenate[S, Transaction, P], T], /
) -> Callable[Concatenate[S, Transaction | Database, P], T]: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def transactional(func: Any = None, /, *, parameter: str = "tr") -> Any:
    """Allow the function's `tr` parameter to be a database too; then the call is its own transaction.

    Given a transaction or its snapshot, the function runs in it and commits nothing. Given a database, it runs in a new
    transaction, and the decorator commits that. On a retryable error, both are repeated, so the function may run more
    than once.

    If a call in the function changes a queue, its transaction takes effect once, even if the outcome of a commit is
    unknown (1021). If that commit took effect, the function does not run again, and its result is returned. Other
    functions run again. This costs one more key in the transaction, and after a 1021 one read.

    >>> import fdbqueue
    >>> from fdbqueue import transactional
    >>> @transactional
    ... def count_up(tr, key):
    ...     tr.add(key, (1).to_bytes(8, "little"))
    >>> with fdbqueue.open("memory:") as db:
    ...     count_up(db, b"n")
    ...     int.from_bytes(db[b"n"], "little")
    1

    The decorator awaits an ``async def`` function and its commit. The function blocks no event loop if it awaits its
    reads: ``await orders.dequeue.aio(tr)``, ``await fdbqueue.aio(tr[b"n"])``. Its limit is five seconds, like that of
    every transaction.

    Raises:
        TypeError: what it decorates is no function.
        FDBError: one that can't be retried. After 1031, from a timeout that you set, the outcome is unknown.
        ValueError: the function is a generator, or returns a generator or a coroutine: its body would run after the
            transaction. Or it has no such parameter.
    """
    if func is None:
        return functools.partial(_decorate, parameter=parameter)
    return _decorate(func, parameter=parameter)


def _decorate(func: Callable[..., Any], *, parameter: str) -> Callable[..., Any]:
    if not callable(func):
        raise TypeError(f"transactional decorates a function, and {func!r} is none.")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ValueError(_NO_GENERATORS)
    parameters = list(inspect.signature(func).parameters)
    if parameter not in parameters:
        raise ValueError(f"{func.__qualname__} has no parameter {parameter!r} to take the transaction by.")
    wrap = _wrap_async if inspect.iscoroutinefunction(func) else _wrap
    return functools.wraps(func)(wrap(func, parameter, parameters.index(parameter)))


def _wrap(func: Callable[..., T], parameter: str, index: int) -> Callable[..., T]:
    def wrapper(*args: Any, **kwargs: Any) -> T:
        db, tr, args, kwargs = _begun(parameter, index, args, kwargs)
        if tr is None:
            return func(*args, **kwargs)

        def body(tr: Transaction) -> Steps[T]:
            result = func(*args, **kwargs)
            if inspect.isgenerator(result):
                raise ValueError(_NO_GENERATORS)
            if inspect.iscoroutine(result):
                result.close()
                raise ValueError(f"{func.__qualname__} returned a coroutine, and none of it has run: {_ASYNC}")
            return finished(result)

        return run(transact_body(db, tr, body))

    return wrapper


def _wrap_async(func: Callable[..., Any], parameter: str, index: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        given: Any = kwargs.get(parameter, args[index] if len(args) > index else None)
        await run_async(connected(given))
        db, tr, args, kwargs = _begun(parameter, index, args, kwargs)
        if tr is None:
            return await func(*args, **kwargs)

        async def body(tr: Transaction) -> Any:
            return await value_of(cast("Future[Any]", Awaited(func(*args, **kwargs))))

        return await run_async(transact_body(db, tr, body))

    return wrapper


def _begun(
    parameter: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Transaction | None, tuple[Any, ...], dict[str, Any]]:
    """Replace the given database by a new transaction. Return both; the transaction is None if the caller commits."""
    if parameter not in kwargs and len(args) <= index:
        return None, None, args, kwargs  # the call of the function raises the error for the missing argument
    given = kwargs[parameter] if parameter in kwargs else args[index]
    if is_snapshot(given) or not is_database(given):
        return None, None, args, kwargs
    adopt_binding()
    tr = given.create_transaction()
    if parameter in kwargs:
        return given, tr, args, {**kwargs, parameter: tr}
    return given, tr, (*args[:index], tr, *args[index + 1 :]), kwargs
