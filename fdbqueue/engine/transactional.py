"""The one `transactional` decorator and the one retry loop.

Both take a database of either engine, the binding's own ``fdb.Database``, or an open transaction. The caller commits
an open transaction.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError, adopt_binding
from fdbqueue.engine.steps import Steps, aio

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

_NO_GENERATORS = "Generators can not be wrapped with transactional"
_ASYNC = "wrap the async function itself with transactional, and await its calls."


def is_database(tr_or_db: object) -> bool:
    """Return True for a database, which makes transactions, and False for a transaction.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(tr_or_db, "create_transaction"):
        return True
    if hasattr(tr_or_db, "commit"):
        return False
    if _is_snapshot(tr_or_db):
        raise TypeError("A transaction was expected, not its snapshot: give the transaction itself.")
    raise TypeError(
        f"A database or a transaction was expected, not {type(tr_or_db).__name__}: give what fdbqueue.open returned, or"
        " the transaction that your function was given."
    )


def only_database(db: object, verb: str, remedy: str) -> None:
    """Refuse a transaction where a verb makes its own ones.

    Args:
        db: what the verb was given.
        verb: its name, for the message.
        remedy: what to do in a transaction, as a sentence.

    Raises:
        TypeError: `db` is no database.
    """
    if hasattr(db, "create_transaction"):
        return
    if hasattr(db, "commit"):
        raise TypeError(f"{verb} makes its own transactions: it takes a database, not a transaction. {remedy}")
    given = "a transaction's snapshot" if _is_snapshot(db) else type(db).__name__
    raise TypeError(f"{verb} takes a database, not {given}: give what fdbqueue.open returned.")


def only_transaction(tr: object, verb: str) -> None:
    """Refuse a database where a method is a part of the caller's transaction.

    Args:
        tr: what the method was given.
        verb: its name, for the message.

    Raises:
        TypeError: `tr` is no transaction.
    """
    if is_database(tr):
        raise TypeError(f"{verb} is a part of a transaction: it takes a transaction, not a database.")


def _is_snapshot(given: object) -> bool:
    """Say whether `given` only reads, as ``tr.snapshot`` does."""
    return hasattr(given, "get_range") and not (hasattr(given, "create_transaction") or hasattr(given, "commit"))


def attempts(db: Database, body: Callable[[Transaction], Steps[T]]) -> Steps[T]:
    """Run `body` in a transaction of its own and commit it, again and again until it commits.

    Like the binding's loop it repeats a commit whose outcome is unknown (1021): `body` must bear being applied
    twice, or be wrapped by `fdbqueue.once`.

    Raises:
        FDBError: one that is not retryable, or whose retry limit or timeout, set on `db`, is used up.
    """
    adopt_binding()
    tr = db.create_transaction()
    while True:
        try:
            result = yield from body(tr)
            yield tr.commit()
            return result
        except FDBError as error:
            yield tr.on_error(error.code)


@overload
def transactional(  # type: ignore[overload-overlap]  # a method's first parameter is no transaction
    func: Callable[Concatenate[Transaction, P], T], /
) -> Callable[Concatenate[Transaction | Database, P], T]: ...
@overload
def transactional(
    func: Callable[Concatenate[S, Transaction, P], T], /
) -> Callable[Concatenate[S, Transaction | Database, P], T]: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def transactional(func: Any = None, /, *, parameter: str = "tr") -> Any:
    """Let the function's `tr` parameter take a database as well: the call is then a transaction of its own.

    Given a transaction or its snapshot, the function runs in it and commits nothing. Given a database, it runs in a
    new transaction, which is committed. Both are repeated while the error is one that a retry can cure. So the
    function may run more than once, also after a commit whose outcome is unknown.

    >>> import fdbqueue
    >>> @transactional
    ... def count_up(tr, key):
    ...     tr.add(key, (1).to_bytes(8, "little"))
    >>> with fdbqueue.open("memory:") as db:
    ...     count_up(db, b"n")
    ...     int.from_bytes(db[b"n"], "little")
    1

    An ``async def`` is awaited, as is its commit, and blocks no event loop as long as it awaits what it reads:
    ``await orders.dequeue.aio(tr)``, ``await fdbqueue.aio(tr[b"n"])``. It has the five seconds of every transaction.

    Raises:
        ValueError: the function is a generator, or returns one or a coroutine, so that a body would run after its
            transaction; or it has no such parameter.
    """
    if func is None:
        return functools.partial(_decorate, parameter=parameter)
    return _decorate(func, parameter=parameter)


def _decorate(func: Callable[..., Any], *, parameter: str) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise ValueError(_NO_GENERATORS)
    parameters = list(inspect.signature(func).parameters)
    if parameter not in parameters:
        raise ValueError(f"{func.__qualname__} has no parameter {parameter!r} to take the transaction by.")
    wrap = _wrap_async if inspect.iscoroutinefunction(func) else _wrap
    return functools.wraps(func)(wrap(func, parameter, parameters.index(parameter)))


def _wrap(func: Callable[..., T], parameter: str, index: int) -> Callable[..., T]:
    def wrapper(*args: Any, **kwargs: Any) -> T:
        tr, args, kwargs = _begun(parameter, index, args, kwargs)
        if tr is None:
            return func(*args, **kwargs)
        while True:
            try:
                result = func(*args, **kwargs)
                if inspect.isgenerator(result):
                    raise ValueError(_NO_GENERATORS)
                if inspect.iscoroutine(result):
                    result.close()
                    raise ValueError(f"{func.__qualname__} returned a coroutine, of which nothing has run: {_ASYNC}")
                tr.commit().wait()
                return result
            except FDBError as error:
                tr.on_error(error.code).wait()

    return wrapper


def _wrap_async(func: Callable[..., Any], parameter: str, index: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        tr, args, kwargs = _begun(parameter, index, args, kwargs)
        if tr is None:
            return await func(*args, **kwargs)
        while True:
            try:
                result = await func(*args, **kwargs)
                await aio(tr.commit())
                return result
            except FDBError as error:
                await aio(tr.on_error(error.code))

    return wrapper


def _begun(
    parameter: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Transaction | None, tuple[Any, ...], dict[str, Any]]:
    """Begin a transaction in place of the database that was given, or return None: then nothing is committed here."""
    if parameter not in kwargs and len(args) <= index:
        return None, args, kwargs  # the function itself says what is missing
    given = kwargs[parameter] if parameter in kwargs else args[index]
    if _is_snapshot(given) or not is_database(given):
        return None, args, kwargs
    adopt_binding()
    tr = given.create_transaction()
    if parameter in kwargs:
        return tr, args, {**kwargs, parameter: tr}
    return tr, (*args[:index], tr, *args[index + 1 :]), kwargs
