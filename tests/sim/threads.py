"""Fibers in place of Python's threads, and virtual time in place of the machine's, for all modules imported later.

`threading` builds everything on a lock and on a function that starts a thread. So these two are replaced, and thread
locals, times, random bytes, and the wait of an event loop.
"""

from __future__ import annotations

import _thread
import asyncio
import itertools
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

from greenlet import getcurrent

from tests.sim.fibers import Fiber, now, the

EPOCH: Final = 1_800_000_000.0
"""The wall clock at the begin of a simulation."""
processor_seconds: Final = time.process_time
"""The machine's own."""


class Lock:
    """A lock of fibers, with the methods of `threading.Lock`. Of those that wait, the dice say who is woken."""

    def __init__(self) -> None:
        self._locked = False
        self._waiters: list[Fiber] = []

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        until = None if timeout is None or timeout < 0 else now() + timeout
        while self._locked:
            left = None if until is None else until - now()
            if not blocking or (left is not None and left <= 0):
                return False
            fiber: Any = getcurrent()
            self._waiters.append(fiber)
            try:
                the().block(left)
            finally:
                if fiber in self._waiters:
                    self._waiters.remove(fiber)
        self._locked = True
        return True

    def release(self) -> None:
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        if self._waiters:
            at = the().dice.randrange(len(self._waiters))
            the().wake(self._waiters.pop(at))

    def locked(self) -> bool:
        return self._locked

    def _at_fork_reinit(self) -> None:
        self._locked = False
        self._waiters.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Local:
    """`threading.local` of fibers."""

    def __new__(cls, *_: object, **__: object) -> Local:
        new = object.__new__(cls)
        object.__setattr__(new, "_of_fibers", WeakKeyDictionary())
        return new

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            own = _own(self)
            if name in own:
                return own[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _own(self)[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in _own(self):
            raise AttributeError(name)
        del _own(self)[name]


def _own(local: Local) -> dict[str, Any]:
    of_fibers: WeakKeyDictionary[Any, dict[str, Any]] = object.__getattribute__(local, "_of_fibers")
    return of_fibers.setdefault(getcurrent(), {})


class _Selector:
    """The selector of an event loop: it waits in virtual time, and there are no files."""

    def __init__(self) -> None:
        self._fiber: Fiber | None = None
        self._woken = False

    def select(self, timeout: float | None = None) -> list[Any]:
        if not self._woken and (timeout is None or timeout > 0):
            fiber: Any = getcurrent()
            self._fiber = fiber
            try:
                the().block(timeout)
            finally:
                self._fiber = None
        self._woken = False
        return []

    def wake(self) -> None:
        self._woken = True
        if self._fiber is not None:
            the().wake(self._fiber)

    def register(self, *_: object) -> None:
        """Watch no file: the only one is the loop's own pipe."""

    unregister = modify = register

    def get_key(self, file: object) -> Any:
        raise KeyError(file)

    def get_map(self) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        """Close nothing."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop in a fiber."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)  # type: ignore[arg-type]

    def _write_to_self(self) -> None:
        self._waits.wake()


class _Loops(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Loop


def _ident() -> int:
    fiber = getcurrent()
    return fiber.number if isinstance(fiber, Fiber) else _thread.get_ident()


def _start(act: Callable[..., object], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> int:
    fiber = getcurrent()
    process = fiber.process if isinstance(fiber, Fiber) and not fiber.within else None
    return the().spawn(lambda: act(*args, **(kwargs or {})), process).number


def _held_to_the_end() -> Lock:
    """Return the lock that `Thread.join` waits for."""
    lock, fiber = Lock(), getcurrent()

    def release() -> None:
        if lock.locked():
            lock.release()

    if isinstance(fiber, Fiber):
        fiber.at_end.append(release)
    return lock


def _wall() -> float:
    return EPOCH + now()


def _sleep(seconds: float) -> None:
    the().block(seconds)


def _bytes(count: int) -> bytes:
    try:
        dice = the().dice
    except Exception:  # noqa: BLE001 - no simulation runs: modules are being imported
        return bytes(count)
    return dice.randbytes(count)


def _in_order(kind: Any) -> None:
    """Let a set of such objects have the same order in every run: their address would decide."""
    numbers, init = itertools.count(), kind.__init__

    def numbered(self: Any, *args: Any, **terms: Any) -> None:
        self._number_in_sets = next(numbers)
        init(self, *args, **terms)

    kind.__init__ = numbered
    kind.__hash__ = lambda self: self._number_in_sets


def replace_threads() -> None:
    """Replace threads and time in this interpreter, for good. It has to come before the imports of what makes locks."""
    _set(threading, Lock=Lock, _allocate_lock=Lock, _CRLock=None)  # so that an RLock is Python's own, on this lock
    _set(threading, _start_new_thread=_start, _set_sentinel=_held_to_the_end, get_ident=_ident, local=Local, _time=now)
    _set(queue, SimpleQueue=attrgetter("_PySimpleQueue")(queue))
    _set(time, sleep=_sleep, time=_wall, time_ns=lambda: int(_wall() * 1e9))
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        _set(time, **{name: now, f"{name}_ns": lambda: int(now() * 1e9)})
    _set(os, urandom=_bytes)
    _set(random, _urandom=_bytes)
    for module, name in ((asyncio.futures, "Future"), (asyncio.tasks, "Task")):
        pythons = getattr(module, f"_Py{name}")  # the others have the address as their hash
        _set(module, **{name: pythons})
        _set(asyncio, **{name: pythons})
    _in_order(asyncio.Future)
    _in_order(threading.Thread)
    asyncio.set_event_loop_policy(_Loops())


def _set(module: object, **changes: object) -> None:
    for name, value in changes.items():
        setattr(module, name, value)
