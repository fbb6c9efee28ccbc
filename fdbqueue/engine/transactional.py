"""The one `transactional` decorator and the one retry loop.

Both take whatever the caller has: a database of either engine, the binding's own ``fdb.Database``, or a transaction
that is already open and then belongs to the caller, who commits it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError, adopt_binding
from fdbqueue.engine.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")

_NO_GENERATORS = "Generators can not be wrapped with transactional"


def is_database(tr_or_db: object) -> bool:
    """Say whether `tr_or_db` makes transactions, rather than being one.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(tr_or_db, "create_transaction"):
        return True
    if hasattr(tr_or_db, "get_range"):
        return False
    raise TypeError(
        f"A database or a transaction was expected, not {type(tr_or_db).__name__}: give what fdbqueue.open returned, or"
        " the transaction that your function was given."
    )


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
def transactional(func: Callable[P, T], /) -> Callable[P, T]: ...
@overload
def transactional(*, parameter: str = "tr") -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def transactional(func: Any = None, /, *, parameter: str = "tr") -> Any:
    """Let the function's `tr` parameter take a database as well: the call is then a transaction of its own.

    Given a transaction, the function runs in it and nothing is committed. Given a database, it runs in a new
    transaction, which is committed, and both are repeated as long as the engine says that it helps; the function
    may therefore run more than once, also after a commit whose outcome is unknown.

    >>> import fdbqueue
    >>> @transactional
    ... def count_up(tr, key):
    ...     tr.add(key, (1).to_bytes(8, "little"))
    >>> with fdbqueue.open("memory:") as db:
    ...     count_up(db, b"n")
    ...     int.from_bytes(db[b"n"], "little")
    1

    Raises:
        ValueError: the function is a generator, returns one or is async, so that its body would run after its
            transaction; or it has no such parameter.
    """
    if func is None:
        return functools.partial(_decorate, parameter=parameter)
    return _decorate(func, parameter=parameter)


def _decorate(func: Callable[..., T], *, parameter: str) -> Callable[..., T]:
    if inspect.isgeneratorfunction(func):
        raise ValueError(_NO_GENERATORS)
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise ValueError(
            f"{func.__qualname__} is async, and can not be wrapped with transactional. Let it be a plain function, or"
            " await the commit of a transaction from db.create_transaction() yourself."
        )
    parameters = list(inspect.signature(func).parameters)
    if parameter not in parameters:
        raise ValueError(f"{func.__qualname__} has no parameter {parameter!r} to take the transaction by.")
    index = parameters.index(parameter)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        if parameter not in kwargs and len(args) <= index:
            return func(*args, **kwargs)  # which says what is missing
        given = kwargs[parameter] if parameter in kwargs else args[index]
        if not is_database(given):
            return func(*args, **kwargs)
        adopt_binding()
        tr = given.create_transaction()
        if parameter in kwargs:
            kwargs[parameter] = tr
        else:
            args = (*args[:index], tr, *args[index + 1 :])
        while True:
            try:
                result = func(*args, **kwargs)
                if inspect.isgenerator(result):
                    raise ValueError(_NO_GENERATORS)
                tr.commit().wait()
                return result
            except FDBError as error:
                tr.on_error(error.code).wait()

    return wrapper
