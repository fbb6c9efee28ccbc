"""Databases and transactions, told apart, and the retry loops.

All take a database of either engine, the binding's own ``fdb.Database``, or an open transaction. The caller commits
an open transaction.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, overload

from fdbqueue.engine.api import Database, Future, Transaction
from fdbqueue.engine.errors import (
    COMMIT_UNKNOWN_RESULT,
    NOT_COMMITTED,
    FDBError,
    StorageError,
    adopt_binding,
    leaves_in_doubt,
    note_retry,
    predicates,
)
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.keys import within
from fdbqueue.engine.optional import no_turn
from fdbqueue.engine.steps import Awaited, Steps, begun, finished, rows, run, run_async, value_of, wait_in_thread

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


# Commit markers: a transaction that is repeated learns whether its earlier try took effect.
#
# A commit can fail with 1021: it may or may not have taken effect. So the transaction also writes a marker, unique
# to the
# attempt, under a key that only one call uses at a time. After an unknown outcome the next attempt reads the
# marker. If
# it is there, the call returns the result of the earlier attempt. (docs/adr/0007)
#
# A body of `transactional` writes a marker only if a call of a queue asks for one: `asks_marker`. (docs/adr/0171)
#
# A client is one process. Its keys are ``(prefix, client, slot)``. The slot's next call overwrites the marker, so
# that a
# client leaves only as many markers as it had concurrent calls. New clients remove the markers of clients that have
# been
# gone for a day.

TRANSACTIONS = b"\xfdfdbqueue/once/"
"""The begin of the keys of the markers of `transactional`, which belong to no queue. No tuple begins so."""
STALE_AFTER_S = 86_400.0
"""Age, by the clock of the looking machine, at which a marker is useless: no commit is in doubt for so long."""
TRUSTED_FOR_S = STALE_AFTER_S / 2
"""Age, by this machine's clock, up to which a missing marker was never written. A process that was stopped for longer
does not know whether another process removed the marker. The rest of a day allows for wrong clocks of other
machines."""
_SWEEP_LIMIT = 16
_MARKER = struct.Struct(">QQ")  # attempt, wall clock in microseconds


class SlotClaim:
    """One slot of this process's commit markers, used by one call at a time."""

    is_asked = True
    """Whether the present attempt writes a marker."""
    waits_for_turns = True
    """Whether an attempt after a conflict waits for this process's turn, on an engine that has turns."""

    __slots__ = ("_client", "in_doubt", "key")

    def __init__(self, client: Client) -> None:
        self._client = client
        try:
            self.key = client.free.pop()
        except IndexError:
            self.key = client.new_slot()
        self.in_doubt = False
        """Whether it is unknown if the commit took effect. It stays so after `transact` failed."""

    def close(self) -> None:
        """Free the slot for the next call, unless a commit under way may still write its marker there."""
        if not self.in_doubt:
            self._client.free.append(self.key)

    def write_marker(self, tr: Transaction) -> bytes:
        """Write a marker that no other attempt of this client has, and return it."""
        marker: bytes = _MARKER.pack(next(self._client.attempts), time.time_ns() // 1000)
        tr.set(self.key, marker)
        return marker

    async def _turn(self, tr: Transaction) -> None:
        if self.waits_for_turns and (coming := getattr(tr, "next_turn", no_turn)()) is not None:
            await value_of(coming)

    async def transact(
        self,
        tr: Transaction,
        body: Callable[[Transaction], Steps[T]],
        *,
        failed: FDBError | None = None,
        doubt: tuple[bytes, T] | None = None,
        on_retry: Callable[[FDBError], None] = lambda error: None,
    ) -> T:
        """Run `body` in `tr` and commit it, until that has happened exactly once.

        Args:
            failed: the error of a first attempt that the caller made in `tr` itself.
            doubt: that attempt's marker and result, if its outcome is unknown.
            on_retry: called with the error before each retry, once it is certain that the attempt had no effect. An
                exception from it ends the call.
        """
        last: FDBError | None = None
        while True:
            committing: tuple[bytes, T] | None = None
            self.in_doubt = doubt is not None
            try:
                if failed is not None:
                    if doubt is None:
                        on_retry(failed)
                    await again(tr, failed)
                    if failed.code == NOT_COMMITTED:
                        await self._turn(tr)
                    last, failed = failed, None
                if doubt is not None:
                    # The client library answers 1021 only when the commit can no longer be under way, so this read is
                    # final. After 1031 the commit may be under way, but 1031 is not retried.
                    value = await value_of(tr.get(self.key))
                    if value.present() and bytes(value) == doubt[0]:
                        self.in_doubt = False
                        return doubt[1]
                    if _age_s(doubt[0]) > TRUSTED_FOR_S:
                        break
                    self.in_doubt = False
                    doubt = None
                    if last is not None:
                        on_retry(last)
                result = await begun(body, tr)
                if self.is_asked:
                    committing = (self.write_marker(tr), result)
                    self.in_doubt = True  # also if the caller is cancelled during this wait
                await value_of(tr.commit())
                self.in_doubt = False
                return result
            except FDBError as error:
                if failed is not None:
                    if doubt is not None and not leaves_in_doubt(error):
                        raise FDBError(COMMIT_UNKNOWN_RESULT) from error
                    raise
                if committing is not None and leaves_in_doubt(error):
                    doubt = committing
                failed = error
            except Exception as error:
                # A disk that refuses the read, or closed files, say nothing about the commit in doubt.
                if doubt is not None:
                    raise FDBError(COMMIT_UNKNOWN_RESULT) from error
                if isinstance(error, StorageError):
                    self.in_doubt = False  # the engine kept nothing of the commit that it refused
                raise
        raise FDBError(COMMIT_UNKNOWN_RESULT)


class _AskedClaim(SlotClaim):
    """The slot of a call of `transactional`. An attempt writes a marker only if a call in its body asks for one."""

    __slots__ = ("is_asked",)
    waits_for_turns = False  # its body may take no items

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.is_asked = False


def asks_marker(tr: object) -> None:
    """Ask for a commit marker, if `tr` is the transaction of a `transactional` function.

    Each call that changes a queue asks, because it may not be repeated after a commit that took effect: an ack would
    find its lease gone, an enqueue would append twice.
    """
    claim = getattr(tr, "marker_claim", None)
    if claim is not None:
        claim.is_asked = True


async def transact_body(db: Any, tr: Any, body: Callable[[Transaction], Steps[T]]) -> T:
    """Run the body of a `transactional` function in `tr`, a transaction of `db`, and commit it.

    If a call in it has asked for a marker, the body takes effect exactly once, and the result is that of the attempt
    that did. Otherwise it is repeated after every retryable error.

    Raises:
        FDBError: as `Once.transact`.
    """
    client = _clients.get(db)
    if client is None or client.pid != os.getpid():
        client = _clients[db] = Client(TRANSACTIONS)
    claim = tr.marker_claim = _AskedClaim(client)

    async def attempt(tr: Transaction) -> T:
        claim.is_asked = False
        result = await begun(body, tr)
        if claim.is_asked and not client.has_swept:
            await client.sweep(db)
        return result

    try:
        return await claim.transact(tr, attempt)
    finally:
        claim.close()


class Client:
    """One process's commit markers under one prefix. After a fork the child makes its own."""

    def __init__(self, prefix: bytes) -> None:
        self.pid = os.getpid()
        self.begin: bytes = prefix + fdb_tuple.pack((os.urandom(8),))
        self._end = within(prefix)[1]
        self.has_swept = False
        self.free: deque[bytes] = deque()
        """The keys of the slots that no call uses now."""
        self.attempts = itertools.count(1)
        self._slots = itertools.count(1)

    def new_slot(self) -> bytes:
        """Return the key of another slot."""
        slot: bytes = fdb_tuple.pack((next(self._slots),))
        return self.begin + slot

    async def sweep(self, db: Database) -> None:
        """Remove some markers of clients that are long gone.

        It begins at the client's own random place among the markers. It reads them by snapshot, so that it does not
        conflict with calls whose markers it keeps. It does conflict with calls whose markers it removes: the client of
        an old marker may be back, and in doubt right now. Then the sweep fails, and the calls do not.
        """
        self.has_swept = True
        tr = db.create_transaction()
        try:
            found = await rows(tr.snapshot, self.begin, self._end, limit=_SWEEP_LIMIT)
            old = [row.key for row in found if len(row.value) == _MARKER.size and _age_s(row.value) > STALE_AFTER_S]
            for key in old:
                tr.add_read_conflict_key(key)
                tr.clear(key)
            if old:
                await value_of(tr.commit())
        except FDBError as error:
            # Another client will sweep. This client's call must not fail because of the sweep.
            if not predicates.retryable(error):
                raise


def _age_s(marker: bytes) -> float:
    """Return the age of a marker by this machine's clock."""
    made_at_us: int = _MARKER.unpack(marker)[1]
    return time.time_ns() / 1e9 - made_at_us / 1e6


_clients: weakref.WeakKeyDictionary[Any, Client] = weakref.WeakKeyDictionary()
"""The clients of `transactional`, by their databases."""


# The one `transactional` decorator, for functions and for coroutine functions.

P = ParamSpec("P")
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
    def wrapper(*args: object, **kwargs: object) -> T:
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
    async def wrapper(*args: object, **kwargs: object) -> Any:
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
