"""A scene in which every public verb can be called, and calls that lack their first argument."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.layers import (
    Blobs,
    Completion,
    Deadlines,
    FollowUp,
    Group,
    Groups,
    Handle,
    Lease,
    Leases,
    OperationLog,
    PriorityQueue,
    RelaxedQueue,
    Results,
    SessionLease,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscription,
    Subscriptions,
    Task,
    Tasks,
)
from fdbqueue.layers.smart import Messages, MessageType


class Scene:
    """Queues with items in every state, made as a test asks for them."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self.db = db
        self.space = space

    @cached_property
    def tr(self) -> Any:
        return self.db.create_transaction()

    @cached_property
    def queue(self) -> Queue:
        queue = Queue(self.space["queue"], codec="str")
        queue.enqueue_many(self.db, ["a", "b", "c", "d"])
        return queue

    @cached_property
    def leases(self) -> Leases:
        leases = Leases(self.queue, max_attempts=1)
        failed = leases.lease(self.db)
        assert failed is not None
        leases.nack(self.db, failed)
        return leases

    @cached_property
    def lease(self) -> Lease:
        lease = self.leases.lease(self.db, duration=600)
        assert lease is not None
        return lease

    @cached_property
    def results(self) -> Results[Any]:
        return Results(Leases(Queue(self.space["results"], codec="str")))

    @cached_property
    def completion(self) -> Completion[Any]:
        return self.results.enqueue(self.db, "x", then=FollowUp(self.leases, "y"))

    @cached_property
    def groups(self) -> Groups:
        return Groups(Leases(Queue(self.space["groups"], codec="str")))

    @cached_property
    def group(self) -> Group:
        group = self.groups.open(self.db, "import", then=FollowUp(self.leases, "z"))
        group.enqueue(self.db, "x")
        return group

    @cached_property
    def staged(self) -> StagedQueue:
        return StagedQueue(self.leases)

    @cached_property
    def jobs(self) -> PriorityQueue:
        jobs = PriorityQueue(Queue(self.space["jobs"], codec="str"), levels=3)
        jobs.enqueue_many(self.db, ["x", "y"], priority=1)
        return jobs

    @cached_property
    def relaxed(self) -> RelaxedQueue:
        queue = Queue(self.space["relaxed"], codec="str")
        queue.enqueue(self.db, "x")
        return RelaxedQueue(queue)

    @cached_property
    def subscriptions(self) -> Subscriptions:
        queue = Queue(self.space["subscriptions"], codec="str")
        queue.enqueue_many(self.db, ["x", "y"])
        return Subscriptions(queue)

    @cached_property
    def subscription(self) -> Subscription:
        return self.subscriptions.subscribe(self.db, "all")

    @cached_property
    def subscribed_lease(self) -> Lease:
        lease = self.subscription.lease(self.db, duration=600)
        assert lease is not None
        return lease

    @cached_property
    def smart(self) -> SmartQueue:
        call = MessageType("call", deadline=1e-6)  # missed at the next call
        smart = SmartQueue(Queue(self.space["smart"], codec=Messages(call)))
        smart.resend.register(self.db, "B")
        for number in range(3):
            smart.enqueue(self.db, {"type": "call", "n": number})
        smart.resend.fetch(self.db, "B")
        return smart

    @cached_property
    def sessions(self) -> Sessions:
        sessions = Sessions(Queue(self.space["sessions"], codec="str"), max_attempts=1)
        sessions.enqueue_many(self.db, ["x", "y", "z"], session="ann")
        failed = sessions.lease(self.db)
        assert failed is not None
        sessions.nack(self.db, failed)
        sessions.enqueue(self.db, "x", session="bob")
        return sessions

    @cached_property
    def smart_sessions(self) -> SmartSessions:
        smart = SmartSessions(Sessions(Queue(self.space["smart sessions"], codec=Messages(MessageType("call")))))
        for number in range(3):
            smart.enqueue(self.db, {"type": "call", "n": number}, session="ann")
        return smart

    @cached_property
    def session_lease(self) -> SessionLease:
        lease = self.sessions.lease(self.db, duration=600)
        assert lease is not None
        return lease

    @cached_property
    def deadlines(self) -> Deadlines:
        return Deadlines(self.smart)

    @cached_property
    def blobs(self) -> Blobs:
        return Blobs(self.leases)

    @cached_property
    def tasks(self) -> Tasks:
        """An app with one task, `note`, whose results are kept, and one schedule of it."""
        app = Tasks(Leases(Queue(self.space["tasks"], codec="json")))

        @app.periodic(every=60)
        @app.task(name="note", keep_result=60)
        def note() -> None: ...

        app.schedules.note_plans(self.db, app.plans)
        return app

    @cached_property
    def task(self) -> Task[..., Any]:
        task: Any = self.tasks.tasks["note"]
        return task  # type: ignore[no-any-return]

    @cached_property
    def handle(self) -> Handle[Any]:
        return self.task.enqueue(self.db)

    @cached_property
    def log(self) -> OperationLog:
        log = OperationLog(self.space["log"], self.queue)
        self.queue.enqueue(log.of(self.db), "logged")
        return log

    def rows(self) -> list[tuple[bytes, bytes]]:
        return [(row.key, row.value) for row in self.db.get_range_startswith(self.space.key())]


class Call:
    """A call that lacks its first argument."""

    def __init__(self, verb: Any, *args: Any, **terms: Any) -> None:
        self.verb = verb
        self.args = args
        self.terms = terms

    def __call__(self, tr: Any) -> Any:
        result = self.verb(tr, *self.args, **self.terms)
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        return list(result) if isinstance(result, Iterator) else result

    def begun(self, tr: Any) -> Any:
        """Return what to await, in an event loop that runs."""
        return self.verb.aio(tr, *self.args, **self.terms)

    def awaited(self, tr: Any) -> Any:
        return asyncio.run(self.verb.aio(tr, *self.args, **self.terms))

    def waiting(self, timeout: float = 5.0) -> Call:
        return Call(self.verb, *self.args, **{**self.terms, "timeout": timeout})

    def forms(self) -> list[Callable[[Any], Any]]:
        return [self, self.awaited] if hasattr(self.verb, "aio") else [self]


def driven(method: Callable[..., Any], *args: Any, **terms: Any) -> Call:
    """Return the call of a method that returns steps, or what they would return."""

    def call(tr: Any) -> Any:
        result = method(tr, *args, **terms)
        return run(result) if hasattr(result, "send") else result

    return Call(call)
