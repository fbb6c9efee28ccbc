"""Groups: wait for all items of a group, let one item follow them, cancel the rest."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest

from fdbqueue import CompletionError, GroupError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    FollowUp,
    Group,
    Groups,
    Lease,
    Leases,
    PriorityQueue,
    Results,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.layers.groups.group import BATCH_ITEMS, SWEEP_ITEMS
from tests.helpers.clock import Clock
from tests.helpers.conflicting import conflicts
from tests.helpers.standin import StandIn


@pytest.fixture
def leases(queue: Queue, clock: Clock) -> Leases:
    return Leases(queue, max_attempts=1, clock=clock)


@pytest.fixture
def groups(leases: Leases) -> Groups:
    return Groups(leases)


def taken(leases: Leases, db: Any) -> Lease:
    lease = leases.lease(db, duration=600)
    assert lease is not None
    return lease


def counts(group: Group, db: Any) -> dict[str, int]:
    stats = group.stats(db)
    states = ("available", "leased", "delayed", "done", "dead", "expired", "cancelled", "deleted")
    return {state: there for state in states if (there := getattr(stats, state))}


def consistent(leases: Leases, db: Any) -> bool:
    report = leases.check(db)
    assert report.problems == ()
    return report.counted


def test_a_group_is_done_when_its_producer_and_all_members_are(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import", then=FollowUp(leases, "report"))
    assert group.enqueue_many(db, ["a", "b"]) == 2
    leases.ack(db, taken(leases, db))
    assert counts(group, db) == {"available": 1, "done": 1}
    leases.ack(db, taken(leases, db))
    assert leases.lease(db) is None
    with pytest.raises(TimeoutError):
        group.wait(timeout=0.01)
    assert not group.stats(db).ended

    group.close(db)

    stats = group.wait(timeout=60)
    assert (stats.state, stats.done, stats.ended) == ("done", 2, True)
    assert taken(leases, db).value == "report"
    assert consistent(leases, db)


def test_the_last_ack_ends_a_group_that_is_closed(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import", then=[FollowUp(leases, "report"), FollowUp(leases, "bill")])
    group.enqueue_many(db, ["a", "b"])
    group.close(db)
    first, second = leases.lease_many(db)
    leases.ack(db, first)
    assert leases.lease(db) is None
    leases.ack(db, second)
    assert [lease.value for lease in leases.lease_many(db)] == ["report", "bill"]
    assert group.wait(timeout=60).done == 2


def test_the_last_ack_of_a_staged_queue_ends_the_group(db: Any, leases: Leases, groups: Groups) -> None:
    staged = StagedQueue(leases)
    group = groups.open(db, "import")
    group.enqueue_many(db, ["a", "b"])
    group.close(db)
    for _ in range(2):
        lease = staged.lease(db)
        assert lease is not None
        staged.ack(db, lease)
    assert group.wait(timeout=60).done == 2


def test_members_count_by_state_through_every_way_out(db: Any, leases: Leases, groups: Groups, clock: Clock) -> None:
    group = groups.open(db, "import")
    for value, terms in [
        ("acked", {}),
        ("dead", {}),
        ("dequeued", {}),
        ("staged", {}),
        ("expired", {"ttl": 5}),
        ("delayed and expired", {"ttl": 5, "delay": 4}),
        ("delayed", {"delay": 100}),
        ("leased", {"delay": 50}),
    ]:
        group.enqueue(db, value, **terms)
    assert counts(group, db) == {"available": 5, "delayed": 3}
    acked, dead = leases.lease_many(db, limit=2)
    assert counts(group, db) == {"available": 3, "delayed": 3, "leased": 2}
    leases.ack(db, acked)
    leases.nack(db, dead)
    leases.queue.dequeue(db)
    StagedQueue(leases).dequeue(db)
    assert counts(group, db) == {"available": 1, "delayed": 3, "done": 3, "dead": 1}
    assert consistent(leases, db)
    clock.now += 55
    taken(leases, db)
    assert counts(group, db) == {"leased": 1, "delayed": 1, "done": 3, "dead": 1, "expired": 2}
    leases.dead.redrive(db)
    assert counts(group, db) == {"leased": 1, "delayed": 1, "done": 3, "dead": 1, "expired": 2}
    assert consistent(leases, db)
    clock.now += 700  # the lease expires, and that was its last attempt
    leases.ack(db, taken(leases, db))
    leases.ack(db, taken(leases, db))
    assert counts(group, db) == {"done": 4, "dead": 2, "expired": 2}
    assert group.wait(timeout=60).done == 4  # the producer's hold has ended by itself
    assert consistent(leases, db)


def test_an_enqueue_into_a_group_that_is_no_longer_open_is_refused(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import")
    group.close(db)
    with pytest.raises(GroupError, match=r"The group 'import' in .* is done; nothing"):
        group.enqueue(db, "late")
    with pytest.raises(GroupError, match="There is no group 'other'"):
        groups.enqueue(db, "x", group="other")
    with pytest.raises(GroupError, match=r"There is a group 'import' in .* already. It is done"):
        groups.open(db, "import")
    with pytest.raises(GroupError, match=r"is done; nothing was written"):
        group.hold(db)
    with pytest.raises(GroupError, match=r"is done; nothing was written"):
        group.cancel(db)
    assert leases.stats(db).enqueued == 0


def test_an_empty_group_is_done_when_its_hold_ends(db: Any, leases: Leases, groups: Groups, clock: Clock) -> None:
    group = groups.open(db, "import", hold=10, then=FollowUp(leases, "report"))
    group.hold(db, duration=30)
    clock.now += 20
    assert leases.lease(db) is None
    assert not group.stats(db).ended
    clock.now += 20
    assert group.wait(timeout=60).done == 0  # without a consumer
    assert taken(leases, db).value == "report"


def test_a_wait_outlasts_the_hold_of_a_producer_that_died(db: Any, queue: Queue) -> None:
    group = Groups(Leases(queue)).open(db, "import", hold=0.2)
    assert group.wait(timeout=30).state == "done"


def test_several_producers_hold_a_group_open(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import")
    other = groups.group(db, "import").hold(db)
    group.close(db)
    assert not group.stats(db).ended
    other.enqueue(db, "x")
    other.close(db)
    assert not group.stats(db).ended
    leases.ack(db, taken(leases, db))
    assert group.stats(db).ended
    with pytest.raises(ValueError, match="is not held by this object"):
        groups.group(db, "import").close(db)


def test_a_load_in_many_transactions_holds_the_group_open_meanwhile(db: Any, leases: Leases, groups: Groups) -> None:
    opened = groups.open(db, "import")
    group = groups.group(db, "import")
    ended: list[bool] = []

    def values() -> Any:
        for n in range(2 * BATCH_ITEMS + 1):
            if n == 1:
                opened.close(db)
            while (lease := leases.lease(db)) is not None:
                leases.ack(db, lease)
            ended.append(group.stats(db).ended)
            yield str(n)

    # The first batch is not in yet when the producer that opened the group closes it.
    other = group.hold(db)
    assert group.enqueue_many(db, values()) == 2 * BATCH_ITEMS + 1
    assert not any(ended)
    other.close(db)
    assert counts(group, db)["done"] + counts(group, db)["available"] == 2 * BATCH_ITEMS + 1
    Consumer(leases, lambda lease: None).drain(db)
    assert group.wait(timeout=60).done == 2 * BATCH_ITEMS + 1


def test_cancel_takes_no_further_member_and_lets_those_at_work_end(
    db: Any, leases: Leases, groups: Groups, clock: Clock
) -> None:
    group = groups.open(db, "import", then=FollowUp(leases, "never"))
    group.enqueue_many(db, ["at work", "nacked", "b"])
    group.enqueue(db, "c", delay=100)
    outside = leases.enqueue(db, "outside")
    mine, nacked = leases.lease_many(db, limit=2, duration=600)

    stats = group.cancel(db)

    assert (stats.state, stats.ended, stats.cancelled, stats.leased) == ("cancelled", False, 2, 2)
    with pytest.raises(GroupError, match=r"is cancelled; nothing was written"):
        group.enqueue(db, "late")
    assert taken(leases, db).position == outside
    leases.ack(db, mine)
    leases.snooze(db, nacked, delay=0)
    clock.now += 1
    with pytest.raises(CompletionError, match="was cancelled") as told:
        group.wait(timeout=30)  # no consumer, but the member that came back is removed
    assert told.value.outcome == "cancelled"
    assert counts(group, db) == {"done": 1, "cancelled": 3}
    leases.reclaim(db)
    total = leases.stats(db)
    assert (total.available, total.delayed, total.deleted) == (0, 0, 4)
    assert group.cancel(db).ended
    assert consistent(leases, db)


@pytest.mark.parametrize("take", ["lease", "staged lease", "staged dequeue", "reclaim", "subscription"])
def test_a_cancel_in_a_transaction_is_swept_by_the_next_take(
    db: Any, leases: Leases, groups: Groups, clock: Clock, take: str
) -> None:
    group = groups.open(db, "import")
    completion = Groups(Results(leases)).enqueue(db, "x", group=group)
    group.enqueue_many(db, map(str, range(SWEEP_ITEMS + 5)), delay=50)
    group.enqueue_many(db, map(str, range(5)))
    outside = leases.enqueue(db, "outside")
    tr = db.create_transaction()
    group.cancel(tr)
    assert not conflicts(tr)
    assert counts(group, db) == {"available": 6, "delayed": SWEEP_ITEMS + 5}
    calls: dict[str, Any] = {
        "lease": lambda: leases.lease(db),
        "staged lease": lambda: StagedQueue(leases).lease(db),
        "staged dequeue": lambda: StagedQueue(leases).dequeue(db),
        "reclaim": lambda: leases.reclaim(db),
        "subscription": lambda: Subscriptions(leases).subscribe(db, "all").lease(db),
    }
    call = calls[take]
    if take != "reclaim":
        assert call().position == outside
    for _ in range(4):
        clock.now += 1
        call()
    assert counts(group, db) == {"cancelled": SWEEP_ITEMS + 11}
    assert group.stats(db).ended
    with pytest.raises(CompletionError, match="its group was cancelled"):
        completion.wait(timeout=60)
    assert consistent(leases, db)


def test_a_sweep_passes_any_number_of_members_at_work(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import")
    group.enqueue_many(db, map(str, range(3 * SWEEP_ITEMS)))
    held = leases.lease_many(db, limit=2 * SWEEP_ITEMS + 1, duration=600)
    while len(held) < 2 * SWEEP_ITEMS + 1:
        held += leases.lease_many(db, limit=2 * SWEEP_ITEMS + 1 - len(held), duration=600)
    assert group.cancel(db).cancelled == SWEEP_ITEMS - 1
    leases.ack_many(db, held)
    assert group.stats(db).ended
    assert consistent(leases, db)


class Forgetful(StandIn):
    """A database whose groups' times are over before each further transaction."""

    def __init__(self, db: Any, leases: Leases, clock: Clock) -> None:
        self._db, self._leases, self._clock = db, leases, clock
        self._begun = False

    def create_transaction(self) -> Any:
        if self._begun:
            self._clock.now += 100
            self._leases.reclaim(self._db)
        self._begun = True
        return self._db.create_transaction()


def test_a_cancelled_group_whose_time_is_over_at_once_has_stats(
    db: Any, leases: Leases, groups: Groups, clock: Clock
) -> None:
    group = groups.open(db, "import", keep=1)
    assert group.cancel(Forgetful(db, leases, clock)).state == "cancelled"
    with pytest.raises(CompletionError, match="Nothing is known"):
        group.stats(db)


def test_of_a_take_and_a_cancel_at_the_same_time_one_runs_again(db: Any, leases: Leases, groups: Groups) -> None:
    for cancel_first in (True, False):
        group = groups.open(db, f"import {cancel_first}")
        group.enqueue(db, "x")
        taking, cancelling = db.create_transaction(), db.create_transaction()
        assert taken(leases, taking).value == "x"
        group.cancel(cancelling)
        if cancel_first:
            assert not conflicts(cancelling)
            assert conflicts(taking)
        else:
            assert not conflicts(taking)
            group.cancel(db)
            assert counts(group, db) == {"leased": 1}


def test_of_the_last_two_acks_at_once_one_ends_the_group(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import", then=FollowUp(leases, "report"))
    group.enqueue_many(db, ["a", "b"])
    group.close(db)
    first, second = leases.lease_many(db)
    one, other = db.create_transaction(), db.create_transaction()
    leases.ack(one, first)
    leases.ack(other, second)
    assert not conflicts(one)
    assert conflicts(other)
    leases.ack(db, second)
    assert group.stats(db).ended
    assert [lease.value for lease in leases.lease_many(db)] == ["report"]


def test_of_the_last_ack_and_an_enqueue_at_once_one_runs_again(db: Any, leases: Leases, groups: Groups) -> None:
    for ack_first in (True, False):
        group = groups.open(db, f"import {ack_first}")
        group.enqueue(db, "a")
        group.close(db)
        lease = taken(leases, db)
        acking, adding = db.create_transaction(), db.create_transaction()
        leases.ack(acking, lease)
        group.enqueue(adding, "b")
        first, second = (acking, adding) if ack_first else (adding, acking)
        assert not conflicts(first)
        assert conflicts(second)
        if ack_first:
            with pytest.raises(GroupError):
                group.enqueue(db, "b")
        else:
            leases.ack(db, lease)
            assert not group.stats(db).ended
            leases.ack(db, taken(leases, db))
        assert group.stats(db).ended
    assert consistent(leases, db)


def test_of_the_last_ack_and_a_new_hold_at_once_one_runs_again(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import")
    group.enqueue(db, "a")
    group.close(db)
    lease = taken(leases, db)
    acking, holding = db.create_transaction(), db.create_transaction()
    leases.ack(acking, lease)
    groups.group(db, "import").hold(holding)
    assert not conflicts(holding)
    assert conflicts(acking)
    leases.ack(db, lease)
    assert not group.stats(db).ended


def test_acks_of_a_large_groups_members_do_not_conflict(db: Any, leases: Leases, groups: Groups) -> None:
    group = groups.open(db, "import")
    group.enqueue_many(db, map(str, range(40)))
    held = leases.lease_many(db, limit=20)
    transactions = [db.create_transaction() for _ in held]
    for tr, lease in zip(transactions, held, strict=True):
        leases.ack(tr, lease)
    assert [conflicts(tr) for tr in transactions] == [False] * len(transactions)


def test_enqueues_of_members_do_not_conflict(db: Any, groups: Groups) -> None:
    group = groups.open(db, "import")
    transactions = [db.create_transaction() for _ in range(5)]
    for tr in transactions:
        group.enqueue(tr, "x")
    assert [conflicts(tr) for tr in transactions] == [False] * len(transactions)
    assert group.stats(db).available == 5


def test_many_workers_end_a_group_once(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    group = Groups(leases).open(db, "import", then=FollowUp(leases, "report"))
    group.enqueue_many(db, map(str, range(100)))
    group.close(db)
    seen: list[str] = []
    lock = threading.Lock()

    def work() -> None:
        while (lease := leases.lease(db, duration=600)) is not None:
            with lock:
                seen.append(lease.value)
            leases.ack(db, lease)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    work()  # the last one may have come after all others had looked
    assert sorted(seen) == sorted([*map(str, range(100)), "report"])
    assert group.wait(timeout=60).done == 100
    assert consistent(leases, db)


def test_a_group_is_awaited_beside_a_consumer(db: Any, queue: Queue) -> None:
    leases = Leases(queue)

    async def handle(lease: Lease) -> object:
        return lease.value

    async def main() -> Any:
        async with Consumer(leases, handle).running(db):
            group = await Groups(leases).open.aio(db, "import")
            await group.enqueue_many.aio(db, map(str, range(250)))
            await group.close.aio(db)
            return (await asyncio.wait_for(group, 60)).done

    assert asyncio.run(main()) == 250


def test_an_ended_group_is_removed_after_its_time(db: Any, leases: Leases, groups: Groups, clock: Clock) -> None:
    group = groups.open(db, "import", keep=60, then=FollowUp(leases, "report"))
    group.enqueue(db, "a")
    group.close(db)
    leases.ack(db, taken(leases, db))
    clock.now += 61
    assert taken(leases, db).value == "report"  # its removal leaves the follow-up alone
    assert list(db.get_range_startswith(leases.layout.groups.key())) == []
    with pytest.raises(CompletionError) as told:
        group.wait(timeout=60)
    assert told.value.outcome == "gone"
    again = groups.open(db, "import", keep=60)
    assert not again.stats(db).ended
    assert consistent(leases, db)


def test_a_cleared_queue_ends_the_wait_for_a_group(db: Any, queue: Queue, groups: Groups) -> None:
    group = groups.open(db, "import")
    found: list[str] = []

    def wait() -> None:
        with pytest.raises(CompletionError) as told:
            group.wait(timeout=60)
        found.append(told.value.outcome)

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.clear(db)
    waiting.join(30)
    assert found == ["gone"]


def test_groups_results_and_priorities_compose(db: Any, space: Subspace) -> None:
    jobs = PriorityQueue(Queue(space["jobs"], codec="str"))
    results = Results(jobs)
    groups = Groups(results)
    reports = Groups(Leases(Queue(space["reports"], codec="str")))
    after = reports.open(db, "reports")
    group = groups.open(db, "import", then=FollowUp(reports, "ready", group="reports"))
    late = group.enqueue(db, "late", priority=9)
    soon = group.enqueue(db, "soon", priority=0)
    group.close(db)
    after.close(db)
    seen: list[str] = []

    def handle(lease: Lease) -> object:
        seen.append(lease.value)
        return lease.value.upper()

    Consumer(jobs, handle, concurrency=1).drain(db)
    assert seen == ["soon", "late"]
    assert (late.wait(timeout=60), soon.wait(timeout=60)) == ("LATE", "SOON")
    assert group.wait(timeout=60).done == 2
    assert not after.stats(db).ended
    Consumer(reports, handle).drain(db)
    assert after.wait(timeout=60).done == 1
    assert consistent(jobs.leases, db)
    assert consistent(reports.leases, db)


def test_a_group_that_was_sent_waits_where_it_has_a_database(db: Any, leases: Leases) -> None:
    copy = pickle.loads(pickle.dumps(Groups(Leases(leases.queue)).open(db, "copied")))
    with pytest.raises(ValueError, match="has no database to wait in"):
        copy.wait()
    copy.at(db).close(db)
    assert copy.at(db).wait(timeout=60).done == 0
    assert leases.stats(db).enqueued == 0


def test_groups_are_listed_by_their_names_and_hold_nothing(db: Any, queue: Queue) -> None:
    groups = Groups(Leases(queue))
    for name in ("c", "a", "b\x00", "b"):
        groups.open(db, name).enqueue_many(db, ["1", "2"] if name == "a" else [])
    assert [group.name for group in groups.list(db)] == ["a", "b", "b\x00", "c"]
    assert [group.name for group in groups.list(db, after="b", limit=1)] == ["b\x00"]
    assert [group.name for group in groups.list(db, after="aa")] == ["b", "b\x00", "c"]
    first = next(iter(groups.list(db)))
    assert (first.token, first.stats(db).available) == (b"", 2)
    tr = db.create_transaction()
    groups.open(tr, "d")
    assert [group.name for group in groups.list(tr, after="c")] == ["d"]


def test_groups_are_listed_in_an_event_loop(db: Any, space: Subspace) -> None:
    groups = Groups(Leases(Queue(space["listed"], codec="str")))
    for name in "c", "a", "b":
        groups.open(db, name)

    async def names(**terms: Any) -> list[str]:
        return [group.name async for group in groups.list(db, **terms)]

    assert asyncio.run(names()) == ["a", "b", "c"]
    assert asyncio.run(names(after="a", limit=1)) == ["b"]


def test_notebooks_show_a_group_a_completion_and_a_blob_as_tables(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space["shown"], codec="str"))
    completion = Results(leases).enqueue(db, "x")
    with Blobs(leases).write(db, "file") as writer:
        writer.write(b"12345")
    for shown, told in (
        (completion, completion.position.text),
        (Groups(leases).open(db, "book"), "book"),
        (writer, "5"),
    ):
        html = shown._repr_html_()
        assert html.startswith("<table>")
        assert told in html
