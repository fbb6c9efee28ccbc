"""The oracle finds what is wrong: each promise is broken by hand once, past every guard of the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import fdbqueue
import fdbqueue.stored.items
from fdbqueue import Queue
from fdbqueue.engine.steps import run
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.priority._priority import WeightedHead, wheel
from fdbqueue.layers.smart import Deadlines, SmartQueue
from fdbqueue.layers.staged import RelaxedHead, StagedQueue
from fdbqueue.layers.staged import requests as _granting
from fdbqueue.layers.staged.requests import Requests
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.counters import count
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import Due
from tests.chaos.history import KILLED, Told, told_claims, told_leases, value_of
from tests.chaos.kinds import CREDIT, OWNERSHIP_S, WEIGHTS, Kind
from tests.chaos.owners import own
from tests.chaos.scene import Scene
from tests.helpers.staging import coordinating, register


def test_a_correct_history_has_no_violations(scene: Scene) -> None:
    scene.enqueue("a")
    scene.enqueue("b", delay=1, ttl=50)
    first = scene.lease()
    scene.clock.now += 100
    again = scene.lease()
    assert again.position == first.position
    scene.ack(again)
    assert scene.lease() is None
    assert scene.broken() == set()


def test_operations_are_effects_on_items(scene: Scene) -> None:
    scene.enqueue("a")
    scene.enqueue("b")
    lease = scene.lease()
    scene.leases.extend(scene.db, lease, duration=99)
    scene.ack(lease)
    assert scene.judged().operations == 5
    drain = scene.log.of(scene.raw, by="drain", clock=scene.clock)
    scene.queue.dequeue(drain)
    verdict = scene.judged()
    assert (verdict.operations, verdict.drained) == (5, 1)


def test_an_item_that_vanishes_is_found(scene: Scene) -> None:
    position = scene.enqueue("a")
    scene.behind_the_back(lambda tr: tr.clear(scene.queue.layout.item_key(position)))
    assert {"I1", "I10"} <= scene.broken()


def test_an_acknowledged_item_that_was_never_delivered_is_found(scene: Scene) -> None:
    scene.told("enqueue", {"name": "never", "count": 1, "size": 10, "headers": None})
    assert {"I1", "I9"} <= scene.broken()


def test_an_item_that_was_never_enqueued_is_found(scene: Scene) -> None:
    scene.queue.enqueue(scene.db, b"made up")
    scene.ack(scene.lease())
    assert "I2" in scene.broken()


def test_an_ack_by_a_caller_without_the_lease_is_found(scene: Scene) -> None:
    scene.enqueue("a")
    with calling("ack#99"):  # which no caller of that process has asked for
        scene.leases.ack(scene.db, scene.lease())
    assert "I3" in scene.broken()


def test_a_lease_that_is_taken_away_before_it_expires_is_found(scene: Scene) -> None:
    scene.enqueue("a")
    scene.lease(duration=100)
    early = Leases(scene.queue, clock=lambda: scene.clock.now + 200)
    with calling("reclaim#99"):
        early.reclaim(scene.db)
    scene.ack(scene.lease())
    assert "I3" in scene.broken()


def test_two_successful_acks_of_one_lease_are_found(scene: Scene) -> None:
    scene.enqueue("a")
    lease = scene.lease()
    scene.ack(lease)
    scene.told("ack", {"claims": told_claims([lease])})
    assert {"I4", "I9"} <= scene.broken()


def test_an_item_that_reappears_after_its_ack_is_found(scene: Scene) -> None:
    scene.enqueue("a")
    lease = scene.lease()
    stored = bytes(scene.raw[scene.queue.layout.leased.key(pack(lease.position))])
    scene.ack(lease)
    scene.behind_the_back(lambda tr: tr.set(scene.queue.layout.item_key(lease.position), stored))
    assert {"I1", "I4", "I10"} <= scene.broken()


def test_a_skipped_item_is_found(scene: Scene) -> None:
    first = scene.enqueue("a")
    second = scene.enqueue("b")

    def take_the_second(tr: Any) -> None:
        key = scene.queue.layout.item_key(second)
        tr.set(scene.queue.layout.leased.key(pack(second)), tr.get(key).wait())
        tr.clear(key)
        count(tr, scene.queue.layout, leased=1)

    scene.behind_the_back(take_the_second)
    assert first < second
    assert "I5" in scene.broken()


@pytest.mark.parametrize("wanted", [1, 2])
def test_only_an_item_assigned_to_an_earlier_request_may_be_skipped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    coordinating(monkeypatch, AFTERMATH_SECONDS=float("inf"))
    for name in "abc":
        scene.enqueue(name)
    register(scene.db, scene.queue, scene.clock, wanted=wanted)
    requests = Requests(scene.queue.layout)
    told = scene.told("staged lease", {})
    with calling(f"staged lease#{told.number}"):
        lease = StagedQueue(scene.leases).lease(scene.db)
    assert lease is not None
    assert lease.value == value_of("abc"[wanted], 0, 10)
    told.answer = {"leases": told_leases([lease])}
    assert "I5" not in scene.broken()

    def serve_an_item_to_no_request(tr: Any) -> None:
        [standing] = run(requests.first(tr, limit=1))
        requests.remove(tr, standing.key)
        last = max(item.position for item in scene.queue.browse(tr))
        key = scene.queue.layout.item_key(last)
        tr.set(scene.queue.layout.leased.key(pack(last)), tr.get(key).wait())
        tr.clear(key)
        count(tr, scene.queue.layout, leased=1)

    scene.behind_the_back(serve_an_item_to_no_request)
    assert "I5" in scene.broken()


def test_an_item_that_overtakes_older_items_is_found(scene: Scene) -> None:
    scene.enqueue("a")
    told = scene.told("enqueue", {"name": "b", "count": 1, "size": 10, "headers": None})
    with calling(f"enqueue#{told.number}"):
        tr = scene.db.create_transaction()
        scene.queue.peek(tr)
        stored = b"\x10" + value_of("b", 0, 10)
        tr.set(scene.queue.layout.item_key(fdbqueue.Position(1, b"\x00")), stored)
        count(tr, scene.queue.layout, enqueued=1)
        tr.commit().wait()
    assert "I5" in scene.broken()


def test_an_effect_that_happened_twice_is_found(scene: Scene) -> None:
    asked = {"name": "a", "count": 1, "size": 10, "headers": None}
    told = scene.told("enqueue", asked, outcome=KILLED)
    with calling(f"enqueue#{told.number}"):
        scene.queue.enqueue(scene.db, value_of("a", 0, 10))
        scene.queue.enqueue(scene.db, value_of("a", 0, 10))
    assert "I9" in scene.broken()


def test_a_counter_that_is_wrong_is_found(scene: Scene) -> None:
    scene.behind_the_back(lambda tr: count(tr, scene.queue.layout, leased=1))
    assert scene.broken() == {"I10"}


def test_a_timer_that_is_missing_is_found(scene: Scene) -> None:
    scene.enqueue("a")

    def lease_without_a_timer(tr: Any) -> None:
        with calling("lease#0"):
            lease: Any = scene.leases.lease(tr, consumer="me")
        tr.clear(scene.queue.layout.timer_key(int(lease.expires_at * 1e6), pack(lease.position), Due.LEASE))

    scene.behind_the_back(lease_without_a_timer)
    assert "I11" in scene.broken()


def test_a_write_that_bypasses_the_log_is_found(scene: Scene) -> None:
    scene.queue.enqueue(scene.raw, b"past the log")
    assert scene.broken() == {"log"}


def test_a_rank_that_is_not_the_prioritys_is_found(other: Any) -> None:
    scene = other(Kind.priority)
    scene.enqueue("a", headers={"priority": 1})
    scene.ack(scene.lease())
    assert scene.broken() == set()
    told = scene.told("enqueue", {"name": "b", "count": 1, "size": 10, "headers": {"priority": 1}})
    with calling(f"enqueue#{told.number}"):
        scene.queue.order = None
        tr = scene.db.create_transaction()
        stored = fdbqueue.stored.items.envelope(value_of("b", 0, 10), {"priority": 1})
        tr.set(scene.queue.layout.item_key(fdbqueue.Position(9, b"r", rank=2)), stored)
        tr.commit().wait()
    assert "I5" in scene.broken()


def test_with_weights_an_item_of_another_level_may_be_left_in_front_and_one_of_the_same_is_found(other: Any) -> None:
    scene = other(Kind.weights)
    layout = scene.queue.layout
    for name, priority in [("a", 0), ("b", 1), ("c", 1)]:
        scene.enqueue(name, headers={"priority": priority})
    first_of_1 = partial(WeightedHead, layout, WEIGHTS, spin=lambda n: list(wheel(WEIGHTS)).index(1))
    assert [lease.position.rank for lease in scene.lease_by(first_of_1())] == [1]
    assert "I5" not in scene.broken()

    scene.enqueue("d", headers={"priority": 0})
    second = RelaxedHead(layout, window=2, choose=lambda runs: runs - 1)
    assert [lease.position.rank for lease in scene.lease_by(second, first_of_1())] == [0, 1]
    assert "I5" in scene.broken()


def test_in_relaxed_order_an_item_may_be_left_in_front(other: Any) -> None:
    scene = other(Kind.relaxed)
    scene.enqueue("a")
    scene.enqueue("b")
    second = RelaxedHead(scene.queue.layout, window=2, choose=lambda runs: runs - 1)
    [lease] = scene.lease_by(second)
    assert lease.value == value_of("b", 0, 10)
    assert "I5" not in scene.broken()


def test_an_item_that_goes_to_a_former_owner_is_found(other: Any) -> None:
    scene = other(Kind.exclusive)
    subscriptions = Subscriptions(scene.leases)
    for hand in (0, 1):
        scene.clock.now += 2 * OWNERSHIP_S
        told = scene.told("take over", {"hand": hand})
        with calling(f"take over#{told.number}"):
            owned = own(scene.db, subscriptions)
    for hand in (1, 0):
        scene.enqueue(f"to {hand}")
        told = scene.told("owned lease", {"hand": hand})
        with calling(f"owned lease#{told.number}"):
            [lease] = owned.lease_many(scene.db, consumer="me")
        told.answer = {"leases": told_leases([lease])}
        scene.ack(lease)
        assert scene.broken() == (set() if hand else {"owner"})


def test_a_delivery_ahead_of_an_earlier_item_is_found(other: Any) -> None:
    scene = other(Kind.exclusive)
    scene.enqueue("a")
    told = scene.told("deliver", {"name": "b", "count": 1, "size": 10, "headers": None})
    tr = scene.db.create_transaction()
    scene.queue.enqueue(tr, value_of("b", 0, 10))
    second = RelaxedHead(scene.queue.layout, window=2, choose=lambda runs: runs - 1)
    [lease] = Leases(scene.queue, clock=scene.clock, head=second).lease_many(tr, limit=1, consumer="mine")
    assert lease.value == value_of("b", 0, 10)
    with calling(f"deliver#{told.number}"):
        tr.commit().wait()
    assert "I5" in scene.broken()


def message(kind: str, number: int) -> dict[str, Any]:
    return {"type": kind, "key": "k", "lane": 0, "id": f"{number}"}


def test_a_decision_that_the_serial_state_does_not_give_is_found(other: Any) -> None:
    scene = other(Kind.smart)
    smart = SmartQueue(scene.leases)
    for number, kind in enumerate(["report", "report", "override", "report"]):
        new = message(kind, number)
        told = scene.told("smart", {"message": new})
        with calling(f"smart#{told.number}"):
            outcome = smart.enqueue(scene.db, new)
        by, position = outcome.by, outcome.position
        told.answer = {
            "decision": str(outcome.decision),
            "by": by and by.text,
            "position": position and position.text,
        }
    while scene.queue.stats(scene.raw).available:
        scene.ack(scene.lease())
    assert scene.broken() == set()
    # A report is appended though it should have been taken over, by a process that does not know the queue is smart.
    for number in (8, 9):
        told = scene.told("smart", {"message": message("report", number)}, outcome=KILLED)
        with calling(f"smart#{told.number}"):
            del scene.raw[scene.queue.layout.type_key]
            Queue(scene.queue.layout.space, codec=scene.queue.codec).enqueue(scene.db, message("report", number))
    assert "I8" in scene.broken()


def test_a_deadline_claimed_or_reported_twice_is_found(other: Any) -> None:
    def told_at_a_claim() -> Told:
        told: Told = scene.told("missed", {})
        with calling(f"missed#{told.number}"):
            [claimed] = Deadlines(smart).claim(scene.db)
        told.answer = {"missed": [(claimed.position.text, round(claimed.at * 1e6))]}
        return told

    scene = other(Kind.smart)
    smart = SmartQueue(scene.leases)
    told = scene.told("smart", {"message": message("report", 1)}, outcome=KILLED)
    with calling(f"smart#{told.number}"):
        smart.enqueue(scene.db, message("report", 1))
    [deadline] = [row.key for row in scene.raw.get_range_startswith(scene.queue.layout.deadlines["missed"].key())]
    scene.clock.now += 100
    first = told_at_a_claim()
    assert "deadlines" not in scene.broken()
    claims = len(scene.calls)
    scene.told("missed", {}, first.answer)
    assert "deadlines" in scene.broken()
    del scene.calls[claims:]
    scene.raw[deadline] = b""  # past the log: the second claim finds what the first one took
    told_at_a_claim()
    assert "deadlines" in scene.broken()


@pytest.mark.parametrize("wrong", [False, True])
def test_an_expired_item_that_becomes_a_dead_letter_is_found(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    if wrong:
        monkeypatch.setattr(Takes, "is_over", staticmethod(lambda stored, notes, now_us: False))
    leases = scene.leases = Leases(scene.queue, max_attempts=6, clock=scene.clock)
    scene.enqueue("a", ttl=50)
    for attempt in range(6):
        lease = scene.lease(duration=100)
        scene.clock.now += 60 if attempt == 5 else 0
        told = scene.told("nack", {"claims": told_claims([lease])})
        with calling(f"nack#{told.number}"):
            told.answer = {"fate": str(leases.nack(scene.db, lease))}
    assert ("I4" in scene.broken()) == wrong


def test_credit_that_is_exceeded_is_found(other: Any) -> None:
    scene = other(Kind.subscriptions)
    red = Subscriptions(scene.leases).subscribe(scene.db, "red", selector="color = 'red'")
    for number in range(CREDIT["red"] + 1):
        scene.enqueue(f"{number}", headers={"color": "red"})
    red.lease_many(scene.db, consumer="me")  # nobody granted anything
    assert "I12" in scene.broken()


@pytest.mark.parametrize("counts", [False, True])
def test_an_untaken_grant_that_counts_as_an_attempt_is_found(
    scene: Scene, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        scene.enqueue(name)
    register(scene.db, scene.queue, scene.clock, duration=30.0, process=b"")
    told = scene.told("staged lease", {})
    with calling(f"staged lease#{told.number}"):
        lease = StagedQueue(scene.leases, consumer="me").lease(scene.db)
    assert lease is not None
    told.answer = {"leases": told_leases([lease])}
    if counts:
        monkeypatch.setattr(_granting, "uncounted", lambda notes: notes)
    scene.clock.now += 1
    again = scene.lease()  # the same transaction puts it back, and leases it
    assert (again.value, again.attempt) == (value_of("a", 0, 10), 1 + counts)
    scene.ack(again)
    scene.ack(lease)
    assert ("I3" in scene.broken()) == counts


def test_an_untaken_grant_of_an_item_whose_life_is_over_breaks_nothing(scene: Scene) -> None:
    scene.enqueue("a", ttl=0.5)
    scene.enqueue("b")
    register(scene.db, scene.queue, scene.clock, duration=30.0, process=b"")
    told = scene.told("staged lease", {})
    with calling(f"staged lease#{told.number}"):
        lease = StagedQueue(scene.leases, consumer="me").lease(scene.db)
    assert lease is not None
    assert lease.value == value_of("b", 0, 10)
    told.answer = {"leases": told_leases([lease])}
    scene.clock.now += 1
    assert scene.lease() is None  # puts the grant of "a" back, and removes the item
    scene.ack(lease)
    assert scene.broken() == set()
