"""Steps: coroutines that wait for futures, and the two loops that run them. Logic is written once for two ways to wait.

A body starts a read and awaits its value::

    async def first_two(tr: Transaction) -> list[bytes]:
        a, b = tr.get(b"a"), tr.get(b"b")      # both reads are in flight
        return [bytes(await value_of(a)), bytes(await value_of(b))]

    run(first_two(tr))                          # blocks the thread
    await run_async(first_two(tr))              # lets the event loop continue

`value_of` takes any object with the `Future` methods. `rows` and `columns` read a range. A body must not call ``wait``
itself, because that would block the event loop. It awaits nothing of asyncio, because it may run without an event loop.
(docs/adr/0004)
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from functools import cache
from inspect import CO_ITERABLE_COROUTINE
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fdbqueue.base.deprecation import deprecated
from fdbqueue.engine.api import Future, KeyValue, ReadTransaction, StreamingMode
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, FUTURE_NOT_READY, FDBError

if TYPE_CHECKING:
    import asyncio


# Answers to range reads of a cluster, made into rows with fewer steps of Python than in the binding.

_ROW = struct.Struct("=QiQi")
"""A row in the client library's answer: pointer and length of the key, then of the value."""


def in_few_steps(answer: object) -> Any:
    """Return the future of a range read; one of the binding then makes its rows in fewer steps. It has the same rows.

    *Cost:* the binding makes three objects for each row before the row itself, which is a third of its time.
    """
    kind: Any = type(answer)
    if kind.__module__ == "fdb.impl":
        answer.__class__ = _quick(kind)
    return answer


@cache
def _quick(kind: Any) -> Any:
    binding: Any = sys.modules[kind.__module__]
    if kind is not binding.FutureKeyValueArray or ctypes.sizeof(binding.KeyValueStruct) != _ROW.size:
        return kind
    row_of, copied = binding.KeyValue, ctypes.string_at

    class QuickRows(kind):  # type: ignore[misc]  # the binding has no types
        __slots__ = ()

        def wait(self) -> tuple[list[Any], int, int]:
            self.block_until_ready()
            rows, count, more = ctypes.pointer(binding.KeyValueStruct()), ctypes.c_int(), ctypes.c_int()
            self.capi.fdb_future_get_keyvalue_array(
                self.fpointer, ctypes.byref(rows), ctypes.byref(count), ctypes.byref(more)
            )
            cells = _ROW.iter_unpack(copied(rows, _ROW.size * count.value))
            found = [row_of(copied(key, size), copied(value, length)) for key, size, value, length in cells]
            return found, count.value, more.value

    return QuickRows


T = TypeVar("T")
_main_thread = threading.main_thread()
Steps = Coroutine[Any, Any, T]
"""What a body returns when it is called: `run` it, or await it in another body."""


@types.coroutine
def value_of(future: Future[T]) -> Generator[Any, Any, T]:
    """Wait for `future` in a body of steps, and return its value.

    The embedded engine has the answer of a read already. It is returned at once, and no caller in between is resumed.
    """
    if getattr(future, "is_answer", False):
        return future.wait()
    value: T = yield future
    return value


def begun(body: Callable[..., Steps[T]], tr: object) -> Steps[T]:
    """Call a body with a transaction, and return its steps.

    A generator that yields futures is a body too. This is deprecated since 0.3.0.
    """
    steps: Any = body(tr)
    if type(steps) is GeneratorType and not steps.gi_code.co_flags & CO_ITERABLE_COROUTINE:
        tell_of_generator(steps.__qualname__, stacklevel=2)
        steps = for_all_bodies(steps)
    return steps  # type: ignore[no-any-return]


@types.coroutine
def _for_all_bodies(steps: Any) -> Generator[Any, Any, Any]:
    return (yield from steps)


def for_all_bodies(steps: object) -> Steps[Any]:
    """Return steps that both a coroutine and a generator can wait for."""
    return cast("Steps[Any]", _for_all_bodies(steps))


def tell_of_generator(name: str, *, stacklevel: int) -> None:
    """Warn that a body is a generator."""
    instead = "async def, await in place of yield from, and await value_of(future) in place of yield future"
    deprecated(f"A generator as the body {name}", since="0.3.0", instead=instead, stacklevel=stacklevel + 1)


def _explain(steps: object, error: Exception) -> None:
    """Say what a body is, and how it waits, if an error came from a body that is none or that awaits a future itself.

    Raises:
        TypeError: these are no steps.
    """
    if not hasattr(steps, "send"):
        told = f"A body is a coroutine, and this one returned {steps!r}. Write it as async def"
        raise TypeError(f"{told}, and await value_of(future) in it.") from error
    if "can't be used in 'await' expression" in str(error):
        error.add_note(
            "A future is awaited by value_of, as in await value_of(tr.get(key)); and a verb's steps as they are."
        )


def run(steps: Steps[T]) -> T:
    """Run `steps` to the end; block the calling thread at every future."""
    try:
        future = steps.send(None)
        while True:
            try:
                if _forked or getattr(future, "fpointer", None) is not None:
                    value = wait_in_thread(future)
                else:
                    value = future.wait()
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                future = steps.throw(error)
            else:
                future = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except (AttributeError, TypeError) as error:
        _explain(steps, error)
        raise


def wait_in_thread(future: Any) -> Any:
    """Wait for `future` like its own `wait`, but run no Python in the client's network thread if possible.

    The binding waits for a callback into Python, so that the main thread can be interrupted. So its network thread
    needs the interpreter lock for every answer, and many waiting threads slow each other down. Threads other than the
    main thread can wait in the client library itself.
    """
    if _forked:
        _refuse_parents(future)
    pointer = getattr(future, "fpointer", None)
    if pointer is not None and threading.current_thread() is not _main_thread:
        future.capi.fdb_future_block_until_ready(pointer)
        # Each call into the library releases the interpreter lock and must get it back from other threads. So skip two
        # calls that `wait` does not need: the check for readiness, and freeing memory that the future frees anyway.
        future.block_until_ready = future._release_memory = _nothing
    while True:
        try:
            return future.wait()
        except BaseException as error:
            if pointer is None or (isinstance(error, Exception) and not _is_early(error)):
                raise
            _forget_interrupted(future)
            if not isinstance(error, Exception):
                raise


def _is_early(error: Exception) -> bool:
    return isinstance(error, FDBError) and error.code == FUTURE_NOT_READY


def _forget_interrupted(future: object) -> None:
    """Give this thread a new semaphore to wait at for futures of the binding.

    All waits of the main thread share one. Ctrl-C ends a wait, and its future releases the semaphore later. So a later
    wait would end before its own future is ready, with error 2015. The binding does not see KeyboardInterrupt there.
    """
    kind: Any = type(future)
    storage = getattr(getattr(kind, "block_until_ready", kind.wait), "__globals__", {}).get("_thread_local_storage")
    if storage is not None:
        storage.future_block_semaphore = None


def _nothing() -> None:
    """Do nothing, in place of a call that is not needed."""


class Awaited:
    """A coroutine that steps yield. Only `run_async` can run them."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[object, object, object]) -> None:
        self.coroutine = coroutine


async def run_async(steps: Steps[T]) -> T:
    """Run `steps` to the end in the running event loop, without another thread.

    A cancelled task cancels the future that it waits for. The cancellation is raised in `steps` at that future.
    """
    try:
        future = steps.send(None)
        while True:
            try:
                value = await aio(future)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                future = steps.throw(error)
            else:
                future = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except (AttributeError, TypeError) as error:
        _explain(steps, error)
        raise


async def aio(future: Future[T]) -> T:
    """Await a future of a transaction, as ``stock = await aio(tr[b"stock"])``, without blocking the event loop.

    A range has no future, because iteration reads it. Use ``await asyncio.to_thread(list, tr[begin:end])``.

    Raises:
        TypeError: it is no future. Otherwise what the future's call raised.

    >>> import fdbqueue
    >>> import asyncio
    >>> from fdbqueue import aio
    >>> with fdbqueue.open("memory:") as db:
    ...     tr = db.create_transaction()
    ...     value = asyncio.run(aio(tr[b"stock"]))
    >>> value.present()
    False
    """
    if not hasattr(cast(object, future), "is_ready"):
        if isinstance(future, Awaited):
            return cast(T, await future.coroutine)
        raise TypeError(
            f"aio awaits a future of a transaction, as in await aio(tr[b'stock']), not {future!r}. Await a coroutine"
            " itself, and a verb by its form for event loops: await queue.dequeue.aio(db)."
        )
    if not future.is_ready():
        if _forked:
            _refuse_parents(future)
        await _ready(future)
    return future.wait()


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def _refuse_parents(future: Any) -> None:
    """Raise 1021 if `future` is the binding's and from the parent: its network thread does not run in this child."""
    binding = getattr(type(future).wait, "__globals__", {})
    network = binding.get("_network_thread")
    if network is not None and not network.is_alive() and not future.is_ready():
        error = FDBError(COMMIT_UNKNOWN_RESULT)
        error.add_note(
            "The future is from before a fork, and its answer comes to the parent. Open the database in the child."
        )
        raise error


async def _ready(future: Future[Any]) -> None:
    import asyncio  # a third of what `import fdbqueue` cost; whoever awaits has it

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError as error:
        raise RuntimeError(
            "No event loop runs here: a body may run without one. In a body await value_of(future), and the steps of a"
            " verb, as in await queue.enqueue.steps(tr, value), not its aio."
        ) from error
    own_thread = threading.get_ident()
    waiter = loop.create_future()

    def ready(_: object) -> None:
        # A cancelled future may call back after the loop is closed.
        if loop.is_closed():
            return
        if threading.get_ident() == own_thread:
            _wake(waiter)  # another task of this loop made it ready: no system call is needed to wake the loop
        else:
            loop.call_soon_threadsafe(_wake, waiter)

    future.on_ready(ready)
    try:
        await waiter
    except asyncio.CancelledError:
        future.cancel()
        raise


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def rows(
    tr: ReadTransaction, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False
) -> list[KeyValue]:
    """Return the rows of ``[begin, end)``, at most `limit` of them (0: all).

    *Cost:* one round trip for each answer of the cluster; a small range fits in one answer.
    """
    # Look up the method on the type, as `set_rows` does: a wrapper still sees its `get_range`.
    if limit and (read := getattr(type(tr), "read_rows", None)) is not None:
        at_once: list[KeyValue] | None = read(tr, begin, end, limit, reverse)
        if at_once is not None:
            return at_once
    # With a limit the cluster's client collects the answers itself: of 4,000 rows one wait instead of ten.
    mode = StreamingMode.exact if limit else StreamingMode.want_all
    first: Any = begin
    last: Any = end
    found: list[KeyValue] = []
    while True:
        answer = tr.get_range(first, last, limit=limit, reverse=reverse, streaming_mode=mode)
        page = getattr(answer, "_future", None)
        if page is None:  # a stand-in for a range has no future
            found.extend(answer)
            return found
        page = in_few_steps(page)
        batch, count, more = await value_of(page)
        found.extend(batch)
        if not more or not count or limit == count:
            return found
        limit -= count if limit else 0
        if reverse:
            last = batch[-1].key  # the embedded engine reads between keys faster than between selectors
        else:
            first = batch[-1].key + b"\x00"


async def columns(tr: ReadTransaction, begin: bytes, end: bytes, limit: int) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the values of the first `limit` rows of ``[begin, end)``, in two lists.

    *Cost:* as `rows`. The snapshot of the embedded engine makes no object for each row.
    """
    read = getattr(type(tr), "read_pairs", None)
    pairs = None if read is None else read(tr, begin, end, limit)
    if pairs is not None:
        return [key for key, _ in pairs], [value for _, value in pairs]
    found = await rows(tr, begin, end, limit=limit)
    return [row.key for row in found], [row.value for row in found]


def started(steps: Steps[T]) -> Steps[T]:
    """Start `steps` now, so that their first read is in flight while the caller waits for others.

    Where answers are there at once, they run to their end. So they write nothing that the caller may yet refuse.
    """
    try:
        future = steps.send(None)
    except StopIteration as stop:
        return finished(stop.value)
    except Exception as error:  # noqa: BLE001 - who waits for the steps gets it, as if they had waited
        return _failed(error)
    return _continued(steps, future)


# These two are no `async def`: Python would warn of one that nobody awaits, and there is nothing left to do.
@types.coroutine
def finished(result: T) -> Generator[Any, Any, T]:
    """Return `result` as steps without any wait."""
    yield from ()
    return result


@types.coroutine
def _failed(error: Exception) -> Generator[Any, Any, Any]:
    """Return steps that raise `error`."""
    yield from ()
    raise error


@types.coroutine
def _continued(steps: Steps[T], future: object) -> Generator[Any, Any, T]:
    try:
        while True:
            try:
                value = yield future
            except GeneratorExit:
                steps.close()  # nothing, if the garbage collector has closed them first
                raise
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                future = steps.throw(error)
            else:
                future = steps.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result
