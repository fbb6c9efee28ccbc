"""Rest until a loop is to stop, warn of a wait that blocks an event loop, and finish work whose caller has gone.

All functions serve threads and event loops alike, as the futures of `fdbqueue.engine.steps` do.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from fdbqueue.engine.finishing import start
from fdbqueue.engine.steps import value_of, wait_in_thread
from fdbqueue.engine.waiting import Promise, until_changed
from fdbqueue.lowlevel import Future, Steps, run

T = TypeVar("T")


class Stop:
    """Ends a loop that runs until it is told to stop, and wakes it while it rests."""

    __slots__ = ("_resting", "asked")

    def __init__(self) -> None:
        self.asked = False
        self._resting: set[Promise] = set()

    def ask(self) -> None:
        """End the loop after its present step; callable from any thread."""
        self.asked = True
        for promise in list(self._resting):
            promise.keep()

    async def rest(self, alarms: Sequence[Future[Any]], seconds: float) -> None:
        """Wait until one of the `alarms` is ready, `seconds` have passed or the loop is to end. Then end the alarms."""
        promise = Promise()  # one for each rest: a promise keeps its waiters alive
        self._resting.add(promise)
        try:
            if not self.asked:  # checked after the promise is registered: an earlier `ask` keeps no promise
                await until_changed([*alarms, promise], seconds)
        finally:
            self._resting.discard(promise)


async def long_wait(name: str) -> None:
    """Warn if the caller is about to block an event loop that runs in its thread: nothing else in the loop goes on.

    An awaited call is not warned of. The warning is about the caller's line.

    Args:
        name: the verb's name, for the message, as "StagedQueue.dequeue".
    """
    await value_of(_LongWait(name))


class _LongWait:
    """A future that is ready, and knows whether it is awaited: only a loop asks `is_ready` before it waits."""

    __slots__ = ("_awaited", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._awaited = False

    def is_ready(self) -> bool:
        self._awaited = True
        return True

    def wait(self) -> None:
        if self._awaited or not loop_runs():
            return
        verb = self._name.partition(".")[2]
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fdbqueue."):
            level, frame = level + 1, frame.f_back
        warnings.warn(
            f"{self._name} blocks the event loop that runs in this thread until it returns. Await its other form:"
            f" await ….{verb}.aio(…).",
            RuntimeWarning,
            stacklevel=level,
        )

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancel(self) -> None:
        """Do nothing: nothing is under way."""


def loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Heir(Protocol):
    """Ends a call whose caller has gone."""

    handed_over: bool
    """Whether a thread drives the steps to their end."""

    def inherit(self) -> Steps[None]:
        """Do what is left to do when the steps have ended or failed."""


async def finish(steps: Steps[T], heir: Heir | None = None) -> T:
    """Drive `steps` to their end. If the caller is cancelled or interrupted, a thread drives the rest.

    For work that others depend on. `steps` never see the interruption. Errors that they raise after it are lost: they
    must tell the others themselves.

    Args:
        steps: the work.
        heir: is told that a thread drives the rest. That thread calls it at the end.
    """
    handed_over = False
    try:
        future = steps.send(None)
        while True:
            if getattr(future, "comes_at_once", False):
                future = _answered(steps, future)
                continue
            try:
                outcome, error = await value_of(_Kept(future))
            except BaseException:
                # This error is not the future's: the waiter has to go. (A task was cancelled, Ctrl-C, a generator
                # dropped.)
                handed_over = True
                if heir is not None:
                    heir.handed_over = True
                start(_go_on, steps, future, heir)
                raise
            future = steps.throw(error) if error is not None else steps.send(outcome)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException:
        if not handed_over:
            steps.close()  # Ctrl-C came between two futures; close the steps, since no thread goes on
        raise


def _answered(steps: Steps[Any], future: Any) -> Any:
    """Give steps the answer that is there already, and return the next future. No caller has to wait."""
    try:
        outcome = future.wait()
    except Exception as error:  # noqa: BLE001 - the steps decide what it means
        return steps.throw(error)
    return steps.send(outcome)


def _go_on(steps: Steps[Any], future: Any, heir: Heir | None) -> None:
    async def rest() -> None:
        waited_for = future
        try:
            while True:
                try:
                    value = await value_of(waited_for)
                except Exception as error:  # noqa: BLE001 - the steps decide what it means
                    waited_for = steps.throw(error)
                else:
                    waited_for = steps.send(value)
        except StopIteration:
            return
        finally:
            if heir is not None:
                await heir.inherit()

    run(rest())


class _Kept:
    """A future that is not cancelled with its waiter, and that gives its error as a value."""

    __slots__ = ("_future",)
    fpointer = None
    """It is not a future of the binding, which waits for its own in another way."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def wait(self) -> tuple[Any, Exception | None]:
        try:
            return wait_in_thread(self._future), None
        except Exception as error:  # noqa: BLE001 - the steps decide what it means; an interruption is no Exception
            return None, error

    def is_ready(self) -> bool:
        ready: bool = self._future.is_ready()
        return ready

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._future.on_ready(callback)

    def cancel(self) -> None:
        """Leave it under way."""
