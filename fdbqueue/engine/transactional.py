"""The one `transactional` decorator and the retry loops: one for each kind of function.

Both take a database of either engine, the binding's own ``fdb.Database``, or an open transaction. The caller commits
an open transaction.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import FDBError, adopt_binding, note_retry
from fdbqueue.engine.steps import Steps, aio, run, run_async, wait_in_thread

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
        f"A database or a transaction was expected, not {type(tr_or_db).__name__}: the first argument is what"
        " fdbqueue.open returned, or the transaction that your function was given."
    )


def only_database(db: object, verb: str, remedy: str) -> None:
    """Raise if `db` is no database; for verbs that make their own transactions.

    Args:
        db: The verb's argument.
        verb: The verb's name, for the message.
        remedy: What to do in a transaction, as a sentence.

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
    """Raise if `tr` is no transaction; for methods that are a part of the caller's transaction.

    Args:
        tr: The method's argument.
        verb: The method's name, for the message.

    Raises:
        TypeError: `tr` is no transaction.
    """
    if is_database(tr):
        raise TypeError(f"{verb} is a part of a transaction: it takes a transaction, not a database.")


def _is_snapshot(given: object) -> bool:
    """Return whether `given` can only read, like ``tr.snapshot``."""
    return hasattr(given, "get_range") and not (hasattr(given, "create_transaction") or hasattr(given, "commit"))


def again(tr: Transaction, error: FDBError) -> Steps[None]:
    """Wait as the engine demands after this error, and make `tr` new for another attempt.

    Every retry in the library passes here.

    Raises:
        FDBError: the error is not retryable, or the retry limit or timeout that is set on `tr` is used up.
    """
    yield tr.on_error(error.code)
    note_retry(error)


def repeated(tr: Transaction, body: Callable[[Transaction], Steps[T]], *, commits: bool = True) -> Steps[T]:
    """Run `body` in `tr` and commit it; repeat both until the commit succeeds.

    Args:
        tr: the transaction.
        body: its steps. Their retryable errors repeat them.
        commits: whether to commit at all.

    Raises:
        FDBError: as `again`.
    """
    while True:
        try:
            result = yield from body(tr)
            if commits:
                yield tr.commit()
            return result
        except FDBError as error:
            yield from again(tr, error)


def repeated_call(tr: Transaction, call: Callable[[], T]) -> T:
    """Do as `repeated` for a call that blocks this thread."""
    while True:
        try:
            result = call()
            wait_in_thread(tr.commit())
            return result
        except FDBError as error:
            run(again(tr, error))


def attempts(db: Database, body: Callable[[Transaction], Steps[T]]) -> Steps[T]:
    """Run `body` in its own transaction and commit it; repeat both until the commit succeeds.

    Like the binding's loop, it repeats a commit whose outcome is unknown (1021). So `body` must be safe to apply twice,
    or `fdbqueue.writes.once` must wrap it.

    Raises:
        FDBError: the error is not retryable, or the retry limit or timeout that is set on `db` is used up.
    """
    adopt_binding()
    answer = _first_answer(db)
    return repeated(db.create_transaction(), body) if answer is None else _attempts_after(answer, db, body)


def _attempts_after(answer: Future[None], db: Database, body: Callable[[Transaction], Steps[T]]) -> Steps[T]:
    yield answer
    return (yield from repeated(db.create_transaction(), body))


def connected(db: Database) -> Steps[None]:
    """Wait for the first answer of a cluster, if this process has none yet.

    `create_transaction` would block the thread for it.

    Raises:
        ClusterError: the cluster can't be used.
    """
    answer = _first_answer(db)
    if answer is not None:
        yield answer


def _first_answer(db: object) -> Future[None] | None:
    first: Callable[[], Future[None] | None] | None = getattr(db, "first_answer", None)
    return None if first is None else first()


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
    transaction, and the decorator commits that. On a retryable error, both are repeated. So the function may run more
    than once, also after a commit whose outcome is unknown.

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
        ValueError: the function is a generator, or returns a generator or a coroutine: its body would run after the
            transaction. Or it has no such parameter.
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

        def call() -> T:
            result = func(*args, **kwargs)
            if inspect.isgenerator(result):
                raise ValueError(_NO_GENERATORS)
            if inspect.iscoroutine(result):
                result.close()
                raise ValueError(f"{func.__qualname__} returned a coroutine, and none of it has run: {_ASYNC}")
            return result

        return repeated_call(tr, call)

    return wrapper


def _wrap_async(func: Callable[..., Any], parameter: str, index: int) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get(parameter, args[index] if len(args) > index else None)
        if (answer := _first_answer(given)) is not None:
            await aio(answer)
        tr, args, kwargs = _begun(parameter, index, args, kwargs)
        if tr is None:
            return await func(*args, **kwargs)
        while True:
            try:
                result = await func(*args, **kwargs)
                await aio(tr.commit())
                return result
            except FDBError as error:
                await run_async(again(tr, error))

    return wrapper


def _begun(
    parameter: str, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Transaction | None, tuple[Any, ...], dict[str, Any]]:
    """Replace the given database by a new transaction and return it; None if the caller commits, given no database."""
    if parameter not in kwargs and len(args) <= index:
        return None, args, kwargs  # the call of the function raises the error for the missing argument
    given = kwargs[parameter] if parameter in kwargs else args[index]
    if _is_snapshot(given) or not is_database(given):
        return None, args, kwargs
    adopt_binding()
    tr = given.create_transaction()
    if parameter in kwargs:
        return tr, args, {**kwargs, parameter: tr}
    return tr, (*args[:index], tr, *args[index + 1 :]), kwargs
