"""Every public verb takes part in a transaction that it is given, or refuses it before any key is touched."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
import fdbqueue.layers
import fdbqueue.spark
import fdbqueue.transfer
from fdbqueue.agents import AgentWatchdog
from fdbqueue.engine import Subspace
from fdbqueue.engine.transactional import only_database
from fdbqueue.engine.verb import BoundVerb, Verb
from fdbqueue.layers import (
    Consumer,
    FollowUp,
    Monitor,
    Watchdog,
    Worker,
)
from fdbqueue.layers.leases.holding import Live
from fdbqueue.layers.smart._deadlines import ClaimedDeadline, Deadline
from fdbqueue.observe import MetricsServer
from tests.helpers.verbs import Call, Scene, driven


async def _nothing(tr: Any) -> None:
    pass


def _row(scene: Scene) -> Any:
    [row] = scene.db.get_range(scene.queue.layout.begin, scene.queue.layout.end, limit=1)
    return row


def _consumer(scene: Scene) -> Consumer:
    return Consumer(scene.leases, lambda lease: pytest.fail("a handler ran"))


def _running(scene: Scene) -> Call:
    consumer = _consumer(scene)

    async def entered(db: Any) -> None:
        async with consumer.running(db):
            pass

    return Call(entered)


def _monitor(scene: Scene) -> Monitor:
    return Monitor(scene.deadlines, lambda deadline: pytest.fail("a handler ran"))


def _claim(scene: Scene) -> ClaimedDeadline:
    [item] = scene.smart.queue.browse(scene.db, limit=1)
    return ClaimedDeadline(Deadline(item.position, 0.0, True, None, "available"), 1)


def _task_running(scene: Scene) -> Call:
    worker = Worker(scene.tasks, signals=False)

    async def entered(db: Any) -> None:
        async with worker.running(db):
            pass

    return Call(entered)


ITEM = {"type": "call", "n": 9}
NO_TERMS = {"delay": None, "at": None, "ttl": None, "headers": None}


DATABASE_ONLY: dict[str, Callable[[Scene], Call]] = {
    "Completion.at": lambda s: Call(s.completion.at),
    "Blobs.write": lambda s: Call(s.blobs.write, "new"),
    "Consumer.drain": lambda s: Call(_consumer(s).drain),
    "Consumer.run": lambda s: Call(_consumer(s).run),
    "Consumer.running": _running,
    "Group.at": lambda s: Call(s.group.at),
    "Groups.group": lambda s: Call(s.groups.group, s.group.name),
    "Monitor.run": lambda s: Call(_monitor(s).run),
    "Monitor.sweep": lambda s: Call(_monitor(s).sweep),
    "Results.completion": lambda s: Call(s.results.completion, str(s.completion)),
    "StagedQueue.ack": lambda s: Call(s.staged.ack, s.lease),
    "StagedQueue.dequeue": lambda s: Call(s.staged.dequeue, timeout=None),
    "StagedQueue.dequeue_many": lambda s: Call(s.staged.dequeue_many),
    "StagedQueue.enqueue": lambda s: Call(s.staged.enqueue, "new"),
    "StagedQueue.lease": lambda s: Call(s.staged.lease, timeout=5),
    "StagedQueue.lease_many": lambda s: Call(s.staged.lease_many),
    "Schedules.fire": lambda s: Call(s.tasks.schedules.fire, s.tasks.plans),
    "Subscriptions.follow": lambda s: Call(s.subscriptions.follow),
    "Tasks.run_due": lambda s: Call(s.tasks.run_due),
    "Watchdog.run": lambda s: Call(Watchdog(s.leases).run),
    "Watchdog.sweep": lambda s: Call(Watchdog(s.leases).sweep),
    "Worker.drain": lambda s: Call(Worker(s.tasks, signals=False).drain),
    "Worker.run": lambda s: Call(Worker(s.tasks, signals=False).run),
    "Worker.running": _task_running,
    "find_queues": lambda s: Call(fdbqueue.find_queues, within=s.space),
    "forget_job": lambda s: Call(fdbqueue.spark.forget_job, s.queue.layout.space, "flights"),
    "forget_stream": lambda s: Call(fdbqueue.spark.forget_stream, s.queue.layout.space, "flights"),
    "job_report": lambda s: Call(fdbqueue.spark.job_report, s.queue.layout.space, "flights"),
    "rename": lambda s: Call(fdbqueue.rename, s.queue.layout.space, s.space["new"]),
    "release": lambda s: Call(fdbqueue.spark.release, s.queue.layout.space, "flights"),
    "settle": lambda s: Call(fdbqueue.spark.settle, s.queue.layout.space, "flights", checkpoint="none"),
    "streams": lambda s: Call(fdbqueue.spark.streams, s.queue.layout.space),
    "jobs": lambda s: Call(fdbqueue.spark.jobs, s.queue.layout.space),
}
"""Those that make their own transactions; their first parameter is called `db`."""


OUTSIDE: dict[str, Callable[[Scene], Call]] = {
    "AgentWatchdog.drain": lambda s: Call(AgentWatchdog(s.leases, ["true"]).drain),
    "AgentWatchdog.run": lambda s: Call(AgentWatchdog(s.leases, ["true"]).run),
    "MetricsServer.text": lambda s: Call(MetricsServer("127.0.0.1:0").text),
    "copy_queue": lambda s: Call(fdbqueue.transfer.copy_queue, s.db, s.queue),
    "export_items": lambda s: Call(fdbqueue.transfer.export_items, s.queue, "/nowhere/items.jsonl"),
    "import_items": lambda s: Call(fdbqueue.transfer.import_items, s.queue, "/nowhere/items.jsonl"),
    "release_copy": lambda s: Call(fdbqueue.transfer.release_copy, s.queue),
}
"""As those, in other modules."""


EITHER: dict[str, Callable[[Scene], Call]] = {
    "Call.enqueue": lambda s: Call(s.task.call().enqueue),
    "Completion.outcome": lambda s: Call(s.completion.outcome),
    "Queue.dequeue_arrow": lambda s: Call(s.queue.dequeue_arrow),
    "Queue.inspect": lambda s: Call(s.queue.inspect),
    "Queue.to_arrow": lambda s: Call(s.queue.to_arrow),
    "Queue.to_arrow_batches": lambda s: Call(s.queue.to_arrow_batches),
    "Queue.to_pandas": lambda s: Call(s.queue.to_pandas),
    "Queue.to_polars": lambda s: Call(s.queue.to_polars),
    "Sessions.gate": lambda s: Call(s.sessions.gate, "tenant"),
    "Sessions.gates": lambda s: Call(s.sessions.gates),
    "Sessions.set_limit": lambda s: Call(s.sessions.set_limit, "tenant", 3),
    "Blobs.check": lambda s: Call(s.blobs.check),
    "Blobs.read": lambda s: Call(s.blobs.read, s.lease),
    "Blobs.stats": lambda s: Call(s.blobs.stats),
    "Blobs.sweep": lambda s: Call(s.blobs.sweep),
    "DeadLetters.bury": lambda s: Call(s.leases.dead.bury, fdbqueue.Position(1, b"none")),
    "DeadLetters.browse": lambda s: Call(s.leases.dead.browse),
    "DeadLetters.purge": lambda s: Call(s.leases.dead.purge),
    "DeadLetters.redrive": lambda s: Call(s.leases.dead.redrive),
    "Deadlines.claim": lambda s: Call(s.deadlines.claim),
    "Group.cancel": lambda s: Call(s.group.cancel),
    "Group.close": lambda s: Call(s.group.close),
    "Group.enqueue": lambda s: Call(s.group.enqueue, "new"),
    "Group.enqueue_many": lambda s: Call(s.group.enqueue_many, ["new", "newer"], ttl=60),
    "Group.hold": lambda s: Call(s.group.hold),
    "Group.stats": lambda s: Call(s.group.stats),
    "Groups.browse": lambda s: Call(s.groups.browse),
    "Groups.clear": lambda s: Call(s.groups.clear),
    "Groups.is_empty": lambda s: Call(s.groups.is_empty),
    "Groups.peek": lambda s: Call(s.groups.peek),
    "Groups.enqueue": lambda s: Call(s.groups.enqueue, "new", group=s.group),
    "Groups.list": lambda s: Call(s.groups.list),
    "Groups.open": lambda s: Call(s.groups.open, "other", then=FollowUp(s.leases, "new")),
    "Handle.outcome": lambda s: Call(s.handle.outcome),
    "Leases.ack": lambda s: Call(s.leases.ack, s.lease),
    "Leases.ack_many": lambda s: Call(s.leases.ack_many, [s.lease]),
    "Leases.browse": lambda s: Call(s.leases.browse, state="leased"),
    "Leases.check": lambda s: Call(s.leases.check),
    "Leases.enqueue": lambda s: Call(s.leases.enqueue, "new", delay=60),
    "Leases.enqueue_many": lambda s: Call(s.leases.enqueue_many, ["new", "newer"], ttl=60),
    "Leases.enqueue_rows": lambda s: driven(s.leases.enqueue_rows, ["new"], terms=NO_TERMS, columns={}),
    "Leases.extend": lambda s: Call(s.leases.extend, s.lease),
    "Leases.extend_many": lambda s: Call(s.leases.extend_many, [s.lease]),
    "Leases.lease": lambda s: Call(s.leases.lease),
    "Leases.lease_many": lambda s: Call(s.leases.lease_many),
    "Leases.nack": lambda s: Call(s.leases.nack, s.lease),
    "Leases.nack_many": lambda s: Call(s.leases.nack_many, [s.lease]),
    "Leases.reclaim": lambda s: Call(s.leases.reclaim),
    "Leases.snooze": lambda s: Call(s.leases.snooze, s.lease, delay=60),
    "Leases.snooze_many": lambda s: Call(s.leases.snooze_many, [s.lease], delay=60),
    "Leases.stats": lambda s: Call(s.leases.stats),
    "OperationLog.forget": lambda s: Call(s.log.forget),
    "OperationLog.of": lambda s: Call(s.log.of),
    "OperationLog.records": lambda s: Call(s.log.records),
    "PriorityQueue.browse": lambda s: Call(s.jobs.browse, level=1),
    "PriorityQueue.check": lambda s: Call(s.jobs.check),
    "PriorityQueue.dequeue": lambda s: Call(s.jobs.dequeue),
    "PriorityQueue.dequeue_many": lambda s: Call(s.jobs.dequeue_many),
    "PriorityQueue.enqueue": lambda s: Call(s.jobs.enqueue, "new", priority=0),
    "PriorityQueue.enqueue_many": lambda s: Call(s.jobs.enqueue_many, ["new"], priority=0),
    "PriorityQueue.clear": lambda s: Call(s.jobs.clear),
    "PriorityQueue.is_empty": lambda s: Call(s.jobs.is_empty),
    "PriorityQueue.peek": lambda s: Call(s.jobs.peek),
    "PriorityQueue.next_item": lambda s: Call(s.jobs.next_item, fdbqueue.Position(0, b"", rank=0)),
    "PriorityQueue.stats": lambda s: Call(s.jobs.stats),
    "Queue.browse": lambda s: Call(s.queue.browse),
    "Queue.check": lambda s: Call(s.queue.check),
    "Queue.clear": lambda s: Call(s.queue.clear),
    "Queue.dequeue": lambda s: Call(s.queue.dequeue),
    "Queue.dequeue_many": lambda s: Call(s.queue.dequeue_many),
    "Queue.enqueue": lambda s: Call(s.queue.enqueue, "new"),
    "Queue.enqueue_many": lambda s: Call(s.queue.enqueue_many, ["new"]),
    "Queue.is_empty": lambda s: Call(s.queue.is_empty),
    "Queue.quota": lambda s: Call(s.queue.quota),
    "Queue.set_quota": lambda s: Call(s.queue.set_quota, None),
    "Queue.pause": lambda s: Call(s.queue.pause, reason="stocktaking"),
    "Queue.paused": lambda s: Call(s.queue.paused),
    "Queue.peek": lambda s: Call(s.queue.peek),
    "Queue.read": lambda s: driven(s.queue.read, _nothing),
    "Queue.register": lambda s: Call(s.queue.register),
    "Queue.resume": lambda s: Call(s.queue.resume),
    "Queue.stats": lambda s: Call(s.queue.stats),
    "Queue.transact": lambda s: driven(s.queue.transact, _nothing),
    "RelaxedQueue.browse": lambda s: Call(s.relaxed.browse),
    "RelaxedQueue.clear": lambda s: Call(s.relaxed.clear),
    "RelaxedQueue.is_empty": lambda s: Call(s.relaxed.is_empty),
    "RelaxedQueue.peek": lambda s: Call(s.relaxed.peek),
    "RelaxedQueue.dequeue": lambda s: Call(s.relaxed.dequeue),
    "RelaxedQueue.dequeue_many": lambda s: Call(s.relaxed.dequeue_many),
    "Resend.confirm": lambda s: Call(s.smart.resend.confirm, "B"),
    "Resend.fetch": lambda s: Call(s.smart.resend.fetch, "B"),
    "Resend.fetch_many": lambda s: Call(s.smart.resend.fetch_many, "B"),
    "Resend.recipients": lambda s: Call(s.smart.resend.recipients),
    "Resend.register": lambda s: Call(s.smart.resend.register, "C"),
    "Resend.reset": lambda s: Call(s.smart.resend.reset, "B"),
    "Resend.unregister": lambda s: Call(s.smart.resend.unregister, "B"),
    "Results.browse": lambda s: Call(s.results.browse),
    "Results.clear": lambda s: Call(s.results.clear),
    "Results.is_empty": lambda s: Call(s.results.is_empty),
    "Results.peek": lambda s: Call(s.results.peek),
    "Results.enqueue": lambda s: Call(s.results.enqueue, "new", delay=60, then=FollowUp(s.leases, "newer")),
    "Schedules.change": lambda s: Call(s.tasks.schedules.change, "note", every=5),
    "Schedules.list": lambda s: Call(s.tasks.schedules.list),
    "Schedules.note_plans": lambda s: Call(s.tasks.schedules.note_plans, s.tasks.plans),
    "Schedules.pause": lambda s: Call(s.tasks.schedules.pause, "note"),
    "Schedules.remove": lambda s: Call(s.tasks.schedules.remove, "note"),
    "Schedules.reset": lambda s: Call(s.tasks.schedules.reset, "note"),
    "Schedules.resume": lambda s: Call(s.tasks.schedules.resume, "note"),
    "Sessions.ack": lambda s: Call(s.sessions.ack, s.session_lease),
    "Sessions.ack_and_next": lambda s: Call(s.sessions.ack_and_next, s.session_lease),
    "Sessions.check": lambda s: Call(s.sessions.check),
    "Sessions.clear": lambda s: Call(s.sessions.clear),
    "Sessions.dead": lambda s: Call(s.sessions.dead, "ann"),
    "Sessions.enqueue": lambda s: Call(s.sessions.enqueue, "new", session="ann"),
    "Sessions.enqueue_many": lambda s: Call(s.sessions.enqueue_many, ["new"], session="ann"),
    "Sessions.extend": lambda s: Call(s.sessions.extend, s.session_lease),
    "Sessions.info": lambda s: Call(s.sessions.info, "ann"),
    "Sessions.lease": lambda s: Call(s.sessions.lease),
    "Sessions.list": lambda s: Call(s.sessions.list),
    "Sessions.nack": lambda s: Call(s.sessions.nack, s.session_lease),
    "Sessions.pause": lambda s: Call(s.sessions.pause, "ann"),
    "Sessions.purge": lambda s: Call(s.sessions.purge, "ann"),
    "Sessions.reclaim": lambda s: Call(s.sessions.reclaim),
    "Sessions.redrive": lambda s: Call(s.sessions.redrive, "ann"),
    "Sessions.remove": lambda s: Call(s.sessions.remove, "ann"),
    "Sessions.resume": lambda s: Call(s.sessions.resume, "ann"),
    "Sessions.scheduled": lambda s: Call(s.sessions.scheduled, "ann"),
    "Sessions.set_shards": lambda s: Call(s.sessions.set_shards, 1),
    "Sessions.set_concurrency": lambda s: Call(s.sessions.set_concurrency, "ann", 2),
    "Sessions.set_state": lambda s: Call(s.sessions.set_state, s.session_lease, b"x"),
    "Sessions.skip": lambda s: Call(s.sessions.skip, "ann"),
    "Sessions.snooze": lambda s: Call(s.sessions.snooze, s.session_lease, delay=60),
    "Sessions.state": lambda s: Call(s.sessions.state, "ann"),
    "Sessions.stats": lambda s: Call(s.sessions.stats),
    "SmartQueue.browse": lambda s: Call(s.smart.browse),
    "SmartQueue.clear": lambda s: Call(s.smart.clear),
    "SmartQueue.is_empty": lambda s: Call(s.smart.is_empty),
    "SmartQueue.peek": lambda s: Call(s.smart.peek),
    "SmartQueue.check": lambda s: Call(s.smart.check),
    "SmartQueue.dequeue": lambda s: Call(s.smart.dequeue),
    "SmartQueue.dequeue_many": lambda s: Call(s.smart.dequeue_many),
    "SmartQueue.enqueue": lambda s: Call(s.smart.enqueue, ITEM),
    "SmartQueue.enqueue_many": lambda s: Call(s.smart.enqueue_many, [ITEM]),
    "SmartQueue.stats": lambda s: Call(s.smart.stats),
    "SmartSessions.check": lambda s: Call(s.smart_sessions.check),
    "SmartSessions.enqueue": lambda s: Call(s.smart_sessions.enqueue, ITEM, session="ann"),
    "SmartSessions.enqueue_many": lambda s: Call(s.smart_sessions.enqueue_many, [ITEM], session="ann"),
    "StagedQueue.check": lambda s: Call(s.staged.check),
    "StagedQueue.stats": lambda s: Call(s.staged.stats),
    "Subscription.ack": lambda s: Call(s.subscription.ack, s.subscribed_lease),
    "Subscription.close": lambda s: Call(s.subscription.close),
    "Subscription.credit": lambda s: Call(s.subscription.credit),
    "Subscription.grant": lambda s: Call(s.subscription.grant, items=1),
    "Subscription.lease": lambda s: Call(s.subscription.lease),
    "Subscription.lease_many": lambda s: Call(s.subscription.lease_many),
    "Subscription.renew": lambda s: Call(s.subscription.renew),
    "Subscription.resume": lambda s: Call(s.subscription.resume),
    "Subscription.stats": lambda s: Call(s.subscription.stats),
    "Subscription.suspend": lambda s: Call(s.subscription.suspend),
    "Subscriptions.browse": lambda s: Call(s.subscriptions.browse, duty_cycle=1),
    "Subscriptions.check": lambda s: Call(s.subscriptions.check),
    "Subscriptions.count": lambda s: Call(s.subscriptions.count),
    "Subscriptions.enqueue": lambda s: Call(s.subscriptions.enqueue, "new"),
    "Subscriptions.enqueue_many": lambda s: Call(s.subscriptions.enqueue_many, ["new"], ttl=60),
    "Subscriptions.stats": lambda s: Call(s.subscriptions.stats),
    "Subscriptions.subscribe": lambda s: Call(s.subscriptions.subscribe, "some", selector="kg > 1"),
    "Subscriptions.unsubscribe": lambda s: Call(s.subscriptions.unsubscribe, s.subscription.name),
    "Task.enqueue": lambda s: Call(s.task.enqueue),
    "Task.enqueue_many": lambda s: Call(s.task.enqueue_many, [s.task.call()]),
    "check": lambda s: Call(fdbqueue.check, s.queue),
    "queues": lambda s: Call(fdbqueue.queues, within=s.space),
    "troubles": lambda s: Call(fdbqueue.troubles, within=s.space),
}
"""Those that take a transaction or a database; their first parameter is called `tr`."""

POSITION = fdbqueue.Position(1, b"none")
WITH_POSITIONS: dict[str, Callable[[Scene], Any]] = {
    "Groups": lambda s: s.groups,
    "Leases": lambda s: s.leases,
    "PriorityQueue": lambda s: s.jobs,
    "Queue": lambda s: s.queue,
    "RelaxedQueue": lambda s: s.relaxed,
    "Results": lambda s: s.results,
    "Sessions": lambda s: s.sessions,
    "SmartQueue": lambda s: s.smart,
    "StagedQueue": lambda s: s.staged,
    "Subscriptions": lambda s: s.subscriptions,
}
TERMS: dict[str, dict[str, Any]] = {
    "get": {},
    "cancel": {},
    "update": {"headers": {"n": 1}},
    "reschedule": {"delay": 60},
}


def _by_position(kind: str, verb: str, *given: Any) -> Callable[[Scene], Call]:
    session = ("ann",) if kind == "Sessions" else ()
    terms = TERMS[verb.removesuffix("_many")]
    return lambda s: Call(getattr(WITH_POSITIONS[kind](s), verb), *session, *given, **terms)


for _kind in WITH_POSITIONS:
    for _verb in TERMS:
        _position = fdbqueue.Position(1, b"none", rank=1) if _kind == "Sessions" else POSITION
        EITHER[f"{_kind}.{_verb}"] = _by_position(_kind, _verb, _position)
        EITHER[f"{_kind}.{_verb}_many"] = _by_position(_kind, f"{_verb}_many", [_position])

PARTS: dict[str, Callable[[Scene], Call]] = {
    "BlobWriter.commit": lambda s: Call(s.blobs.write(s.db, "new").commit),
    "Deadlines.claim_next": lambda s: driven(s.deadlines.claim_next, until_us=1, lapsed_us=0, ended=None),
    "Deadlines.end": lambda s: driven(s.deadlines.end, _claim(s)),
    "Deadlines.next_us": lambda s: driven(s.deadlines.next_us, lead_us=None),
    "FollowUp.carry_out": lambda s: driven(FollowUp(s.leases, "new").carry_out),
    "FollowUp.hold": lambda s: driven(FollowUp(s.leases, "new").hold),
    "Groups.check_open": lambda s: driven(s.groups.check_open, s.group.name),
    "Leases.next_due_us": lambda s: driven(s.leases.next_due_us),
    "Leases.ack_unchanged": lambda s: Call(s.leases.ack_unchanged, list[Live]()),
    "Queue.next_index": lambda s: driven(s.queue.next_index, 1),
    "Queue.take_rows": lambda s: driven(s.queue.take_rows, [_row(s)]),
    "Resend.confirm_in": lambda s: driven(s.smart.resend.confirm_in, recipient="B", named=None),
}
"""Steps of a transaction, for layers."""


OF_LAYERS = {
    *("Call.at_tick", "Call.placed", "Queue.item", "Queue.look_at", "Schedules.records", "Sessions.entered_at"),
    *("Sessions.layout_for", "Sessions.stored_at", "StagedQueue.take_one"),
}
"""They return steps, for verbs of layers, which are themselves in these tables."""


READ_NOTHING = {"StagedQueue.known", "Subscription.permit", "Task.handle", "Tasks.is_eager"}
"""They only keep a database, or look at what they are given."""


def public_verbs() -> dict[str, list[str]]:
    """Return every public verb, with the names of its parameters."""
    found: dict[str, list[str]] = {}
    for module in (fdbqueue, fdbqueue.layers, fdbqueue.spark):
        names = [name for name in module.__all__ if module is not fdbqueue.spark or name in vars(module)]
        for name in names:
            given = getattr(module, name)
            if inspect.isfunction(given) or isinstance(given, BoundVerb):
                found[name] = list(inspect.signature(given).parameters)
            elif inspect.isclass(given) and name not in ("AsyncTask", "BaseTask"):  # their verbs are those of Task
                for attribute in dir(given):
                    method = inspect.getattr_static(given, attribute)
                    if not attribute.startswith("_") and (isinstance(method, Verb) or inspect.isfunction(method)):
                        found[f"{name}.{attribute}"] = list(inspect.signature(method).parameters)[1:]
    return {name: parameters for name, parameters in found.items() if parameters[:1] in (["tr"], ["db"])}


def test_no_public_verb_is_left_out() -> None:
    found = public_verbs()

    assert set(found) == {*DATABASE_ONLY, *EITHER, *PARTS, *OF_LAYERS, *READ_NOTHING}
    of_databases = {name for name, parameters in found.items() if parameters[0] == "db"}
    assert of_databases - OF_LAYERS - READ_NOTHING == set(DATABASE_ONLY)


@pytest.mark.parametrize("name", DATABASE_ONLY | OUTSIDE)
def test_a_verb_that_makes_its_own_transactions_refuses_one_before_any_key_is_touched(
    db: Any, space: Subspace, name: str
) -> None:
    scene = Scene(db, space)
    call = (DATABASE_ONLY | OUTSIDE)[name](scene)
    before = scene.rows()

    for form in call.forms():
        tr = db.create_transaction()
        with pytest.raises(TypeError, match=r"makes its own transactions: it takes a database, not a transaction\. \w"):
            form(tr)
        assert tr.get_approximate_size().wait() == db.create_transaction().get_approximate_size().wait()
        tr.commit().wait()
        for given, named in ((tr.snapshot, "a transaction's snapshot"), (None, "NoneType"), ("memory:", "str")):
            with pytest.raises(TypeError, match=f"takes a database, not {named}: give what fdbqueue.open returned"):
                form(given)
    assert scene.rows() == before


@pytest.mark.parametrize("name", EITHER)
def test_a_verb_composes_in_a_transaction_and_refuses_other_values(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    call = EITHER[name](scene)
    before = scene.rows()

    for form in call.forms():
        form(db.create_transaction())
        for given, expected in (
            (db.create_transaction().snapshot, "A transaction was expected, not its snapshot"),
            (None, "A database or a transaction was expected, not NoneType"),
            ("memory:", "A database or a transaction was expected, not str"),
        ):
            with pytest.raises(TypeError, match=expected):
                form(given)
    assert scene.rows() == before


@pytest.mark.parametrize(
    "name", [name for name, (first, *others) in public_verbs().items() if first == "tr" and "timeout" in others]
)
def test_a_verb_that_takes_either_does_not_wait_in_a_transaction(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    call = EITHER[name](scene)
    before = scene.rows()
    for form in call.waiting().forms():
        tr = db.create_transaction()
        with pytest.raises(ValueError, match="timeout needs a database: a transaction never sees"):
            form(tr)
        tr.commit().wait()
    assert scene.rows() == before


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_transaction_refuses_a_database(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    call = PARTS[name](scene)
    before = scene.rows()

    with pytest.raises(TypeError, match="is a part of a transaction: it takes a transaction, not a database"):
        call(db)
    assert scene.rows() == before
    call(db.create_transaction())


@pytest.mark.engines("cluster")
def test_the_bindings_own_objects_are_told_apart(db: Any) -> None:
    import fdb

    tr = db.create_transaction()
    assert isinstance(tr, fdb.Transaction)
    only_database(tr.db, "Watchdog.sweep", "Never mind.")
    with pytest.raises(TypeError, match="not a transaction"):
        only_database(tr, "Watchdog.sweep", "Never mind.")
    with pytest.raises(TypeError, match="a transaction's snapshot"):
        only_database(tr.snapshot, "Watchdog.sweep", "Never mind.")
