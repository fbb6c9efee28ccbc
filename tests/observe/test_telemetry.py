"""Spans and metrics of verbs, consumers and transactions, as OpenTelemetry's conventions have them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from fdbqueue import BulkInterrupted, FDBError, LeaseLost, Queue, transactional
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Consumer,
    Done,
    FollowUp,
    GiveUp,
    Groups,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    Sessions,
    Snooze,
    StagedQueue,
    Subscriptions,
    Tasks,
)
from fdbqueue.lowlevel import run
from fdbqueue.stored.names import queue_text
from tests.helpers.clock import Clock
from tests.helpers.names import beside
from tests.observe.conftest import Heard

DURATION = "messaging.client.operation.duration"
SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
PROCESS = "messaging.process.duration"


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


@pytest.fixture
def leases(queue: Queue) -> Leases:
    return Leases(queue)


def named(queue: Queue) -> str:
    return queue_text(queue.layout.prefix)


def ids(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: Any) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def untold(queue: Queue, db: Any, value: str) -> None:
    """Enqueue as another process that is not instrumented."""
    run(queue.enqueue.steps(db, value))


def nothing(lease: Lease) -> None:
    """Do nothing."""


def test_a_call_is_one_span_with_the_conventions_names(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    position = leases.enqueue(db, "a")
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease)

    spans = heard.spans()
    assert [(span.name, span.kind) for span in spans] == [
        (f"enqueue {named(queue)}", SpanKind.PRODUCER),
        (f"lease {named(queue)}", SpanKind.CLIENT),
        (f"ack {named(queue)}", SpanKind.CLIENT),
    ]
    for span, kind in zip(spans, ("send", "receive", "settle"), strict=True):
        assert dict(span.attributes or {}) == {
            "messaging.system": "fdbqueue",
            "messaging.operation.name": span.name.split()[0],
            "messaging.operation.type": kind,
            "messaging.destination.name": named(queue),
            "messaging.message.id": position.text,
        }
    assert linked(spans[1]) == linked(spans[2]) == [ids(spans[0])]


def test_the_span_of_a_tasks_enqueue_has_its_queues_name(db: Any, heard: Heard, space: Subspace, clock: Clock) -> None:
    app = Tasks(space, clock=clock)

    @app.task
    def plain(number: int) -> None: ...

    @app.task(queue=beside(space, "other"))
    def other(number: int) -> None: ...

    plain.enqueue(db, 1)
    plain.configure(delay=1).enqueue(db, 2)
    other.enqueue(db, 3)
    plain.call(4).then(other).enqueue(db)

    names = [f"enqueue {named(task.lane.queue)}" for task in (plain, plain, other, plain)]
    assert [span.name for span in heard.spans("enqueue")] == names
    assert names[0] != names[2]


def test_metrics_count_calls_and_items(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    leases.enqueue(db, "a")
    leases.enqueue_many(db, ["b", "c"])
    queue.enqueue_many(db, ["d"])
    leases.ack_many(db, leases.lease_many(db, limit=3))
    queue.dequeue(db)
    assert leases.lease(db) is None

    name = {"messaging__destination__name": named(queue)}
    assert heard.total(SENT, **name) == 4
    assert heard.total(CONSUMED, **name) == 4
    assert heard.total(DURATION, messaging__operation__type="send", **name) == 3
    assert heard.total(DURATION, messaging__operation__type="receive", **name) == 3
    assert heard.total(DURATION, messaging__operation__name="ack_many", **name) == 1
    [point] = [one for one in heard.points(DURATION) if one.attributes["messaging.operation.name"] == "ack_many"]
    assert list(point.explicit_bounds) == [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]


def test_a_call_that_finds_nothing_is_no_span(db: Any, heard: Heard, leases: Leases) -> None:
    assert leases.lease(db) is None
    assert leases.lease_many(db) == []
    assert heard.spans() == []


def test_a_batch_has_a_link_for_each_item_that_names_a_span(db: Any, heard: Heard, leases: Leases) -> None:
    leases.enqueue(db, "a")
    leases.enqueue(db, "b")
    untold(leases.queue, db, "c")  # it has no headers

    leases.ack_many(db, leases.lease_many(db))

    one, other = heard.spans("enqueue ")
    receiving, settling = heard.span("lease_many"), heard.span("ack_many")
    assert linked(receiving) == linked(settling) == [ids(one), ids(other)]
    assert receiving.attributes["messaging.batch.message_count"] == 3


def test_an_error_is_told(db: Any, heard: Heard, leases: Leases) -> None:
    leases.enqueue(db, "a")
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease)
    with pytest.raises(LeaseLost):
        leases.ack(db, lease)

    span: Any = heard.spans("ack")[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "fdbqueue.errors.LeaseLost"
    assert heard.total(DURATION, error__type="fdbqueue.errors.LeaseLost") == 1
    assert heard.total("fdbqueue.lease.losses") == 1


def test_an_interrupted_load_counts_what_is_in(db: Any, heard: Heard, leases: Leases) -> None:
    with pytest.raises(BulkInterrupted):
        leases.enqueue_many(db, [*["a"] * 600, None])
    assert heard.total(SENT) == 500


def test_awaited_calls_tell_the_same(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    async def work() -> None:
        await leases.enqueue.aio(db, "a")
        lease = await leases.lease.aio(db)
        assert lease is not None
        await leases.nack.aio(db, lease)

    asyncio.run(work())
    assert [span.name.split()[0] for span in heard.spans()] == ["enqueue", "lease", "nack"]


def test_calls_in_a_transaction_are_spans_of_their_own_and_children(db: Any, heard: Heard, leases: Leases) -> None:
    @transactional
    def buy(tr: Any) -> None:
        leases.enqueue(tr, "a")

    with heard.tracer.start_as_current_span("request") as request:
        buy(db)

    span = heard.span("enqueue")
    assert span.parent.span_id == request.get_span_context().span_id


def test_a_layers_call_is_not_told_twice(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    PriorityQueue(Queue(beside(queue.layout.space, "p"), codec="str")).enqueue(db, "a")
    staged = StagedQueue(leases)
    staged.enqueue(db, "b")
    lease = staged.lease(db)
    assert lease is not None
    staged.ack(db, lease)
    assert [span.name.split()[0] for span in heard.spans()] == ["enqueue", "enqueue", "lease", "ack"]


def test_without_a_sampled_span_the_items_own_headers_stay(db: Any, heard: Heard, leases: Leases) -> None:
    leases.enqueue(db, "a", headers={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "color": "blue"})
    leases.enqueue(db, "b", headers={"color": "red"})
    one, other = leases.lease_many(db)
    assert one.headers["traceparent"].startswith("00-1111")
    assert one.headers["color"] == "blue"
    assert set(other.headers) == {"traceparent", "color"}


def test_headers_that_are_no_context_are_no_link(db: Any, heard: Heard, leases: Leases) -> None:
    for bad in ("", "00-xyz", 7, None, ["00"], "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "€" * 50):
        leases.enqueue(db, "a", headers={"traceparent": bad, "tracestate": 7})
    assert Consumer(leases, nothing).drain(db).acked == 7
    assert all(not span.links for span in heard.spans("process"))


def test_wrong_headers_are_refused_as_ever(db: Any, heard: Heard, leases: Leases) -> None:
    with pytest.raises(Exception, match="Headers are a mapping"):
        leases.enqueue(db, "a", headers="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="StagedQueue"):
        leases.lease(db, timeout=5)  # type: ignore[call-arg]


# --- consumers


@pytest.mark.parametrize("form", ["plain", "async"])
def test_a_handler_works_in_a_span_whose_parent_enqueued_the_item(
    db: Any, heard: Heard, queue: Queue, leases: Leases, form: str
) -> None:
    with heard.tracer.start_as_current_span("request"):
        position = leases.enqueue(db, "a")
    seen: list[Any] = []

    def handle(lease: Lease) -> None:
        seen.append(trace.get_current_span().get_span_context())

    async def handle_async(lease: Lease) -> None:
        await asyncio.sleep(0)
        handle(lease)

    Consumer(leases, handle if form == "plain" else handle_async, consumer="printer").drain(db)

    producer, process = heard.span("enqueue"), heard.span("process")
    assert process.kind is SpanKind.CONSUMER
    assert process.parent.span_id == producer.context.span_id
    assert linked(process) == [ids(producer)]
    assert (seen[0].trace_id, seen[0].span_id) == ids(process)
    assert process.attributes["messaging.message.id"] == position.text
    assert process.attributes["messaging.client.id"] == "printer"
    assert process.attributes["fdbqueue.attempt"] == 1
    assert heard.total(PROCESS, messaging__destination__name=named(queue)) == 1


def test_a_consumers_acks_are_told_by_the_batch(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    leases.enqueue_many(db, map(str, range(20)))
    Consumer(leases, nothing).drain(db)
    settled = heard.spans("ack")
    assert sum(int(str((span.attributes or {})["messaging.batch.message_count"])) for span in settled) == 20
    assert sum(len(span.links) for span in settled) == 20
    assert heard.total(CONSUMED) == 20


def test_a_failure_is_told_and_a_snooze_is_none(db: Any, heard: Heard, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    leases.enqueue_many(db, ["fail", "snooze", "give up"])

    def handle(lease: Lease) -> None:
        if lease.value == "snooze":
            raise Snooze(5)
        if lease.value == "give up":
            raise GiveUp from KeyError("k")
        raise LookupError("no")

    Consumer(leases, handle).drain(db)

    errors = sorted(str((span.attributes or {}).get("error.type", "")) for span in heard.spans("process"))
    assert errors == ["", "KeyError", "LookupError"]
    assert heard.total("fdbqueue.item.dead_letters", messaging__destination__name=named(queue)) == 2


def test_an_error_without_a_text_stays_the_error_of_its_attempt(db: Any, heard: Heard, queue: Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    leases.enqueue(db, "fail")

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def handle(lease: Lease) -> None:
        raise Mute

    Consumer(leases, handle).drain(db)

    assert [item.error for item in leases.dead.browse(db)] == ["Mute"]
    assert (heard.span("process").attributes or {})["error.type"].endswith("Mute")


def test_sessions_are_told_too(db: Any, heard: Heard, queue: Queue) -> None:
    sessions = Sessions(queue)
    sessions.enqueue_many(db, ["a", "b"], session="Ann")
    assert Consumer(sessions, nothing).drain(db).acked == 2
    process = heard.spans("process")
    assert [(span.attributes or {})["fdbqueue.session"] for span in process] == ["Ann", "Ann"]
    assert {span.name for span in process} == {f"process {named(queue)}"}
    assert all(linked(span) == [ids(heard.span("enqueue_many"))] for span in process)


def test_subscriptions_are_named(db: Any, heard: Heard, queue: Queue) -> None:
    subscriptions = Subscriptions(queue)
    printer = subscriptions.subscribe(db, "printer")
    subscriptions.enqueue(db, "a")
    assert printer.lease(db) is not None
    assert heard.span("lease").attributes["messaging.destination.subscription.name"] == "printer"


def test_the_wait_of_an_item_is_from_its_enqueue_to_its_first_lease(db: Any, heard: Heard, leases: Leases) -> None:
    leases.enqueue(db, "a")
    untold(leases.queue, db, "no time is stored")
    one, _ = leases.lease_many(db)
    leases.nack(db, one)
    leases.lease(db)
    assert heard.total("fdbqueue.item.wait.duration") == 1


# --- transactions, leases


def test_conflicts_are_counted(db: Any, heard: Heard, space: Subspace) -> None:
    key = space.pack(("n",))
    runs = 0

    @transactional
    def count(tr: Any) -> None:
        nonlocal runs
        runs += 1
        value = tr[key]
        value.present()
        if runs == 1:
            db[key] = b"1"
        tr[key] = b"2"

    count(db)

    assert runs == 2
    assert heard.total("fdbqueue.transaction.conflicts") == 1
    assert heard.total("fdbqueue.transaction.retries", error__type="1020") == 1
    assert heard.total("fdbqueue.transaction.unknown_results") == 0


def test_unknown_outcomes_are_counted(db: Any, heard: Heard, leases: Leases) -> None:
    from tests.helpers.faults import FaultyDatabase

    faulty = FaultyDatabase.failing_at(db, {0}, ("after", FDBError(1021)))
    leases.enqueue(faulty, "a")
    assert leases.stats(db).available == 1
    assert heard.total("fdbqueue.transaction.unknown_results") == 1


def test_expired_leases_and_their_dead_letters_are_counted_once(
    db: Any, heard: Heard, queue: Queue, clock: Clock
) -> None:
    leases = Leases(queue, max_attempts=1, clock=clock)
    leases.enqueue_many(db, ["a", "b"])
    leases.lease(db, duration=5)
    clock.now += 6

    tr = db.create_transaction()
    leases.reclaim(tr)  # an attempt that is not committed, and is repeated
    report = leases.reclaim(db)

    assert len(report.reclaimed) == 1
    assert heard.total("fdbqueue.lease.reclaims", messaging__destination__name=named(queue)) == 1
    assert heard.total("fdbqueue.item.dead_letters") == 1


def test_a_lease_call_that_ends_others_counts_them(db: Any, heard: Heard, queue: Queue, clock: Clock) -> None:
    leases = Leases(queue, clock=clock)
    leases.enqueue(db, "a")
    leases.lease(db, duration=5)
    clock.now += 6
    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 2
    assert heard.total("fdbqueue.lease.reclaims") == 1


# --- where the context travels


def test_through_results_and_their_follow_ups(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    mails = Leases(Queue(beside(queue.layout.space, "mails"), codec="str"))
    held = FollowUp(mails, "held")  # made where no span is current: it carries that of the call
    Results(leases).enqueue(db, "a", then=held)

    def handle(lease: Lease) -> Done:
        return Done(7, then=FollowUp(mails, "from the handler"))

    Consumer(leases, handle).drain(db)

    first, second = mails.lease_many(db)
    enqueue, process = heard.spans("enqueue")[0], heard.span("process")
    by_value = {lease.value: lease.headers["traceparent"].split("-")[2] for lease in (first, second)}
    assert int(by_value["held"], 16) == ids(enqueue)[1]
    assert int(by_value["from the handler"], 16) == ids(process)[1]
    assert "headers" not in repr(held)  # the object is the program's, and stays as it was


def test_through_a_follow_up_into_a_plain_queue(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    plain = Queue(beside(queue.layout.space, "plain"), codec="str")
    leases.enqueue(db, "a")
    Consumer(leases, lambda lease: Done(then=FollowUp(plain, "b"))).drain(db)
    item = plain.dequeue(db)
    assert item is not None
    assert int(item.headers["traceparent"].split("-")[2], 16) == ids(heard.span("process"))[1]


def test_through_groups(db: Any, heard: Heard, leases: Leases) -> None:
    groups = Groups(leases)
    group = groups.open(db, "all")
    group.enqueue(db, "a")
    groups.enqueue(db, "b", group=group)
    assert ["traceparent" in lease.headers for lease in leases.lease_many(db)] == [True, True]
    assert len(heard.spans("enqueue ")) == 2


def test_through_export_and_import_and_copy(db: Any, heard: Heard, queue: Queue, leases: Leases, tmp_path: Any) -> None:
    import fdbqueue
    from fdbqueue.transfer import export_items, import_items

    leases.enqueue(db, "a")
    file = tmp_path / "queue.jsonl"
    export_items(db, queue, file)
    with fdbqueue.open("memory:") as other:
        import_items(other, queue, file)
        lease = leases.lease(other)
        assert lease is not None
        assert int(lease.headers["traceparent"].split("-")[2], 16) == ids(heard.span("enqueue"))[1]


def test_through_arrow(db: Any, heard: Heard, queue: Queue, leases: Leases) -> None:
    import pyarrow as pa

    leases.enqueue(db, "a")
    table = queue.to_arrow(db)
    target = Leases(Queue(beside(queue.layout.space, "target"), codec="str"))
    rows = pa.table({"value": ["a"], "headers": [dict(table.column("headers")[0].as_py() or {})]})
    target.enqueue_many(db, rows, column="value", headers_column="headers")
    lease = target.lease(db)
    assert lease is not None
    assert int(lease.headers["traceparent"].split("-")[2], 16) == ids(heard.spans("enqueue ")[0])[1]
