"""Fibers: threads of simulated processes, of which one runs at a time, in virtual time and in an order that is drawn.

A fiber runs until it blocks. Then the dice say which of those that can go on is next. If there is none, the clock jumps
to the next time that one waits for. So a seed decides the whole run.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final

from greenlet import getcurrent, greenlet

_loop_of_thread, _set_loop_of_thread = attrgetter("_get_running_loop", "_set_running_loop")(events)
"""Those for makers of event loops. A loop is that of the machine's thread, and all fibers are in one."""
MOST_STEPS: Final = 1_000_000
"""So many steps in which no time passes are one that spins."""


class Killed(BaseException):
    """Raised in the fibers of a process that is killed. What they do about it does not reach the database."""


class Stuck(Exception):
    """Nothing can go on, or something goes on without end."""


class Process:
    """Fibers that live, stop and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fibers: set[Fiber] = set()
        self.main: Fiber | None = None
        """Its end is that of the process."""
        self.alive = True
        self.stopped = False
        self.waiting: list[tuple[Fiber, Any]] = []
        """The fibers that could go on if the process was not stopped."""

    def running(self) -> bool:
        """Return whether it has not come to its end."""
        return self.alive and self.main is not None and not self.main.dead


class Fiber(greenlet):
    """What a thread is in a simulation."""

    def __init__(self, act: Callable[[], object], process: Process | None, number: int) -> None:
        super().__init__(self._run)
        self.act = act
        self.process = process
        self.number = number
        self.begun = False
        self.wait = 0
        """The number of the wait that it is in, or 0."""
        self.within = 0
        """How many sections it is in that are not its process' own."""
        self.at_end: list[Callable[[], object]] = []
        if process is not None:
            process.fibers.add(self)

    def lives(self) -> bool:
        """Return whether its process was not killed."""
        return self.process is None or self.process.alive

    def _run(self, _: object) -> None:
        self.begun = True
        try:
            self.act()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is to report it
            if self.lives():
                the().errors.append(error)
        finally:
            for act in self.at_end:
                act()
            if self.process is not None:
                self.process.fibers.discard(self)


class Scheduler:
    """Runs fibers, and keeps the time.

    Args:
        seed: decides which fiber is next.
    """

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(f"{seed}/schedule")
        self.now = 0.0
        """Seconds since the begin."""
        self.steps = 0
        self.errors: list[BaseException] = []
        """What ended fibers that it should not have ended."""
        self._ready: list[tuple[Fiber, Any]] = []
        self._times: list[tuple[float, int, Callable[[], object] | tuple[Fiber, int]]] = []
        self._numbers = itertools.count(1)
        self._hub = getcurrent()
        self._without_time = 0

    def spawn(self, act: Callable[[], object], process: Process | None = None) -> Fiber:
        """Begin a fiber, of a process or of the world around all of them."""
        fiber = Fiber(act, process, next(self._numbers))
        fiber.parent = self._hub
        self._ready.append((fiber, None))
        return fiber

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Let the world do something at a time."""
        heapq.heappush(self._times, (max(when, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Let the world do something in so many seconds."""
        self.at(self.now + seconds, act)

    def block(self, seconds: float | None = None) -> bool:
        """Let others run, until somebody wakes this fiber or for so long. Return whether it was woken.

        Raises:
            Killed: the fiber's process was killed.
            Stuck: no fiber calls this.
        """
        fiber = getcurrent()
        if not isinstance(fiber, Fiber):
            raise Stuck("The simulation itself has to wait.")
        if not fiber.lives() and not fiber.within:
            raise Killed
        fiber.wait = number = next(self._numbers)
        if seconds is not None:
            heapq.heappush(self._times, (self.now + max(seconds, 0.0), next(self._numbers), (fiber, number)))
        loop, hooks = _loop_of_thread(), sys.get_asyncgen_hooks()
        if loop is not None:
            _set_loop_of_thread(None)
            sys.set_asyncgen_hooks(None, None)
        try:
            return bool(self._hub.switch())
        finally:
            fiber.wait = 0
            if loop is not None:
                _set_loop_of_thread(loop)
                sys.set_asyncgen_hooks(*hooks)

    def wake(self, fiber: Fiber) -> None:
        """Let a fiber go on that blocks."""
        if fiber.wait:
            fiber.wait = 0
            self._ready.append((fiber, True))

    def kill(self, process: Process) -> None:
        """End a process where it stands. A fiber that is in the database's own code ends behind it."""
        process.alive = False
        process.waiting.clear()
        self._ready = [(fiber, value) for fiber, value in self._ready if fiber.process is not process]
        own = getcurrent()
        for fiber in sorted(process.fibers, key=lambda fiber: fiber.number):
            if fiber is own:
                continue
            if not fiber.within:
                fiber.wait = 0
                self._ready.append((fiber, Killed))
            elif not fiber.wait:
                self._ready.append((fiber, True))
        if isinstance(own, Fiber) and own.process is process:
            raise Killed

    def stop(self, process: Process) -> None:
        """Let a process stand still, as by SIGSTOP."""
        process.stopped = True

    def resume(self, process: Process) -> None:
        """Let a stopped process go on."""
        process.stopped = False
        self._ready += process.waiting
        process.waiting.clear()

    def run(self, fiber: Fiber) -> None:
        """Run until a fiber ends.

        Raises:
            Stuck: nothing can go on, or something goes on without end.
        """
        while not fiber.dead:
            if self._ready:
                self._step()
            else:
                self._jump()

    def _step(self) -> None:
        at = self.dice.randrange(len(self._ready)) if len(self._ready) > 1 else 0
        self._ready[at], self._ready[-1] = self._ready[-1], self._ready[at]
        fiber, value = self._ready.pop()
        process = fiber.process
        if process is not None and process.stopped and process.alive:
            process.waiting.append((fiber, value))
            return
        self.steps += 1
        self._without_time += 1
        if self._without_time > MOST_STEPS:
            raise Stuck(f"After {MOST_STEPS:,} steps no time has passed.")
        if fiber.dead:
            return
        if value is not Killed:
            fiber.switch(value)
        elif fiber.begun:
            fiber.throw(Killed)
        elif process is not None:
            process.fibers.discard(fiber)

    def _jump(self) -> None:
        if not self._times:
            raise Stuck("All wait, and for nothing that will happen.")
        when, _, what = heapq.heappop(self._times)
        if isinstance(what, tuple):
            fiber, number = what
            if fiber.wait != number:
                return  # it was woken before
            fiber.wait = 0
            self._ready.append((fiber, False))
        else:
            self.spawn(what)
        if when > self.now:
            self.now = when
            self._without_time = 0


_running: list[Scheduler] = []


def the() -> Scheduler:
    """Return the scheduler of the simulation that runs.

    Raises:
        Stuck: none does.
    """
    if not _running:
        raise Stuck("No simulation runs.")
    return _running[-1]


def now() -> float:
    """Return the virtual time, 0 before a simulation."""
    return _running[-1].now if _running else 0.0


@contextmanager
def simulating(seed: str) -> Iterator[Scheduler]:
    """Begin a simulation, and end it."""
    _running.append(Scheduler(seed))
    try:
        yield _running[-1]
    finally:
        _running.pop()


@contextmanager
def outside() -> Iterator[None]:
    """Run what is not the process' own, but the database's: a kill ends the fiber behind it."""
    fiber = getcurrent()
    if not isinstance(fiber, Fiber):
        yield
        return
    fiber.within += 1
    try:
        yield
    finally:
        fiber.within -= 1
    if not fiber.within and not fiber.lives():
        raise Killed
