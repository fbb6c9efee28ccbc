"""The oracle notices what breaks the promise of results, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.layers.groups import Group, Groups
from fdbqueue.layers.leases import Lease
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.results import Completion, FollowUp, Results
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.moves.ends import pull
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import Due
from tests.chaos.history import told_claims, told_leases, value_of
from tests.chaos.kinds import Kind
from tests.chaos.scene import Scene
from tests.helpers.staging import register


@pytest.fixture
def scene(other: Any) -> Scene:
    made: Scene = other(Kind.results)
    return made


def request(scene: Scene, name: str, *, follow_ups: int = 0, **terms: Any) -> Completion[Any]:
    told = scene.told("request", {"name": name, "count": 1 + follow_ups, "size": 10, "headers": None})
    value, *others = (value_of(name, number, 10) for number in range(1 + follow_ups))
    then = [FollowUp(scene.leases, other) for other in others]
    with calling(f"request#{told.number}"):
        completion: Completion[Any] = Results(scene.leases, keep=10).enqueue(scene.db, value, then=then, **terms)
    return completion


def ack(scene: Scene, lease: Lease, result: str, *, then: str = "") -> None:
    asked: dict[str, Any] = {"claims": told_claims([lease]), "result": result}
    if then:
        asked |= {"name": then, "count": 1, "size": 10, "headers": None}
    told = scene.told("ack with result", asked)
    with calling(f"ack with result#{told.number}"):
        follow_up = [FollowUp(scene.leases, value_of(then, 0, 10))] if then else []
        scene.leases.ack(scene.db, lease, result=result, then=follow_up)


def wait(scene: Scene, completion: Completion[Any]) -> None:
    scene.told("wait", {"of": str(completion)}, {"ended": "done", "result": completion.wait(timeout=0)})


def open_group(scene: Scene, *members: str) -> Group:
    told = scene.told("open group", {"name": "then", "count": 1, "size": 10, "headers": None})
    with calling(f"open group#{told.number}"):
        then = FollowUp(scene.leases, value_of("then", 0, 10))
        group = Groups(scene.leases).open(scene.db, "g", then=then, keep=10)
    for name in members:
        told = scene.told("join", {"name": name, "count": 1, "size": 10, "headers": None})
        with calling(f"join#{told.number}"):
            group.enqueue(scene.db, value_of(name, 0, 10))
    return group


def drained(scene: Scene) -> set[str]:
    """Do all that is left, let all outcomes be forgotten, and return what is broken."""
    while lease := scene.lease():
        scene.ack(lease)
    scene.clock.now += 1e6
    while scene.leases.reclaim(scene.db).more:
        continue
    return scene.broken()


def test_results_follow_ups_and_groups_break_nothing(scene: Scene) -> None:
    completion = request(scene, "a", follow_ups=1)
    lease = scene.lease()
    ack(scene, lease, "well done", then="after")
    wait(scene, completion)
    open_group(scene, "b", "c").close(scene.db)
    assert drained(scene) == set()


def test_an_untaken_grant_of_a_cancelled_groups_member_breaks_nothing(scene: Scene) -> None:
    group = open_group(scene, "b", "c")
    register(scene.db, scene.queue, scene.clock, duration=30.0, process=b"")
    told = scene.told("staged lease", {})
    with calling(f"staged lease#{told.number}"):
        lease = StagedQueue(scene.leases, consumer="me").lease(scene.db)  # grants "b" to the process that is not there
    assert lease is not None
    told.answer = {"leases": told_leases([lease])}
    told = scene.told("cancel group", {"group": "g"})
    with calling(f"cancel group#{told.number}"):
        tr = scene.db.create_transaction()
        group.cancel(tr)
        tr.commit().wait()
    scene.clock.now += 1
    assert scene.lease() is None  # one transaction puts the grant back and sweeps the group
    ack(scene, lease, "well done")
    assert drained(scene) == set()


def test_an_item_that_expires_while_a_consumer_handles_it_breaks_nothing(scene: Scene) -> None:
    request(scene, "a", follow_ups=1, ttl=1.0)
    told = scene.told("consume", {})
    with calling(f"consume#{told.number}"):
        lease = scene.leases.lease(scene.db, consumer="me")
    assert lease is not None
    scene.told("handle", {"leases": told_leases([lease])})
    scene.clock.now += 100
    assert scene.lease() is None  # the same process finds that the item's time is over
    assert drained(scene) == set()


def test_an_end_that_is_not_told_is_found(scene: Scene) -> None:
    completion = request(scene, "a")
    key = scene.queue.layout.completions.key(pack(completion.position))
    lease = scene.lease()
    told = scene.told("ack with result", {"claims": told_claims([lease]), "result": "x"})
    tr = scene.db.create_transaction()
    pending = bytes(tr.get(key).wait())
    with calling(f"ack with result#{told.number}"):
        scene.leases.ack(tr, lease, result="x")
        tr.set(key, pending)
        tr.commit().wait()
    assert "results" in drained(scene)


def test_a_follow_up_that_goes_too_early_is_found(scene: Scene) -> None:
    request(scene, "a", follow_ups=1)
    [held] = scene.leases.browse(scene.raw, state="delayed")
    follow_ups = ((scene.queue.layout.prefix, pack(held.position)),)
    scene.behind_the_back(lambda tr: pull(tr, follow_ups, Due.GO))
    assert drained(scene) == {"results"}


def test_a_second_follow_up_of_an_ack_is_found(scene: Scene) -> None:
    scene.enqueue("a")
    ack(scene, scene.lease(), "x", then="after")
    told = scene.told("ack with result", {**scene.calls[-1].asked, "claims": []})
    with calling(f"ack with result#{told.number}"):
        scene.leases.enqueue(scene.db, value_of("after", 0, 10))
    scene.calls[-1].asked["claims"] = scene.calls[-2].asked["claims"]
    assert "I9" in drained(scene)


def test_a_group_that_ends_too_early_is_found(scene: Scene) -> None:
    group = open_group(scene, "a", "b")
    group.close(scene.db)
    space = scene.queue.layout.groups["g"]["member"]
    members = [(bytes(row.key), bytes(row.value)) for row in scene.raw.get_range_startswith(space.key())]
    lease = scene.lease()
    told = scene.told("ack", {"claims": told_claims([lease])})
    tr = scene.db.create_transaction()
    with calling(f"ack#{told.number}"):
        tr.clear(members[1][0])
        scene.leases.ack(tr, lease)
        tr.set(*members[1])
        tr.commit().wait()
    assert "results" in drained(scene)


def test_a_group_that_does_not_end_is_found(scene: Scene) -> None:
    group = open_group(scene, "a")
    holds = scene.queue.layout.groups["g"]["hold"]
    scene.behind_the_back(lambda tr: tr.clear_range_startswith(holds.key()))
    assert group.stats(scene.raw).ended is False
    scene.behind_the_back(lambda tr: tr.clear_range_startswith(scene.queue.layout.groups["g"]["member"].key()))
    assert "results" in drained(scene)


@pytest.mark.parametrize("told", [("dead", None), ("gone", None), ("done", "another result")])
def test_a_caller_that_is_told_of_another_end_is_found(scene: Scene, told: tuple[str, str | None]) -> None:
    completion = request(scene, "a")
    ack(scene, scene.lease(), "its result")
    ended, result = told
    if ended == "gone":
        completion = request(scene, "b")  # its outcome is removed at the end; it is another one that was asked for
        scene.told("wait", {"of": "9:00"}, {"ended": ended})
    else:
        scene.told("wait", {"of": str(completion)}, {"ended": ended, "result": result})
    assert drained(scene) == {"results"}
