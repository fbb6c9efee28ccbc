"""`Task`: a function with its options; `Call`: a task with arguments; `CallGroup`: calls that are enqueued together."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

import msgspec

from fdbqueue import BulkReport, Position
from fdbqueue.lowlevel import (
    Database,
    Named,
    Steps,
    Transaction,
    is_database,
    not_negative,
    positive,
    verb,
)

from ..groups import Group, Groups, GroupStats
from ..leases import FollowUp
from ..results import Completion, Outcome
from ._arguments import Arguments, TaskOptions, check_parameter, key_of, short_key_of
from ._lane import NO_CALL, Following, Lane, Message, Placed, Terms, UniqueKey

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from ._tasks import Tasks

    P = ParamSpec("P", default=...)
    R = TypeVar("R", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R", covariant=True)


LIMITED = b"limited"
"""The first part of the name of a session that is made for limits. Those of users begin with a text or a number."""


@dataclass(frozen=True, slots=True)
class CallTerms:
    """How one call is enqueued. What is None is as the task's options say."""

    delay: float | None = None
    at: float | None = None
    priority: int | None = None
    ttl: float | None = None
    keep_result: float | None = None
    then: tuple[Call | BaseTask, ...] = ()
    headers: dict[str, str] | None = field(default=None, hash=False)


class BaseTask(Named, Generic[P, R]):
    """A task. `Tasks.task` makes it from a function; calling it calls the function.

    Args:
        app: the tasks that it is one of.
        function: the function.
        options: its options.
        lane: where its calls are enqueued.
        arguments: the parameters of the function.
    """

    def __init__(
        self, app: Tasks, function: Callable[..., Any], options: TaskOptions, lane: Lane, arguments: Arguments
    ) -> None:
        self.app = app
        self.function = function
        self.options = options
        self.name = options.name
        """The name under which its calls are stored."""
        self.lane = lane
        self.arguments = arguments
        self.is_async = inspect.iscoroutinefunction(function)
        self._terms = CallTerms()
        functools.update_wrapper(cast(Any, self), function)
        check_parameter(options.session, arguments, "session")
        for one in (*([options.unique] if options.unique else []), *options.limits):
            check_parameter(one.by, arguments, "by")

    def __repr__(self) -> str:
        return f"Task({self.arguments})"

    @verb
    async def enqueue(self, tr: Transaction | Database, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Enqueue a call, and return its handle. In an event loop: ``await task.enqueue.aio(tr, …)``.

        Args:
            tr: a transaction to enqueue in, or a database.
            args, kwargs: the arguments of the task.

        Raises:
            TypeError: they do not fit the task's signature and annotations; no key was touched.

        *Conflicts:* and *Cost:* as `Call.enqueue`.
        """
        return await self.call(*args, **kwargs).enqueue.steps(tr)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call with these arguments, to enqueue it later, in a group or after another one.

        Raises:
            TypeError: the arguments do not fit the task's signature and annotations, or a limit by a function has no
                key of them.
        """
        bound = self.arguments.bind(args, kwargs)
        data = self.arguments.encode(bound)
        for rate in self.options.rates:
            if rate.by is not None:
                short_key_of(rate.by, self.arguments, bound)  # a worker asks for it
        return Call(self, data, bound, self._terms)

    def configure(
        self,
        *,
        delay: float | None = None,
        at: float | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        keep_result: float | None = None,
    ) -> BaseTask[P, R]:
        """Return the same task with other terms for its calls.

        Args:
            delay: seconds until a call may start.
            at: the same as a time of the clock, in seconds since 1970.
            priority: a priority of the task's queue; in sessions, a level.
            ttl: seconds after which a call that waits is removed.
            keep_result: seconds that the result is kept.

        Raises:
            TypeError, ValueError: one of them is not valid.
        """
        given = {"delay": delay, "at": at, "priority": priority, "ttl": ttl, "keep_result": keep_result}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        for name in changes.keys() - {"priority"}:
            (not_negative if name in ("delay", "at") else positive)(changes[name], name)
        if priority is not None:
            self.lane.check_priority(priority)
        return self._with(replace(self._terms, **changes))

    def then(self, *following: Call | BaseTask) -> BaseTask[P, R]:
        """Return the same task, with what follows each of its calls; as `Call.then`."""
        return self._with(replace(self._terms, then=(*self._terms.then, *followers(self.app, following))))

    def _with(self, terms: CallTerms) -> BaseTask[P, R]:
        task = object.__new__(type(self))
        vars(task).update(vars(self), _terms=terms)
        return task

    @verb
    async def enqueue_many(self, tr: Transaction | Database, values: Iterable[Call]) -> BulkReport:
        """Enqueue many calls of this task, in their order: ``send.enqueue_many(db, (send.call(name) for name in …))``.

        Given a database, it uses transactions of about 1 MB, one after the other, each exactly once. No handles are
        made, and no results are kept.

        Raises:
            TypeError: one is no call of this task, or the task is unique. BulkInterrupted: as `Leases.enqueue_many`.

        *Conflicts:* as `Leases.enqueue_many`, or `Sessions.enqueue_many`. *Cost:* as there.
        """
        if self.options.unique is not None:
            raise TypeError(f"{self!r} is unique, which is decided call by call. Use enqueue for each call.")
        if not isinstance(cast(object, values), Iterable):
            raise TypeError(f"enqueue_many takes calls of its own task, as {self.name}.call(…), not {values!r}.")
        routes: dict[int, object] = {}
        terms = self.call_terms(self._terms, None)
        if self.lane.sessions is not None:
            terms["session"] = lambda value: routes.pop(id(value))  # each is asked for right after it was made
        made = self._values(values, routes)
        report: BulkReport = await self.lane.source.enqueue_many.steps(tr, made, **terms)
        return report

    def _values(self, calls: Iterable[Call], routes: dict[int, object]) -> Iterable[object]:
        for call in calls:
            if not isinstance(cast(object, call), Call) or call.task.function is not self.function:
                raise TypeError(f"enqueue_many takes calls of its own task, as {self.name}.call(…), not {call!r}.")
            if replace(call.terms, then=self._terms.then) != self._terms:
                raise TypeError(f"{call!r} has terms of its own. Configure the task: {self.name}.configure(…).")
            value = call.value()
            if self.lane.sessions is not None:
                routes[id(value)] = self.session_of(call)
            yield value

    def handle(self, db: Database, text: str) -> Handle[R]:
        """Return the handle of a call that was enqueued before, here or in another process. It reads nothing.

        Args:
            db: a database.
            text: the text of the handle, ``str(handle)``.

        Raises:
            ValueError: the text is none of a handle.
        """
        return Handle(self, Position.parse(text), db, is_new=False, completion=None)

    def call_terms(self, terms: CallTerms, session: object) -> Terms:
        """Return the arguments of the queue's `enqueue`. For the layer."""
        if not isinstance(terms, CallTerms):
            raise TypeError(f"The terms of a call are CallTerms, which a Call has, not {terms!r}.")
        options = self.options
        return self.lane.terms(
            options.priority if terms.priority is None else terms.priority,
            delay=terms.delay,
            at=terms.at,
            ttl=options.ttl if terms.ttl is None else terms.ttl,
            headers=terms.headers,
            session=session,
        )

    def session_of(self, call: Call) -> object:
        """Return the session of a call: that of its option, or one made for its limits. None: it has none."""
        options = self.options
        if options.session is not None:
            key = key_of(options.session, self.arguments, call.bound)
            return key if isinstance(key, str) and key else (key,)
        if not options.concurrency:
            return None
        gates = tuple(
            (one.limit, "" if one.by is None else short_key_of(one.by, self.arguments, call.bound))
            for one in options.concurrency
        )
        # Equal calls of a unique task have the same session, which is where each looks for the other.
        own = call.unique_key()
        return LIMITED, self.name, gates, secrets.token_hex(8) if own is None else own.key


class Task(BaseTask[P, R]):
    """A task of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class AsyncTask(BaseTask[P, R]):
    """A task of a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.function(*args, **kwargs)  # type: ignore[no-any-return]


class Handle(Named, Generic[R]):
    """A call that was enqueued. In any process `BaseTask.handle` makes it from ``str(handle)``."""

    __slots__ = ("_completion", "_db", "is_new", "position", "task")

    def __init__(
        self,
        task: BaseTask[..., R],
        position: Position,
        db: Database | None,
        *,
        is_new: bool,
        completion: Completion | None,
    ) -> None:
        self.task = task
        self.position = position
        """The call's item."""
        self.is_new = is_new
        """Whether this enqueue has added it. Otherwise a call was there that is equal, and the task is unique."""
        self._db = db
        self._completion = task.lane.completion(position) if completion is None else completion

    def __repr__(self) -> str:
        return f"Handle({self.task.name}, {self.position.text!r})"

    def __str__(self) -> str:
        return self.position.text

    @verb
    async def result(self, timeout: float | None = None) -> R:
        """Wait until the call has ended, and return the task's result. ``await handle`` does the same.

        If the call was enqueued in your own transaction, commit that first.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            CompletionError: it ended without a result: as a dead letter, or since its time to live was over.
            TimeoutError: the time is over. The call is not affected.
            CodecError: the result is not of the task's return annotation.
            ValueError: no result is kept, or there is no database to wait in.

        *Conflicts:* none. *Cost:* one read and a watch: once, in general.
        """
        self._check_kept()
        if self._db is None:
            raise ValueError(f"{self!r} has no database to wait in: task.handle(db, str(handle)) gives it one.")
        stored = await self._completion.at(self._db).wait.steps(timeout)
        return cast(R, self.task.arguments.decode_result(stored))

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result.aio().__await__()

    @verb
    async def outcome(self, tr: Transaction | Database) -> Outcome | None:
        """Return how the call ended, without waiting; None if it has not ended yet.

        Raises:
            CompletionError: there is no record of it. ValueError: no result is kept.

        *Conflicts:* in a transaction, with the end of the call. *Cost:* one read.
        """
        self._check_kept()
        return await self._completion.outcome.steps(tr)

    def _check_kept(self) -> None:
        if self.task.options.keep_result is None and self.task._terms.keep_result is None:
            raise ValueError(f"{self.task.name!r} keeps no results to wait for: give it keep_result=600, in seconds.")


class Call(Named, Generic[R]):
    """A task with arguments, which were checked. `BaseTask.call` makes it."""

    def __init__(self, task: BaseTask[..., R], data: bytes, bound: inspect.BoundArguments, terms: CallTerms) -> None:
        self.task = task
        self.data = data
        self.bound = bound
        self.terms = terms

    def __repr__(self) -> str:
        return f"Call({self.task.name}, {self.data.decode()})"

    def then(self, *following: Call | BaseTask) -> Call[R]:
        """Return this call, with what is enqueued in the transaction that acks it.

        A call has its own arguments. A task gets the result as its only argument. What follows has its own `then`.

        Raises:
            TypeError: it is neither a call nor a task of the same `Tasks`, or a task that can't be called with the
                result alone.
        """
        terms = replace(self.terms, then=(*self.terms.then, *followers(self.task.app, following)))
        return Call(self.task, self.data, self.bound, terms)

    @verb
    async def enqueue(self, tr: Transaction | Database) -> Handle[R]:
        """Enqueue the call, and return its handle.

        Args:
            tr: a transaction to enqueue in, or a database.

        *Conflicts:* none; if the task is unique, with an enqueue of an equal call, and with its end. *Cost:* as the
        `enqueue` of the queue; one more write if the result is kept; two more reads and writes if the task is unique.
        """
        placed = await self.placed(tr)
        if self.task.app.is_eager(tr):
            await self.task.app.run_due.steps(cast(Database, tr))
        db: Database | None = tr if is_database(tr) else getattr(tr, "db", None)  # type: ignore[assignment]
        return Handle(self.task, placed.position, db, is_new=placed.is_new, completion=placed.completion)

    def all_terms(self) -> Terms:
        """Return the arguments of the lane's `enqueue`. For the layer."""
        options, terms = self.task.options, self.terms
        keep = options.keep_result if terms.keep_result is None else terms.keep_result
        given = self.task.call_terms(terms, self.task.session_of(self))
        return given | {"unique": self.unique_key(), "keep": keep}

    def unique_key(self) -> UniqueKey | None:
        """Return what makes the call equal to others; None: nothing."""
        unique = self.task.options.unique
        if unique is None:
            return None
        key = str(short_key_of(unique.by, self.task.arguments, self.bound))
        return UniqueKey(unique, msgspec.json.encode((self.task.name, key)).decode())

    def at_tick(self, tr: Transaction, told: dict[str, str], wait: float) -> Steps[Placed]:
        """Enqueue it for a tick of a schedule. For the layer."""
        not_negative(wait, "wait")
        terms = replace(self.terms, headers=told, delay=(self.terms.delay or 0.0) + wait)
        return Call(self.task, self.data, self.bound, terms).placed(tr)

    def placed(self, tr: Transaction | Database) -> Steps[Placed]:
        """Enqueue it, and return where it is. For the layer."""
        return self.task.lane.enqueue.steps(tr, self.value(), **self.all_terms())

    def value(self) -> object:
        """Return what is stored. For the layer."""
        then = tuple(map(following_of, self.terms.then))
        return self.task.lane.value(Message(self.task.name, msgspec.Raw(self.data), then))


def following_of(one: Call | BaseTask) -> Following:
    """Return a call or a task as what follows a call.

    Raises:
        ValueError: it has a time at which it starts.
    """
    task, data, terms = (one.task, one.data, one.terms) if isinstance(one, Call) else (one, bytes(NO_CALL), one._terms)
    if terms.at is not None:
        raise ValueError(f"{one!r} follows another call and can't have a time `at`. Give a delay.")
    names = ("delay", "priority", "ttl", "keep_result")
    given = {name: value for name in names if (value := getattr(terms, name)) is not None}
    args = NO_CALL if data == bytes(NO_CALL) else msgspec.Raw(data)
    return Following(task.name, args, tuple(map(following_of, terms.then)), given)


def followers(app: Tasks, following: tuple[Call | BaseTask, ...]) -> tuple[Call | BaseTask, ...]:
    """Refuse what can't follow a call, and tasks that can't get its result.

    Raises:
        TypeError: it is neither a call nor a task of the same `Tasks`, or a task that can't be called with the result.
    """
    for one in checked(app, following):
        if isinstance(one, BaseTask):
            one.arguments.check_takes_result()
    return following


def checked(app: Tasks, following: tuple[Call | BaseTask, ...]) -> tuple[Call | BaseTask, ...]:
    """Refuse what can't follow a call.

    Raises:
        TypeError: it is neither a call nor a task of the same `Tasks`.
    """
    for one in following:
        task = one.task if isinstance(one, Call) else one
        if not isinstance(cast(object, task), BaseTask) or task.app is not app:
            raise TypeError(f"A call or a task of {app!r} can follow, as then(log) or then(log.call(…)), not {one!r}.")
        following_of(one)
    return following


AT_ONCE = 100
"""How many calls one transaction enqueues, if they are given a database."""


class CallGroup(Named):
    """Calls to enqueue together. `Tasks.group` makes it.

    Args:
        app: the tasks.
        calls: the calls, of tasks in one queue.
        following: calls that are enqueued when all have ended.
    """

    def __init__(self, app: Tasks, calls: Sequence[Call], following: Sequence[Call] = ()) -> None:
        if not isinstance(cast(object, calls), list | tuple):
            raise TypeError(f"A group has a list of calls, as app.group([send.call('Ann')]), not {calls!r}.")
        self._app = app
        self._calls = list(calls)
        self._following = following
        for call in (*self._calls, *following):
            if not isinstance(cast(object, call), Call) or call.task.app is not app:
                raise TypeError(f"A group has calls of {app!r}, as app.group([send.call('Ann')]), not {call!r}.")
            if call.task.options.unique is not None:
                raise TypeError(f"{call.task!r} is unique, and an equal call may be there: enqueue it alone.")
        if not self._calls:
            raise TypeError("A group has at least one call, as app.group([send.call('Ann')]), not an empty list.")
        lanes = {id(call.task.lane): call.task.lane for call in self._calls}
        if len(lanes) != 1:
            raise TypeError(f"A group has calls, all of them in one queue, not in {len(lanes)}: {[*lanes.values()]}.")
        self._lane = next(iter(lanes.values()))

    def __repr__(self) -> str:
        return f"CallGroup({len(self._calls)} calls of {self._app!r})"

    def then(self, *following: Call | BaseTask) -> CallGroup:
        """Return this group, with what is enqueued when all of its calls have ended. A task gets no arguments."""
        calls = [one if isinstance(one, Call) else one.call() for one in checked(self._app, following)]
        return CallGroup(self._app, self._calls, [*self._following, *calls])

    @verb
    async def enqueue(self, tr: Transaction | Database, name: str = "") -> EnqueuedGroup:
        """Enqueue all calls, and return the group.

        Args:
            tr: a transaction, or a database. Given a database, it uses transactions of 100 calls.
            name: the group's name; "": a random one.

        Raises:
            GroupError: there is a group of this name already. ItemTooLarge: too many calls follow.

        *Conflicts:* and *Cost:* as `Groups.open`, and as `Groups.enqueue` for each call.
        """
        groups, name = Groups(self._lane), name or secrets.token_hex(8)
        then = [FollowUp(one.task.lane, one.value(), **one.all_terms()) for one in self._following]
        handles: list[Handle] = []
        db: Database | None = tr if is_database(tr) else getattr(tr, "db", None)  # type: ignore[assignment]
        group = await groups.open.steps(tr, name, then=then)
        for start in range(0, len(self._calls), AT_ONCE):
            some = self._calls[start : start + AT_ONCE]
            handles += await self._lane.queue.transact(tr, partial(self._some, groups, group, some, db))
        await group.close.steps(tr)
        return EnqueuedGroup(group, handles)

    async def _some(
        self, groups: Groups, group: Group, calls: list[Call], db: Database | None, tr: Transaction
    ) -> list[Handle]:
        handles = []
        for call in calls:
            placed = await groups.enqueue.steps(tr, call.value(), group=group, **call.all_terms())
            handles.append(Handle(call.task, placed.position, db, is_new=True, completion=placed.completion))
        return handles


class EnqueuedGroup(Named):
    """A group of calls that was enqueued: wait for all of them, or await it."""

    def __init__(self, group: Group, handles: list[Handle]) -> None:
        self.group = group
        """The group, with `stats` and `cancel`."""
        self.handles = handles
        """The handles of its calls, in their order."""

    def __repr__(self) -> str:
        return f"EnqueuedGroup({self.group.name!r}, {len(self.handles)} calls)"

    @verb
    async def wait(self, timeout: float | None = None) -> GroupStats:
        """Wait until all calls have ended; as `Group.wait`."""
        return await self.group.wait.steps(timeout)

    def __await__(self) -> Generator[Any, Any, GroupStats]:
        return self.wait.aio().__await__()
