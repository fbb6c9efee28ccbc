"""Objects of the library can be pickled and copied, and go on elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from fdbqueue import Item, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.smart import Decision, Limit, Messages, SmartQueue
from fdbqueue.layers.staged import StagedQueue
from tests.helpers.smart import ORDER, PROGRESS, Progress


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
