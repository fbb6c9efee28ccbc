"""Databases and transactions, told apart, and the retry loops. `decorator.py` has `transactional`.

All take a database of either engine, the binding's own ``fdb.Database``, or an open transaction. The caller commits
an open transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import FDBError, adopt_binding, note_retry
from fdbqueue.engine.steps import Steps, begun, run, value_of, wait_in_thread

T = TypeVar("T")


def is_database(tr_or_db: object) -> bool:
    """Return True for a database, which makes transactions, and False for a transaction.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(tr_or_db, "create_transaction"):
        return True
    if hasattr(tr_or_db, "commit"):
        return False
    if is_snapshot(tr_or_db):
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
    given = "a transaction's snapshot" if is_snapshot(db) else type(db).__name__
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


def is_snapshot(given: object) -> bool:
    """Return whether `given` can only read, like ``tr.snapshot``."""
    return hasattr(given, "get_range") and not (hasattr(given, "create_transaction") or hasattr(given, "commit"))


async def again(tr: Transaction, error: FDBError) -> None:
    """Wait as the engine demands after this error, and make `tr` new for another attempt.

    Every retry in the library passes here.

    Raises:
        FDBError: the error is not retryable, or the retry limit or timeout that is set on `tr` is used up.
    """
    await value_of(tr.on_error(error.code))
    note_retry(error)


async def repeated(tr: Transaction, body: Callable[[Transaction], Steps[T]], *, commits: bool = True) -> T:
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
            result = await begun(body, tr)
            if commits:
                await value_of(tr.commit())
            return result
        except FDBError as error:
            await again(tr, error)


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


async def _attempts_after(answer: Future[None], db: Database, body: Callable[[Transaction], Steps[T]]) -> T:
    await value_of(answer)
    return await repeated(db.create_transaction(), body)


async def connected(db: Database) -> None:
    """Wait for the first answer of a cluster, if this process has none yet.

    `create_transaction` would block the thread for it.

    Raises:
        ClusterError: the cluster can't be used.
    """
    answer = _first_answer(db)
    if answer is not None:
        await value_of(answer)


def _first_answer(db: object) -> Future[None] | None:
    first: Callable[[], Future[None] | None] | None = getattr(db, "first_answer", None)
    return None if first is None else first()
