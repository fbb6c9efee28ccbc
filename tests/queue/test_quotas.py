"""A quota limits how many items a queue has: an enqueue of one more is refused, or waits."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
import fdbqueue.writes.bulk
from fdbqueue import BulkInterrupted, ChecksBypassed, Queue, QueueFull, Quota
from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Messages, PriorityQueue, Sessions, SmartSessions, StagedQueue, Subscriptions
from fdbqueue.moves import admission
from fdbqueue.transfer import copy_queue, export_items, import_items
from fdbqueue.verbs import renaming
from tests.helpers.smart import ALL, Progress, smart_queue


@pytest.fixture
def queue(db: Any, space: Subspace) -> Queue[str]:
    return Queue(space, codec="str")


def test_a_refused_enqueue_of_several_learns_what_fits(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 5)
    queue.enqueue_many(db, ["a", "b", "c"])
    for wanted, told in (
        (3, r"There is room for 2 now, and for more when consumers have taken some\."),
        (7, r"A transaction that enqueues 7 never fits: enqueue 5 at a time at most, now 2\."),
    ):
        tr = db.create_transaction()
        with pytest.raises(QueueFull, match=told):
            queue.enqueue_many(tr, ["x"] * wanted)


def test_one_item_too_many_is_refused_and_nothing_is_written(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 2)
    assert queue.quota(db) == Quota(2)
    queue.enqueue(db, "a")
    queue.enqueue(db, "b")
    with pytest.raises(QueueFull, match=r"has 2 items and no room for another: its quota is 2\.") as caught:
        queue.enqueue(db, "c")
    assert (caught.value.limit, caught.value.wanted) == (Quota(2), 1)
    assert str(caught.value).endswith("Or raise the quota: Queue.set_quota.")
    assert queue.dequeue(db) is not None
    queue.enqueue(db, "c")
    queue.set_quota(db, None)
    queue.enqueue(db, "d")
    assert (queue.quota(db), queue.stats(db).available, queue.check(db).problems) == (None, 3, ())


def test_a_transaction_that_has_filled_a_queue_is_refused_the_next_item(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 2)
    tr = db.create_transaction()
    queue.enqueue(tr, "a")
    Leases(queue).enqueue(tr, "b", delay=9)
    for enqueue in (queue.enqueue, Leases(queue).enqueue):
        with pytest.raises(QueueFull, match="has 2 items and no room for another"):
            enqueue(tr, "c")


def test_items_of_all_states_count_and_those_that_come_back_are_not_refused(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space), max_attempts=1)
    leases.queue.set_quota(db, 3)
    leases.enqueue(db, b"a")
    leases.enqueue(db, b"b", delay=1e6)
    leases.enqueue(db, b"c")
    lease = leases.lease(db)
    assert lease is not None
    for _ in range(2):
        with pytest.raises(QueueFull):
            leases.enqueue(db, b"d")
        with pytest.raises(QueueFull):
            leases.enqueue_many(db, [b"d"])
        if lease.position in [one.position for one in leases.dead.browse(db)]:
            break
        leases.nack(db, lease, error="no such user")
    leases.queue.set_quota(db, 1)
    assert leases.dead.redrive(db, to="tail") == 1
    assert leases.stats(db).available == 2


@pytest.mark.parametrize("kind", ["staged", "priority", "subscriptions"])
def test_each_kind_of_queue_keeps_its_quota(db: Any, space: Subspace, kind: str) -> None:
    makes: dict[str, Any] = {
        "staged": lambda: StagedQueue(Queue(space)),
        "priority": lambda: PriorityQueue(Queue(space), levels=3),
        "subscriptions": lambda: Subscriptions(Leases(Queue(space))),
    }
    layer = makes[kind]()
    own = Queue(space)
    own.set_quota(db, 1)
    layer.enqueue(db, b"a")
    with pytest.raises(QueueFull):
        layer.enqueue(db, b"b")
    assert own.stats(db).available == 1


def test_a_quota_may_be_exceeded_by_what_other_open_transactions_enqueue(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 10)
    queue.enqueue_many(db, ["there"] * 9)
    open_ones = [db.create_transaction() for _ in range(5)]
    for tr in open_ones:
        queue.enqueue(tr, "at the same time")
        with pytest.raises(QueueFull):
            queue.enqueue(tr, "a second one of the same transaction")
    for tr in open_ones:
        tr.commit().wait()  # none conflicts
    assert queue.stats(db).available == 10 + len(open_ones) - 1
    with pytest.raises(QueueFull):
        queue.enqueue(db, "later")


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["one", "many", "transaction", "dequeue", "nack", "raise", "lower"]), max_size=25))
def test_a_single_process_never_exceeds_a_quota(db: Any, history: list[str]) -> None:
    space = Subspace(("fdbqueue tests quotas",))
    leases = Leases(Queue(space))
    queue, quota, there = leases.queue, 5, 0
    queue.set_quota(db, quota)
    for step in history:
        added = {"one": 1, "many": 3, "transaction": 2}.get(step, 0)
        try:
            if step == "one":
                queue.enqueue(db, b"x")
            elif step == "many":
                try:
                    queue.enqueue_many(db, [b"x"] * 3)
                except BulkInterrupted:  # what had room is in
                    added = quota - there
            elif step == "transaction":
                fdbqueue.transactional(lambda tr: [queue.enqueue(tr, b"x") for _ in range(2)])(db)
            elif step == "dequeue":
                there -= queue.dequeue(db) is not None
            elif step == "nack" and (lease := leases.lease(db)) is not None:
                leases.nack(db, lease)
            elif step in ("raise", "lower"):
                quota = 8 if step == "raise" else 3
                queue.set_quota(db, quota)
            there += added
            assert not added or there <= quota
        except QueueFull:
            assert there + added > quota
        assert queue.stats(db).available == there
    db.clear_range_startswith(space.key())
    queue.clear(db)


def test_enqueue_many_fills_a_queue_and_says_what_is_not_in(
    db: Any, queue: Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fdbqueue.writes.bulk, "BATCH_ITEMS", 10)
    queue.set_quota(db, 25)
    with pytest.raises(BulkInterrupted) as caught:
        queue.enqueue_many(db, [str(number) for number in range(100)])
    assert isinstance(caught.value.__cause__, QueueFull)
    assert caught.value.missing[0][0] == 25
    assert [item.value for item in queue.browse(db)] == [str(number) for number in range(25)]
    with pytest.raises(QueueFull, match=r"has 25 items and no room for 3 more: its quota is 25\. None of these was"):
        queue.enqueue_many(db, ["x"] * 3)


@pytest.mark.parametrize("layer", ["Queue", "Leases", "PriorityQueue"])
@pytest.mark.parametrize("when_full", ["refuse", "wait"])
def test_enqueue_many_fills_a_queue_before_it_waits_or_is_refused(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, layer: str, when_full: Any
) -> None:
    queue = Queue(space, codec="str")
    source: Any = {
        "Queue": lambda: queue,
        "Leases": lambda: Leases(queue),
        "PriorityQueue": lambda: PriorityQueue(queue),
    }
    many = source[layer]()
    queue.set_quota(db, 5, when_full=when_full)
    many.enqueue(db, "0")

    async def waits(*_: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(admission, "until_changed", waits)
    with pytest.raises(BulkInterrupted) as caught:
        many.enqueue_many(db, [str(number) for number in range(1, 9)])
    assert isinstance(caught.value.__cause__, QueueFull if when_full == "refuse" else InterruptedError)
    assert (caught.value.report.items, caught.value.missing) == (4, [(4, 8)])
    assert [item.value for item in many.browse(db)] == [str(number) for number in range(5)]
    with pytest.raises(QueueFull) as full:
        many.enqueue_many(db.create_transaction(), ["x"] * 3)
    assert (full.value.wanted, full.value.room) == (3, 0)


def test_a_bulk_load_waits_for_room_and_keeps_the_order(
    db: Any, queue: Queue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fdbqueue.writes.bulk, "BATCH_ITEMS", 8)
    queue.set_quota(db, 5, when_full="wait")
    taken: list[str] = []

    async def take(*_: Any) -> None:
        assert queue.stats(db).available == 5  # it fills the queue before it waits
        for item in await queue.dequeue_many.steps(db, limit=3):
            taken.append(item.value)

    monkeypatch.setattr(admission, "until_changed", take)
    report = queue.enqueue_many(db, [str(number) for number in range(30)])
    taken += [item.value for item in queue.dequeue_many(db)]
    assert (report.items, taken) == (30, [str(number) for number in range(30)])


@pytest.mark.parametrize("way", ["bulk", "leases", "one"])
def test_an_interrupt_while_it_waits_for_room_says_what_is_in(
    db: Any, queue: Queue[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(admission, "until_changed", interrupt)
    queue.set_quota(db, 4, when_full="wait")
    queue.enqueue_many(db, ["0", "1"] if way != "one" else list("0123"))
    more = ["2", "3", "4", "5"]
    calls: dict[str, Callable[[], object]] = {
        "bulk": lambda: queue.enqueue_many(db, more),
        "leases": lambda: Leases(queue).enqueue_many(db, more, headers={"x": 1}),
        "one": lambda: queue.enqueue(db, "4"),
    }
    with pytest.raises(KeyboardInterrupt) as stopped:
        calls[way]()
    assert [item.value for item in queue.browse(db)] == ["0", "1", "2", "3"]
    told = " ".join(stopped.value.__notes__)
    assert re.search(r"It waited for room in the queue for \d items: they are not in, nor is what follows\.", told)
    if way != "one":
        assert ("these are in: 0 to 1, counted from 0. All" if way == "bulk" else "2 items before them are in.") in told
    assert "may be in" not in told


def test_an_enqueue_waits_until_an_item_has_gone(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 1, when_full="wait")
    first = queue.enqueue(db, "first")
    late = db.create_transaction()
    with pytest.raises(QueueFull):
        queue.enqueue(late, "in a transaction")
    producer = threading.Thread(target=queue.enqueue, args=(db, "second"), daemon=True)
    producer.start()
    assert queue.cancel(db, first)
    producer.join(600)
    assert [item.value for item in queue.browse(db)] == ["second"]

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.enqueue.aio(db, "third"), 0.05)
        waiting = asyncio.create_task(queue.enqueue.aio(db, "fourth"))
        await asyncio.sleep(0)
        await queue.set_quota.aio(db, None)
        await waiting

    asyncio.run(give_up())
    assert [item.value for item in queue.browse(db)] == ["second", "fourth"]


def test_of_shared_enqueues_those_that_have_room_are_in(db: Any, space: Subspace) -> None:
    staged = StagedQueue(Queue(space, codec="str"))
    staged.queue.set_quota(db, 3)

    async def all_at_once() -> list[Any]:
        calls = [staged.enqueue.aio(db, str(number)) for number in range(8)]
        return [*await asyncio.gather(*calls, return_exceptions=True)]

    found = asyncio.run(all_at_once())
    assert sum(isinstance(one, QueueFull) for one in found) == 5
    assert staged.queue.stats(db).available == 3


def test_what_has_limits_of_its_own_is_refused(db: Any, space: Subspace) -> None:
    smart = smart_queue(space["smart"])
    smart.enqueue(db, Progress("a", 1))
    with pytest.raises(ChecksBypassed, match="has a limit of its own"):
        smart.queue.set_quota(db, 5)
    limited = smart_queue(space["limited"])
    limited.queue.set_quota(db, 5)
    with pytest.raises(ChecksBypassed, match="has a quota, and a smart queue has a limit of its own"):
        limited.enqueue(db, Progress("a", 1))
    sessions = Sessions(Queue(space["sessions"]))
    sessions.queue.set_quota(db, 5)
    with pytest.raises(ChecksBypassed, match="does not count items in sessions"):
        sessions.enqueue(db, b"x", session="ann")
    sessions.queue.set_quota(db, None)
    sessions.enqueue(db, b"x", session="ann")
    with pytest.raises(ChecksBypassed, match="does not count items in sessions"):
        sessions.queue.set_quota(db, 5)


def test_a_quota_is_set_and_read_in_a_transaction(db: Any, queue: Any) -> None:
    fdbqueue.transactional(lambda tr: queue.set_quota(tr, 7))(db)
    assert fdbqueue.transactional(lambda tr: queue.quota(tr))(db) == Quota(7)


def test_a_quota_is_shown_and_moves_with_a_rename(
    db: Any, space: Subspace, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renaming, "LONGEST_SECONDS", 0.0)
    old: Queue[str] = Queue(space["old"], codec="str")
    old.enqueue(db, "a")
    old.set_quota(db, 2)
    assert [info.quota for info in fdbqueue.queues(db, within=space)] == [Quota(2)]
    page = old.inspect(db)
    assert page.quota == Quota(2)
    assert "quota: at most 2 items, then refuse" in repr(page)
    fdbqueue.rename(db, space["old"], space["new"])
    new: Queue[str] = Queue(space["new"], codec="str")
    new.enqueue(db, "b")
    with pytest.raises(QueueFull):
        new.enqueue(db, "c")
    export_items(db, new, tmp_path / "items.jsonl")
    other: Queue[str] = Queue(space["other"], codec="str")
    other.set_quota(db, 1)
    with pytest.raises(QueueFull):
        import_items(db, other, tmp_path / "items.jsonl")
    other.set_quota(db, 2)
    assert import_items(db, other, tmp_path / "items.jsonl").enqueued == 2
    with fdbqueue.open("memory:") as target:
        new.set_quota(target, 1)
        with pytest.raises(QueueFull):
            copy_queue(db, target, new)
        new.set_quota(target, 2)
        assert copy_queue(db, target, new).items == 2  # also out of a full queue
    new.clear(db)
    assert new.quota(db) is None


def test_a_queue_without_quota_pays_no_read(db: Any, queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*_: Any) -> Any:
        raise AssertionError("an enqueue counted the items")

    monkeypatch.setattr(fdbqueue.moves.admission, "check_room", counted)
    queue.enqueue(db, "a")
    queue.enqueue_many(db, ["b", "c"])
    Leases(queue).enqueue(db, "d", delay=5)
    queue.enqueue(db, "e")


def test_sessions_that_know_the_queue_refuse_a_quota_at_once(db: Any, space: Subspace) -> None:
    known = [Sessions(Queue(space)), Sessions(Queue(space))]
    lease = None
    for sessions in known:
        sessions.enqueue(db, b"a", session="ann")
        lease = sessions.lease(db)
        assert lease is not None
        sessions.ack(db, lease)
    Queue(space).set_quota(db, 2)
    for sessions in known:
        with pytest.raises(ChecksBypassed, match=r"does not count items in sessions\. Nothing was written"):
            sessions.enqueue(db, b"b", session="ann")
        tr = db.create_transaction()
        with pytest.raises(ChecksBypassed):
            sessions.enqueue_many(tr, [b"b"], session="ann")
        tr.commit().wait()
    assert Queue(space).stats(db).enqueued == 0
    Queue(space).set_quota(db, None)
    known[0].enqueue(db, b"c", session="ann")
    assert known[0].stats(db).ready == 1


def test_smart_sessions_that_know_the_queue_refuse_a_quota_at_once(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec=Messages(*ALL))
    smart = SmartSessions(Sessions(queue))
    smart.enqueue(db, Progress("1", 1), session="ann")
    lease = smart.sessions.lease(db)
    assert lease is not None
    smart.sessions.ack(db, lease)
    queue.set_quota(db, 2)
    with pytest.raises(ChecksBypassed, match=r"does not count items in sessions\. Nothing was written"):
        smart.enqueue(db, Progress("2", 1), session="ann")
    with pytest.raises(ChecksBypassed):
        smart.enqueue_many(db, [Progress("3", 1)], session="ben")
    assert (smart.sessions.stats(db).ready, smart.sessions.check(db).problems) == (0, ())
    queue.set_quota(db, None)
    smart.enqueue(db, Progress("4", 1), session="ben")
    assert smart.sessions.stats(db).ready == 1


def test_the_first_enqueue_of_many_registers_a_queue_with_a_quota(db: Any, queue: Queue[str]) -> None:
    queue.set_quota(db, 2)
    queue.enqueue_many(db, ["a", "b"])
    assert db.get(queue.layout.catalogue_key) is not None


def test_a_type_of_a_newer_version_is_not_removed(db: Any, queue: Queue[str]) -> None:
    db.set(queue.layout.type_key, b"later")
    for items in (1, None):
        with pytest.raises(ChecksBypassed):
            queue.set_quota(db, items)
    assert bytes(db.get(queue.layout.type_key)) == b"later"


CUP = "x" * 50_000
"""An item. Twenty-five of them are more than the smallest quota of bytes, also by a cluster's estimate."""


@pytest.fixture
def always_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MEASURING_SHARE", 0)


@pytest.mark.usefixtures("always_measured")
@pytest.mark.parametrize("door", ["one", "transaction", "many", "leases", "staged"])
def test_a_queue_with_too_many_bytes_is_full(db: Any, queue: Queue[str], door: str) -> None:
    queue.set_quota(db, None, size_bytes=1_000_000)
    leases, staged = Leases(queue), StagedQueue(queue)
    verbs: dict[str, Any] = {
        "one": lambda: queue.enqueue(db, CUP),
        "transaction": lambda: fdbqueue.transactional(lambda tr: queue.enqueue(tr, CUP))(db),
        "many": lambda: queue.enqueue_many(db, [CUP]),
        "leases": lambda: leases.enqueue(db, CUP),
        "staged": lambda: staged.enqueue(db, CUP),
    }

    def fill() -> None:
        for _ in range(40):
            verbs[door]()

    with pytest.raises(QueueFull, match=r"has about [\d,]+ bytes, and its quota is 1,000,000 bytes") as caught:
        fill()
    assert caught.value.limit == Quota(size_bytes=1_000_000)
    full = queue.stats(db).available
    assert 15 <= full <= 27
    assert len(queue.dequeue_many(db, limit=20)) == min(full, 20)
    verbs[door]()
    queue.set_quota(db, full - 18, size_bytes=5_000_000)
    with pytest.raises(QueueFull, match="items and no room"):
        fill()


@pytest.mark.usefixtures("always_measured")
def test_a_producer_waits_until_there_are_fewer_bytes(db: Any, queue: Queue[str]) -> None:
    queue.enqueue_many(db, [CUP] * 30)
    queue.set_quota(db, None, size_bytes=1_000_000, when_full="wait")
    producer = threading.Thread(target=queue.enqueue_many, args=(db, ["late", "later"]), daemon=True)
    producer.start()
    assert len(queue.dequeue_many(db, limit=28)) == 28
    producer.join(600)
    assert [item.value[:5] for item in queue.browse(db)] == ["xxxxx", "xxxxx", "late", "later"]


def test_a_size_is_believed_for_a_while(db: Any, queue: Queue[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MEASURING_SHARE", 1_000_000_000)
    queue.set_quota(db, None, size_bytes=1_000_000)
    for _ in range(40):
        queue.enqueue(db, CUP)
    monkeypatch.setattr(admission, "_sizes", KeptBeside(dict))
    with pytest.raises(QueueFull):
        queue.enqueue(db, CUP)
    queue.dequeue_many(db, limit=40)
    with pytest.raises(QueueFull):
        queue.enqueue(db, CUP)


def test_a_quota_of_bytes_is_set_and_removed(db: Any, queue: Any) -> None:
    with pytest.raises(TypeError, match="a number of items, or of bytes, or both"):
        Quota()
    assert queue.quota(db) is None
    queue.set_quota(db, 5, size_bytes=2_000_000, when_full="wait")
    assert queue.quota(db) == Quota(5, "wait", 2_000_000)
    assert queue.quota(db).text == "at most 5 items and about 2,000,000 bytes, then wait"
    queue.set_quota(db, None)
    assert queue.quota(db) is None
