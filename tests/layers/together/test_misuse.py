"""A wrong argument of a layer is refused with a clear sentence, and no key is touched."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import pytest

from fdbqueue import Item, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.consumer import Consumer, Watchdog
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.smart import Decision, Limit, Messages, SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.smart import ORDER, PROGRESS, Progress


@pytest.mark.parametrize("none", [None, "memory:", {"sku": 7}])
def test_a_value_that_is_no_database_and_no_transaction_is_named(none: Any) -> None:
    queue = Queue("orders", codec="json")
    calls: list[Callable[[], Any]] = [
        lambda: queue.enqueue(none, 1),
        lambda: queue.enqueue_many(none, [1]),
        lambda: queue.dequeue(none),
        lambda: queue.stats(none),
        lambda: list(queue.browse(none)),
        lambda: queue.check(none),
        lambda: Leases(queue).lease(none),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"A database or a transaction was expected, not {type(none).__name__}"):
            call()


def test_a_snapshot_is_no_transaction(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    calls: list[Callable[[Any], Any]] = [queue.peek, queue.dequeue, queue.stats, queue.browse]
    for call in calls:
        with pytest.raises(TypeError, match="not its snapshot: give the transaction"):
            call(db.create_transaction().snapshot)


def test_a_value_that_is_no_lease_is_named(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    nothing: Any = leases.lease(db)
    leases.enqueue(db, b"x")
    item: Any = leases.queue.peek(db)
    calls: list[Callable[[Any], Any]] = [
        lambda it: leases.ack(db, it),
        lambda it: leases.nack(db, it),
        lambda it: leases.extend(db, it),
        lambda it: leases.ack_many(db, [it]),
    ]
    for call in calls:
        for it in nothing, item, "1:ab:cd":
            with pytest.raises(TypeError, match="Give a lease, or its handle, not"):
                call(it)


def test_a_value_that_is_no_lease_is_refused_before_any_key_is_read(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.stored.known.LOOK_SECONDS", 600.0)
    leases, tr = Leases(Queue(space)), db.create_transaction()
    for _ in range(2):
        leases.enqueue(db, b"x")  # it knows the settings then
    leases.stats(tr)
    reads: list[str] = []

    def counted(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            reads.append(name)
            return read(*given, **more)

        return call

    for kind in {type(tr), type(tr.snapshot)}:
        for name in ("get", "get_range", "get_range_startswith"):
            monkeypatch.setattr(kind, name, counted(name, getattr(kind, name)))
    calls: list[Callable[[Any], Any]] = [
        lambda it: leases.ack(tr, it),
        lambda it: leases.nack(tr, it),
        lambda it: leases.snooze(tr, it, delay=1),
        lambda it: leases.extend(tr, it),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="Give a lease, or its handle, not"):
            call(leases)
    assert reads == []


def test_times_are_numbers(db: Any, space: Subspace) -> None:
    leases, text = Leases(Queue(space)), cast(Any, "30")
    staged = StagedQueue(leases)
    parcels = Subscriptions(leases).subscribe(db, "all")
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("duration", lambda: leases.lease(db, duration=text)),
        ("delay", lambda: leases.enqueue(db, b"x", delay=text)),
        ("ttl", lambda: leases.enqueue(db, b"x", ttl=text)),
        ("timeout", lambda: staged.dequeue(db, timeout=text)),
        ("timeout", lambda: parcels.lease(db, timeout=text)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=f"{name} is a number of seconds"):
            call()


def test_the_characters_of_one_text_are_not_enqueued(db: Any, space: Subspace) -> None:
    queue: Queue[Any] = Queue(space, codec="str")
    for many in (queue, Leases(queue), PriorityQueue(queue)):
        with pytest.raises(TypeError, match="not one str"):
            many.enqueue_many(db, "hello")
        with pytest.raises(TypeError, match="not one bytes"):
            many.enqueue_many(db, b"hello")
        with pytest.raises(TypeError, match="not one dict"):
            many.enqueue_many(db, {"hello": 1})

    assert list(db.get_range_startswith(space.key())) == []


def test_browsing_refuses_a_negative_limit(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    with pytest.raises(ValueError, match="limit is how many items to look at"):
        queue.browse(db, limit=-1)
    assert list(queue.browse(db, limit=0)) == []


def test_an_index_is_no_position(db: Any, space: Subspace) -> None:
    with pytest.raises(TypeError, match="an item's Position, not 5"):
        Queue(space).browse(db, after=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [Leases, StagedQueue, SmartQueue, Subscriptions])
def test_a_layer_needs_a_queue_and_not_its_name(layer: Any) -> None:
    with pytest.raises(TypeError, match=r"Leases\(Queue\('orders'\)\)+, not (of )?'mails'"):
        layer("mails")


def test_a_priority_queue_is_made_of_a_queue_and_not_of_its_name() -> None:
    with pytest.raises(TypeError, match=r"as in PriorityQueue\(Queue\('jobs'\)\), not of 'mails'"):
        PriorityQueue("mails")  # type: ignore[arg-type]


def test_a_consumer_of_a_queue_without_leases_is_refused_before_it_takes_an_item(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "to Ann")

    with pytest.raises(TypeError, match=r"Consumer takes Leases, .* Say what becomes of items that fail"):
        Consumer(queue, lambda lease: None).drain(db)  # type: ignore[call-overload]

    assert queue.stats(db).available == 1


def test_a_handler_must_be_callable() -> None:
    with pytest.raises(TypeError, match="None can't be"):
        Consumer(Leases(Queue("mails")), None)  # type: ignore[call-overload]


def test_a_watchdog_of_a_queue_without_leases_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Watchdog takes Leases, .* Say what becomes of items that fail"):
        Watchdog(Queue("mails"))  # type: ignore[arg-type]


def test_queues_and_leases_can_be_sent_to_other_processes(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, {"sku": 7})

    copies: list[Any] = [pickle.loads(pickle.dumps(queue)), copy.deepcopy(queue)]
    assert [again.peek(db).value for again in copies] == [{"sku": 7}, {"sku": 7}]
    lease = pickle.loads(pickle.dumps(Leases(queue, max_attempts=3))).lease(db)
    Leases(queue).ack(db, pickle.loads(pickle.dumps(lease)))
    assert queue.is_empty(db)


def test_a_staged_queue_that_is_in_use_can_be_sent(db: Any, space: Subspace) -> None:
    staged = StagedQueue(Queue(space, codec="str"), consumer="printer 3")
    for mail in ("to Ann", "to Bob"):
        staged.enqueue(db, mail)
    staged.dequeue(db)

    lease = pickle.loads(pickle.dumps(staged)).lease(db)

    assert (lease.value, lease.consumer) == ("to Bob", "printer 3")


def test_a_queue_that_is_sent_keeps_its_order(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=3)
    jobs.enqueue(db, "tidy up")

    pickle.loads(pickle.dumps(jobs)).enqueue(db, "put out the fire", priority=0)
    pickle.loads(pickle.dumps(jobs.queue)).enqueue(db, "answer the phone", headers={"priority": 1})

    assert [item.value.split()[-1] for item in jobs.browse(db)] == ["fire", "phone", "up"]


def test_a_priority_queue_with_weights_can_be_sent_with_its_turns(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space, codec="str"), levels=2, weights=[1, 1])
    jobs.enqueue_many(db, ["a"] * 10, priority=0)
    jobs.enqueue_many(db, ["b"] * 10, priority=1)
    jobs.dequeue(db)

    again: PriorityQueue = pickle.loads(pickle.dumps(jobs))

    assert sorted(again.dequeue(db).value for _ in range(4)) == ["a", "a", "b", "b"]  # type: ignore[union-attr]


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_a_smart_queue_can_be_sent_with_its_messages_and_bounds(db: Any, space: Subspace, format: Any) -> None:
    smart = SmartQueue(
        Queue(space, codec=Messages(PROGRESS, ORDER, format=format)), limit=Limit(1, "drop newest"), max_items=7
    )
    smart.enqueue(db, Progress("a", 10))

    for again in (pickle.loads(pickle.dumps(smart)), copy.deepcopy(smart)):
        assert again.enqueue(db, Progress("a", 90)).decision is Decision.ignore
        assert again.enqueue(db, Progress("b", 1)).full
        assert pickle.loads(pickle.dumps(smart.queue)).peek(db).value == Progress("a", 90)
    assert again.__reduce__()[0].keywords["max_items"] == 7


def test_items_can_be_sent_and_copied_with_headers_that_stay_as_they_are(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, 1, headers={"color": "red"})
    item: Any = queue.peek(db)

    assert isinstance(item, Item)
    assert pickle.loads(pickle.dumps(item)) == copy.deepcopy(item) == item
    assert asdict(item)["headers"] == {"color": "red"}
    copies: list[Any] = [item, copy.deepcopy(item), pickle.loads(pickle.dumps(item))]
    for again in copies:
        with pytest.raises(TypeError, match="headers can't be changed"):
            again.headers["color"] = "blue"
        with pytest.raises(TypeError, match="headers can't be changed"):
            again.headers.update(color="blue")


@pytest.mark.parametrize("handler", [lambda: None, lambda lease, more: None])
def test_a_handler_that_takes_no_lease_is_refused_when_the_consumer_is_made(space: Subspace, handler: Any) -> None:
    with pytest.raises(TypeError, match="one argument, the lease"):
        Consumer(Leases(Queue(space)), handler)


@pytest.mark.parametrize("handler", [print, lambda lease: None, lambda *leases: None, lambda lease, more=1: None])
def test_a_handler_that_takes_a_lease_is_not_refused(space: Subspace, handler: Any) -> None:
    Consumer(Leases(Queue(space)), handler)


@pytest.mark.parametrize("wrong", ["5", 1.5, True])
def test_attempts_that_are_no_whole_number_are_refused(space: Subspace, wrong: Any) -> None:
    with pytest.raises(TypeError, match="max_attempts is a whole number"):
        Leases(Queue(space), max_attempts=wrong)


def test_a_backoff_that_is_no_function_is_refused(space: Subspace) -> None:
    with pytest.raises(TypeError, match="backoff is a function of the attempt"):
        Leases(Queue(space), backoff=cast(Any, 5))


def test_a_selector_that_is_neither_text_nor_function_is_refused_before_it_is_stored(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Queue(space))

    with pytest.raises(TypeError, match="A selector is a condition"):
        subscriptions.subscribe(db, "b", selector=cast(Any, 5))
    assert subscriptions.count(db) == 0
