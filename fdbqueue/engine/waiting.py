"""Waits: for one of several futures, for a promise of this process, for a key to change, or for a time.

All serve threads and event loops alike, as the futures of `fdbqueue.engine.steps` do. Whoever waits for a change sets
watches in a transaction, and hands them to `until_changed`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fdbqueue.engine.api import Callback, Future
from fdbqueue.engine.blocking import end_wait, wake_at_close
from fdbqueue.engine.errors import TOO_MANY_WATCHES, FDBError
from fdbqueue.engine.steps import Steps, value_of

if TYPE_CHECKING:
    import asyncio

UNWATCHED_SECONDS = 1.0
"""How long a call waits before it looks again if it can't set a watch: a client has 10,000, unless `max_watches` raises
that."""


class Promise:
    """A future that another thread or task of this process keeps. It becomes ready, without a value.

    >>> promise = Promise()
    >>> promise.on_ready(lambda _: print("kept"))
    >>> promise.keep()
    kept
    """

    __slots__ = ("_callbacks", "_kept")

    def __init__(self) -> None:
        self._kept = False
        self._callbacks: list[Callback] = []

    def keep(self) -> None:
        """Make it ready, and call each callback once."""
        # Each element of a list goes to one thread only, so that every callback is called once, without a lock.
        self._kept = True
        self._call_back()

    def is_ready(self) -> bool:
        return self._kept

    def on_ready(self, callback: Callback) -> None:
        self._callbacks.append(callback)
        if self._kept:
            self._call_back()

    def wait(self) -> None:
        if not self._kept:
            _block_on([self], None)

    def cancel(self) -> None:
        """Do nothing: others may wait for it too."""

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


async def first_of(futures: Iterable[Future[Any]], seconds: float | None) -> None:
    """Wait until one of `futures` is ready, or `seconds` have passed; None: without limit.

    The futures are left unchanged, ready or not.
    """
    waited_for = list(futures)
    if seconds is not None and seconds <= 0:
        return
    await value_of(_FirstOf(waited_for, seconds))


async def until_changed(alarms: Sequence[Future[Any]], *limits: float | None) -> bool:
    """Wait until an alarm is ready, such as a watch, or the shortest of the limits is over. Then end the alarms.

    A watch too many is ready at once, with error 1032. Then this also pauses for a moment: the caller would look again
    at once, in a busy loop. The wait also ends when a database is closed: the caller looks again.

    Args:
        alarms: what may become ready. They are cancelled at the end.
        limits: seconds; None: no limit.

    Returns:
        whether the caller should look again before the limit; False: the limit is over.
    """
    seconds = min((limit for limit in limits if limit is not None), default=None)
    closing = Promise()
    patience = wake_at_close(closing.keep, seconds)
    try:
        await first_of([*alarms, closing], patience)
        came = patience != seconds or any(alarm.is_ready() for alarm in (*alarms, closing))
        if any(map(_is_refused, alarms)):
            await pause(UNWATCHED_SECONDS if seconds is None else min(seconds, UNWATCHED_SECONDS))
        return came
    finally:
        end_wait(closing.keep)
        for alarm in alarms:
            alarm.cancel()


def pause(seconds: float) -> Steps[None]:
    """Wait for `seconds`."""
    return first_of((), seconds)


def _is_refused(alarm: Future[Any]) -> bool:
    try:
        if alarm.is_ready():
            alarm.wait()
    except FDBError as error:
        return error.code == TOO_MANY_WATCHES
    return False


class _FirstOf:
    """Becomes ready when one of the futures is ready, or the time is over. Adds one callback to each, as the binding
    requires."""

    __slots__ = ("_futures", "_seconds", "_timer")

    def __init__(self, futures: list[Future[Any]], seconds: float | None) -> None:
        self._futures = futures
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def is_ready(self) -> bool:
        return any(future.is_ready() for future in self._futures)

    def wait(self) -> None:
        if self._timer is not None:  # an event loop has waited already
            self._timer.cancel()
        elif not self.is_ready():
            _block_on(self._futures, self._seconds)

    def on_ready(self, callback: Callback) -> None:
        if self._seconds is not None:
            import asyncio  # whoever is called back in a loop has it already

            self._timer = asyncio.get_running_loop().call_later(self._seconds, callback, self)
        for future in self._futures:
            future.on_ready(callback)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _block_on(futures: list[Any], seconds: float | None) -> None:
    """Block the thread until one of `futures` is ready, or `seconds` have passed."""
    gate = threading.Lock()
    gate.acquire()
    opening = threading.Lock()  # the first callback takes it for good, so that the gate opens once

    def open_gate(_: object) -> None:
        if opening.acquire(blocking=False):
            gate.release()

    for future in futures:
        future.on_ready(open_gate)
    gate.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
