"""`Tasks`: an app of tasks in queues."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from fdbqueue.base.arguments import check_flag, check_whole
from fdbqueue.lowlevel import Database, Named, Transaction, is_database, verb
from fdbqueue.stored.layout import Name
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.shapes import check_name

from ..consumer import ConsumerReport
from ..leases import Backoff, exponential
from ..schedules import CatchUp, Plan, Schedules, rule_of
from ..sessions import Gate, Sessions
from ._arguments import Arguments, By, Concurrency, Rate, TaskOptions, Unique
from ._lane import NAMES, Lane, Source, lane_of
from ._running import Running, current
from ._task import LIMITED, AsyncTask, BaseTask, Call, CallGroup, Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="BaseTask | Call")


RETRIES = 3
"""How often a failed task is tried again if nobody says so."""


class UnknownTask(LookupError):
    """No task of this process has this name."""


class Decorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Tasks(Named):
    """Functions whose calls are enqueued, and run by workers.

    Args:
        queue: the name of the queue; or its `Leases`, a `PriorityQueue` or `Sessions`, with the codec json or, for
            agents, bytes.
        levels: the number of priorities of queues that are named; None: they have none.
        retries: how often a failed task is tried again, unless it says so itself; None: 3 times. Its queue's
            `max_attempts` ends that earlier, and a worker warns if it ends retries that were given.
        backoff: how long it waits before: `exponential`, `constant`, or a function from the number of the attempt.
        eager: whether an enqueue into a database runs all due tasks at once, in the caller's thread. For tests. An
            enqueue in a transaction can't: call `run_due` when it is committed.
        clock: seconds since 1970, as `time.time`.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Tasks
    >>> app = Tasks("mail")
    >>> @app.task(retries=5, keep_result=600)
    ... def send(to: str, *, subject: str = "Hello") -> str:
    ...     return f"{subject}, {to}"
    >>> send("Ann")
    'Hello, Ann'
    >>> db = fdbqueue.open("memory:")
    >>> handle = send.enqueue(db, "Ann", subject="Good morning")
    >>> app.run_due(db).acked                # in a program: fdbqueue worker module:app
    1
    >>> handle.result(timeout=5)
    'Good morning, Ann'
    >>> send.enqueue(db, 7)
    Traceback (most recent call last):
    TypeError: An argument of send(to: str, *, subject: str = 'Hello') -> str is not of its annotation: ...
    >>> db.close()
    """

    def __init__(
        self,
        queue: Name | Source,
        *,
        levels: int | None = None,
        retries: int | None = None,
        backoff: Backoff = exponential(jitter=0.1),  # noqa: B008 - it has no state
        eager: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if retries is not None:
            check_whole(retries, "retries is how often a failed task is tried again")
        if levels is not None:
            check_whole(levels, "levels is the number of priorities", least=1)
            if not isinstance(queue, NAMES):
                raise TypeError(f"levels are those of a queue that is named. {queue!r} has its own.")
        if not callable(backoff):
            raise TypeError(f"backoff is a function of the attempt, as exponential(first=1.0), not {backoff!r}.")
        check_flag(eager, "eager")
        self._levels = levels
        self._retries = retries
        self._backoff = backoff
        self._clock = clock
        self._lanes: dict[bytes, Lane] = {}
        self._in_sessions: dict[bytes, Lane] = {}
        self._queue = queue
        self.lane = self._lane(queue)
        self.queue = self.lane.queue
        """The queue of tasks that name no other. It has the records of the schedules, too."""
        self.eager = eager
        self.tasks: dict[str, BaseTask] = {}
        """The tasks by their names and aliases."""
        self.plans: list[Plan] = []
        """The schedules in the code."""
        self.schedules = Schedules(self.queue, clock)
        """The stored schedules: list, pause, resume, change, reset, remove."""

    def __repr__(self) -> str:
        return f"Tasks({self.queue.layout.describe()}, {len(self.tasks)} tasks)"

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is a function, too
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        queue: Name | Source | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: float | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        keep_result: float | None = None,
        session: By = None,
        unique: bool | Unique | By = False,
        limits: Sequence[Concurrency | Rate] = (),
    ) -> Decorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: object) -> Any:
        """Make a task of a function or a coroutine function. It stays callable, and a call just calls it.

        Args:
            name: the task's name in the queue; None: the function's name, without its module.
            aliases: former names, whose calls it runs, too.
            queue: its queue, as of `Tasks`; None: that of the app. Workers can be told which queues to work on.
            retries, backoff: as of `Tasks`. After the last attempt its call is a dead letter.
            timeout: the number of seconds after which an attempt fails. A coroutine is then cancelled. A function runs
                on in its thread.
            priority: the priority of its calls: 0 is the soonest.
            ttl: seconds after which a call that waits is removed.
            keep_result: seconds that the results are kept; None: there are none to wait for.
            session: a parameter, or a function of the arguments. Calls with the same value run one at a time, in their
                order, and all values have fair turns.
            unique: True, a parameter, a function of the arguments, or `Unique`: an equal call is enqueued once.
            limits: `Concurrency` and `Rate`, of all its calls or of those that belong together.

        Raises:
            TypeError, ValueError: an option is not valid, does not go with another one, or the name is taken.
        """
        known = {one.name for one in fields(TaskOptions)}
        if unknown := options.keys() - known:
            raise TypeError(f"A task has no option {min(unknown)!r}. The options are {', '.join(sorted(known))}.")
        made = partial(self._made, names=sys._getframe(1).f_locals, given=options)
        return made if function is None else made(function)

    def _made(self, function: Callable[..., Any], *, names: dict[str, object], given: dict[str, Any]) -> BaseTask:
        if not inspect.isfunction(function):
            raise TypeError(f"A task is made of a function or a coroutine function, not of {function!r}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is a generator: nothing of it would run. Return a list.")
        own: dict[str, Any] = {
            "name": function.__name__,
            "queue": self._queue,
            "retries": self._retries,
            "backoff": self._backoff,
        }
        options = TaskOptions(**(own | {name: value for name, value in given.items() if value is not None}))
        arguments = Arguments(options.name, function, names)
        lane = self._lane_for(options, options.queue)
        if options.priority is not None:
            lane.check_priority(options.priority)
        kind: type[BaseTask] = AsyncTask if inspect.iscoroutinefunction(function) else Task
        task = kind(self, function, options, lane, arguments)
        for name in (options.name, *options.aliases):
            if name in self.tasks:
                raise ValueError(f"{self!r} has a task {name!r} already: {self.tasks[name]!r}. Give another name=.")
        self.tasks |= dict.fromkeys((options.name, *options.aliases), task)
        return task

    def _lane(self, queue: object) -> Lane:
        made = lane_of(queue, levels=self._levels, clock=self._clock)
        lane = self._lanes.setdefault(made.queue.layout.prefix, made)
        if lane is not made and lane.source is not queue and not isinstance(queue, NAMES):
            raise TypeError(f"{self!r} has the queue of {queue!r} already, as {lane.source!r}. Name it, or give that.")
        return lane

    def _lane_for(self, options: TaskOptions, queue: object) -> Lane:
        """Return where a task's calls are enqueued: in sessions if it has some, or limits that need gates.

        Raises:
            TypeError: the options do not go together, or not with the queue.
        """
        told = f"The task {options.name!r}"
        if options.session is not None and options.concurrency:
            raise TypeError(f"{told} has a session, which runs one call at a time: leave out the limit of concurrency.")
        lane = self._lane(queue)
        if options.session is not None or options.concurrency:
            if lane.sessions is None and not isinstance(queue, NAMES):
                raise TypeError(f"{told} needs sessions, and {queue!r} has none. Give Sessions, or a queue's name.")
            if options.concurrency and lane.sessions is not None:
                raise TypeError(f"{told} has a limit. Make it a gate of its sessions: Sessions(queue, gates=…).")
            if lane.sessions is None:
                key = lane.queue.layout.prefix
                if key not in self._in_sessions:
                    self._in_sessions[key] = Lane(Sessions(lane.plain_queue(), gates=_gates, clock=self._clock))
                lane = self._in_sessions[key]
        elif lane.sessions is not None:
            raise TypeError(f"{told} is in sessions and needs session=, as in @app.task(session='customer').")
        if options.unique is not None and options.unique.until == "started" and lane.sessions is not None:
            raise TypeError(f"{told} runs in sessions, where a unique call is unique until it is done: until='done'.")
        return lane

    def periodic(
        self,
        cron: str = "",
        /,
        *,
        every: float | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
        jitter: float = 0.0,
        name: str | None = None,
    ) -> Callable[[T], T]:
        """Enqueue a task, or one call of it, at the times of a schedule.

        Any number of workers run the schedule. The transaction that enqueues a tick also moves the schedule on, so each
        tick is enqueued once, whatever the workers' clocks say.

        Args:
            cron: a cron expression: minute, hour, day of the month, month, day of the week.
            every: seconds from one tick to the next, in place of an expression.
            tz: the time zone of the expression.
            catch_up: the ticks that were over while no worker ran: "none" of them, the "last" one, or "all".
            jitter: each call is delayed by up to so many seconds.
            name: the schedule's name; None: the task's.

        Raises:
            TypeError, ValueError: it decorates no task, there are no such times, or the name is taken.
        """
        rule = rule_of(cron, every=every, tz=tz, catch_up=catch_up, jitter=jitter)

        def decorate(task: T) -> T:
            if not isinstance(task, BaseTask | Call):
                raise TypeError(f"Put @app.periodic above @app.task: it takes a task, or a call of one, not {task!r}.")
            call = task.call() if isinstance(task, BaseTask) else task
            own = call.task.name if name is None else name
            check_name(own, "schedule")
            if call.task.app is not self or call.terms.at is not None:
                raise TypeError(f"{task!r} is of another app, or has a time `at`, and can't be enqueued by {self!r}.")
            if any(plan.name == own for plan in self.plans):
                raise ValueError(f"{self!r} has a schedule {own!r} already. Give another name=.")
            self.plans.append(Plan(own, rule, call.task.name, call.at_tick))
            return task

        return decorate

    def group(self, calls: Sequence[Call]) -> CallGroup:
        """Return calls that are enqueued together, to wait for all of them, or to let one call follow them.

        Raises:
            TypeError: one is no call, or they are in several queues, or a task is unique.
        """
        return CallGroup(self, calls)

    @verb
    async def run_due(self, db: Database) -> ConsumerReport:
        """Enqueue the ticks that are due, and run all tasks that are due, here and now. For tests.

        A task that fails waits for its next attempt: it is not tried again at once.

        *Conflicts:* and *Cost:* as `Worker.drain`.
        """
        from ._worker import Worker

        return await Worker(self, signals=False)._begun(db, "app.run_due", until_empty=True)

    def is_eager(self, tr: object) -> bool:
        """Return whether an enqueue runs the due tasks: not in a transaction, and not in a task."""
        return self.eager and is_database(tr) and current.get() is None

    @property
    def current(self) -> Running:
        """The call that the task in this thread or coroutine is working on: its database, attempt, id and tick.

        Raises:
            RuntimeError: none is.
        """
        running = current.get()
        if running is None:
            raise RuntimeError("No task is at work here. Call the function with what it needs, or let a worker run it.")
        return running

    @verb
    async def transaction(self, body: Callable[[Transaction], R | Awaitable[R]]) -> R:
        """End the present call in one transaction with the writes of `body`: both happen exactly once, or neither.

        Call it last in the task: ``return app.transaction(body)``. What the body returns is the call's result, or a
        `Done` with that and follow-ups. In a coroutine function ``return await app.transaction.aio(body)``, where the
        body may be a coroutine function.

        Args:
            body: called with a transaction, again at each retry. It must wait for nothing but the database.

        Raises:
            TypeError: `body` is no function.
            RuntimeError: no task is at work, or it has ended its call already.
            LeaseLost: another worker has the call by now, and nothing was written.

        *Conflicts:* those of the body, and of an ack. *Cost:* those of the body, and of an ack.
        """
        if not callable(body):
            raise TypeError(f"body is a function that takes a transaction, not {body!r}.")
        running = self.current
        if running.acked:
            raise RuntimeError(f"{running.task!r} has ended its call already. A task has one last transaction.")
        result: R = await running.lane.queue.transact(running.db, partial(running.ended, body=body))
        running.acked = True
        return result

    def find(self, name: str) -> BaseTask:
        """Return a task by its name or alias.

        Raises:
            UnknownTask: there is none.
        """
        task = self.tasks.get(name) if isinstance(cast(object, name), str) else None
        if task is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            remedy = f"If it was renamed, give its new name aliases=[{name!r}], and redrive the dead letter."
            raise UnknownTask(f"This worker knows no task {name!r}; it knows {known}. {remedy}")
        return task

    def options_for(self, name: str) -> tuple[int, Backoff]:
        """Return the retries and the back-off of a task, or of the app if it is not known."""
        task = self.tasks.get(name) if isinstance(cast(object, name), str) else None
        given = (self._retries, self._backoff) if task is None else (task.options.retries, task.options.backoff)
        return RETRIES if given[0] is None else given[0], given[1]

    def lanes_of(self, queues: Sequence[str] | None) -> list[Lane]:
        """Return the lanes of queues, by their names; None: all.

        Raises:
            TypeError: the names are no list. ValueError: no task is in a queue of this name.
        """
        if not (queues is None or isinstance(queues, list | tuple | set | frozenset)):
            raise TypeError(f"queues are a list of names, as in queues=['mail'], not {queues!r}.")
        lanes = [*self._lanes.values(), *self._in_sessions.values()]
        if queues is None:
            return lanes
        if not queues:
            raise ValueError("queues is empty. Name those of the worker; without them it works on all.")
        named = dict.fromkeys(queue_text(lane.queue.layout.prefix) for lane in lanes)
        for queue in queues:
            if not isinstance(queue, str) or queue not in named:
                raise ValueError(f"No task of {self!r} is in a queue {queue!r}. Its queues are {', '.join(named)}.")
        return [lane for lane in lanes if queue_text(lane.queue.layout.prefix) in queues]


def _gates(session: object) -> list[Gate]:
    """Return the gates of a session that is made for limits; its name has them. Others have none."""
    if not isinstance(session, tuple) or session[0] != LIMITED:
        return []
    _, task, limits, _ = session
    return [Gate((task, number, key), limit=limit) for number, (limit, key) in enumerate(limits)]
