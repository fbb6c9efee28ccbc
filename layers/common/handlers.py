"""Call handlers: a coroutine function is awaited, any other function runs in a worker thread.

Each call has a copy of the context variables that the consumer was started with. Monitors and watchdogs only call their
handlers, as a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import operator
import threading
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from fdbqueue import FdbQueueError, Position, Queue
from fdbqueue.engine.errors import text_of
from fdbqueue.lowlevel import Steps, V
from fdbqueue.stored.names import KeyName, queue_text, session_text

from ..leases import Lease
from ..leases.lease import not_negative

A = TypeVar("A")
T = TypeVar("T")
Handler: TypeAlias = Callable[[Lease[V]], object]
"""Processes one item. Its return value is ignored, except `ACKED`. An exception is the attempt's error."""


STUCK_SECONDS = 1.0
"""How long an item waits at least that finds only threads in functions whose time is over."""


class _Acked:
    def __repr__(self) -> str:
        return "ACKED"


ACKED = _Acked()
"""Returned by a handler that has acked its lease itself, in a transaction together with its own writes."""


class Snooze(Exception):
    """Raised by a handler that can't work on the item now. The item comes back later, and the attempt is not counted.

    Args:
        seconds: the delay, 0 or more. Any other value raises a ValueError, which fails the attempt.
    """

    def __init__(self, seconds: float) -> None:
        not_negative(seconds, "seconds")
        super().__init__(f"Not now; in {seconds} s.")
        self.seconds = seconds

    __reduce__ = FdbQueueError.__reduce__


class RetryIn(Exception):
    """Raised by a handler whose attempt has failed, with the wait before the next attempt in place of the back-off's.

    The item's error is the text of the exception that this one was raised from, or `reason`.

    Args:
        seconds: the wait, 0 or more. Any other value raises a ValueError, which fails the attempt as usual.
        reason: why the attempt failed.
    """

    task: str = ""
    """The task that failed, for the consumer's log record; "" if a plain handler did."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        not_negative(seconds, "seconds")
        super().__init__(reason or f"It is tried again in {seconds} s.")
        self.seconds = seconds

    __reduce__ = FdbQueueError.__reduce__


class GiveUp(Exception):
    """Raised by a handler that no further attempt would help. The item becomes a dead letter at once.

    The item's error is the text of the exception that this one was raised from, or `reason`.

    Args:
        reason: why the attempt failed.
    """

    task: str = ""
    """As of `RetryIn`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "No further attempt would help.")


class Threads(Generic[A]):
    """Worker threads for a plain function, started when they are needed.

    They are daemons: a function that never returns must not keep the process from ending. `asyncio.to_thread` copies
    the context too, but the interpreter waits for its threads at exit.

    Args:
        function: the handler.
        freed: called in the event loop each time that a thread has returned from the function.
    """

    def __init__(self, function: Callable[[A], object], freed: Callable[[], None]) -> None:
        self._function = function
        self._freed = freed
        self._waiting: SimpleQueue[tuple[Context, A, asyncio.Future[object]] | None] = SimpleQueue()
        self._returned: deque[tuple[asyncio.Future[object], object, Exception | None]] = deque()
        """What threads brought back, and the event loop has not seen yet."""
        self._is_told = False
        """Whether the loop will look at these. A call into it costs as much as a small handler."""
        self._threads = 0
        self.busy = 0
        """The number of threads in the function, including those without a waiting task."""

    async def __call__(self, context: Context, argument: A) -> object:
        """Call the function with an argument in a thread, in `context`, and await its result.

        If the waiting task is cancelled, the thread goes on, and stays busy until the function returns.
        """
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.busy += 1
        if self.busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"fdbqueue-handler-{self._threads}", daemon=True).start()
        self._waiting.put((context, argument, future))
        return await future

    def close(self) -> None:
        """End each thread when it has returned from the function."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            context, argument, future = work
            result: object = None
            error: Exception | None = None
            try:
                result = context.run(self._function, argument)
            except BaseException as raised:  # noqa: BLE001 - it is raised where the handler is awaited
                # A future can't hold a StopIteration, and the exits of a thread must not reach an event loop.
                error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
                error = RuntimeError(repr(raised)) if isinstance(raised, StopIteration) else error
            self._returned.append((future, result, error))
            if not self._is_told:  # read after the append: the loop does the reverse
                self._is_told = True
                # A closed loop has no task that waits.
                with contextlib.suppress(RuntimeError):
                    future.get_loop().call_soon_threadsafe(self._settle)
            del work, context, argument, future, result, error  # an idle thread keeps nothing alive

    def _settle(self) -> None:
        self._is_told = False
        returned = self._returned
        while returned:
            future, result, error = returned.popleft()
            self.busy -= 1
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
            self._freed()


class ThreadPool:
    """Threads for plain functions that several consumers of one event loop share.

    Args:
        size: how many functions run at once, including those whose time is over and that did not return.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = asyncio.Event()
        self._threads: Threads[Callable[[], object]] = Threads(operator.call, self._free.set)
        self._awaited = 0
        """How many calls are under way whose results are awaited."""

    async def thread(self) -> None:
        """Wait until a thread is free for `call`.

        Raises:
            Snooze: all threads are in functions whose time is over, and which may never return.
        """
        while self._threads.busy >= self._size:
            if not self._awaited:
                raise Snooze(STUCK_SECONDS)
            self._free.clear()
            await self._free.wait()

    async def call(self, function: Callable[[], object]) -> object:
        """Call a function in a thread, in a copy of the caller's context."""
        self._awaited += 1
        try:
            result = await self._threads(copy_context(), function)
        finally:
            self._awaited -= 1
            self._free.set()
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """End each thread when its function has returned."""
        self._threads.close()


@types.coroutine
def in_context(context: Context, coroutine: Steps[T]) -> Generator[Any, Any, T]:
    """Await `coroutine` in `context`, without a task for it.

    The variables that it sets stay in `context`: the next handler that this task awaits does not see them.

    Raises:
        RuntimeError: the coroutine has raised a GeneratorExit, which would look as if the caller was closed.
    """
    closed = False
    try:
        future = context.run(coroutine.send, None)
        while True:
            try:
                value = yield future
            except GeneratorExit:
                closed = True
                context.run(coroutine.close)
                raise
            except BaseException as error:  # noqa: BLE001 - the coroutine decides what it means
                future = context.run(coroutine.throw, error)
            else:
                future = context.run(coroutine.send, value)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except GeneratorExit as error:
        if closed:
            raise
        raise RuntimeError(repr(error)) from error


async def result_of(handler: Handler, threads: Threads[Lease] | None, lease: Lease) -> object:
    """Call a handler, in a worker thread if it has some, and return its result. If that is awaitable, it is awaited.

    Raises:
        TypeError: the handler is a generator.
    """
    context = copy_context()
    result: object
    if threads is None:
        result = context.run(handler, lease)
    else:
        result = await threads(context, lease)
    if inspect.iscoroutine(result):
        result = await in_context(context, result)
    elif result is not None and inspect.isawaitable(result):
        result = await result
    if result is not None and (inspect.isgenerator(result) or inspect.isasyncgen(result)):
        raise TypeError("the handler is a generator, and none of it has run")
    return result


async def within(seconds: float, handling: Awaitable[T]) -> T:
    """Await a handler's result for so many seconds.

    Raises:
        TimeoutError: the time is over; the handler was cancelled.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await handling
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(f"the handler took longer than its {seconds} s") from error


def cause_of(error: BaseException) -> BaseException:
    """Return a handler's own error, if a `RetryIn` or a `GiveUp` was raised from it."""
    return error.__cause__ if isinstance(error, RetryIn | GiveUp) and error.__cause__ is not None else error


def error_text(error: BaseException) -> str:
    """Return the text of a handler's error, with the name of its type; of a `RetryIn` or a `GiveUp` the reason."""
    error = cause_of(error)
    kind = type(error).__name__
    try:
        return str(error) if isinstance(error, RetryIn | GiveUp) else f"{kind}: {text_of(error)}"
    except Exception:  # noqa: BLE001 - an error that can't say what it is must not end the consumer
        return kind


def not_awaited(function: Callable[..., object] | None, name: str) -> None:
    """Raise an error if a function that is only called would have to be awaited.

    Raises:
        TypeError: it is a coroutine function; the message calls it `name`.
    """
    if function is not None and is_async(function):
        raise TypeError(
            f"{name} is called and not awaited: nothing of {function!r} would run. Make it a plain function."
        )


def call_back(function: Callable[[A], object], argument: A) -> None:
    """Call a function that is not awaited.

    Raises:
        TypeError: it returned a coroutine, which has not run.
    """
    result = function(argument)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("it returned a coroutine, which is not awaited")


def is_async(handler: Callable[..., object]) -> bool:
    """Return whether a handler is a coroutine function."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


# The structured fields of log records, as `extra`. No field has a value of an item.

FIELDS = ("queue", "position", "attempt", "consumer", "session")
"""What a record about an item or a queue has. What does not apply is ""."""
NO_FIELDS: dict[str, object] = dict.fromkeys(FIELDS, "")


def item_fields(queue: Queue, lease: Lease) -> dict[str, object]:
    """Return the fields of a record about a leased item."""
    session = getattr(lease, "session", None)
    return fields(queue, lease.position, attempt=lease.attempt, consumer=lease.consumer, session=session)


def fields(
    queue: Queue, position: Position | None = None, *, session: KeyName | None = None, **others: object
) -> dict[str, object]:
    """Return the fields of a record about a queue, or about one of its items."""
    where = "" if position is None else position.text
    named = session_text(session) if session else ""
    return {**NO_FIELDS, "queue": queue_text(queue.layout.prefix), "position": where, "session": named, **others}


# Where `fdbqueue.observe` may look at what consumers do. These lists are empty unless a program asked it to.


class Acked(NamedTuple):
    """Items that a consumer has acked together."""

    queue: Queue
    leases: Sequence[Lease]
    """Their leases; empty for items of sessions, which one lease has together."""
    items: int
    """How many items were acked."""
    lost: int
    """How many leases were lost."""
    seconds: float
    """How long it took."""


around_all: list[Middleware] = []
"""Middleware around the handlers of all consumers of this process, outside of their own."""
on_acked: list[Callable[[Acked], None]] = []
"""Called in a consumer's event loop after each transaction that acked items."""


def tell_acked(acked: Acked) -> None:
    """Tell of items that were acked."""
    for told in on_acked:
        told(acked)


# Put middleware around a consumer's handler.
#
# A middleware is called with the lease and with the next call, and returns what that returns, or something else:
#
#     async def told(lease, call_next):          def told(lease, call_next):
#         print("begins", lease.position)            print("begins", lease.position)
#         return await call_next(lease)              return call_next(lease)
#
# A coroutine function runs in the event loop, around any handler. A plain function runs in the handler's thread. So
# it
# can only be inside of the coroutine functions, around a plain handler.

Next: TypeAlias = Callable[[Lease], Any]
"""Calls the next middleware with a lease, or the handler. In a coroutine function it is awaited."""
Middleware: TypeAlias = Callable[[Any, Next], object]
"""Called with the lease and the next call. Its result is the handler's result for the consumer."""
Call: TypeAlias = Callable[[Lease], Steps[object]]
"""Calls a handler with all that is around it; to be awaited."""


class AsyncMiddleware(ABC):
    """A middleware that is a coroutine function. It gives a list of several kinds a type for type checkers."""

    @abstractmethod
    async def __call__(self, lease: Lease, call_next: Next) -> object:
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
    if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
        raise TypeError(f"The middleware {one!r} is a generator, and none of it would run. Return `call_next(lease)`.")
    try:
        signature = inspect.signature(one)
    except (TypeError, ValueError):  # some functions of C have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"A middleware is called with two arguments, the lease and the next call; {one!r} takes {signature}."
        ) from error


def bound(chain: Sequence[Middleware], consumer: object) -> list[Middleware]:
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
    def call(lease: Lease) -> object:
        return one(lease, handler)

    return call


def call_of(handler: Handler, threads: Threads[Lease] | None, chain: Sequence[Middleware]) -> Call:
    """Return the call of a handler, with the coroutine functions of `chain` around it."""
    call: Call = partial(result_of, handler, threads)
    if not chain:
        return call
    for one in reversed(chain):
        call = partial(_awaited, one, call)
    return partial(_in_own_context, call)


async def _awaited(one: Middleware, call: Call, lease: Lease) -> object:
    result = one(lease, call)
    while inspect.isawaitable(result):  # it may have returned `call_next(lease)` without awaiting it
        result = await result
    return result


async def _in_own_context(call: Call, lease: Lease) -> object:
    """Call in a copy of the context: what a middleware sets is seen by the handler, and not by the next item."""
    return await in_context(copy_context(), call(lease))
