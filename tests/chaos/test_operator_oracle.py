"""The oracle finds what operators must not do, and what must not happen in spite of them."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.stored.known import Look, OwnChanges
from tests.chaos import operatorpromises
from tests.chaos.history import value_of
from tests.chaos.scene import Scene


def operate(scene: Scene, verb: str, position: Any, at: Any = None, **terms: Any) -> None:
    """Let an operator change the item at a position, and say that it was the one `at` another."""
    asked = {"operation": verb, "position": (at or position).text}
    if verb == "update":
        asked |= {"name": "changed", "count": 1, "size": 10, "headers": None}
        terms = {"value": value_of("changed", 0, 10), "headers": {}}
    told = scene.told("operate", asked)
    with calling(f"operate#{told.number}"):
        getattr(scene.leases, verb)(scene.db, position, **terms)


@pytest.mark.parametrize("state", ["leased", "available", "delayed"])
@pytest.mark.parametrize("verb", ["cancel", "update", "reschedule"])
def test_an_operator_may_change_an_item_whoever_has_it(scene: Scene, verb: str, state: str) -> None:
    position = scene.enqueue("a", **({"delay": 5} if state == "delayed" else {}))
    if state == "leased":
        scene.lease()
    operate(scene, verb, position, **({"delay": 0} if verb == "reschedule" else {}))
    scene.clock.now += 100
    again = scene.lease()
    assert (again is None) == (verb == "cancel")
    if again is not None:
        scene.ack(again)
    scene.clock.now += 10_000
    scene.leases.reclaim(scene.db)
    assert scene.broken() == set()


def test_an_operator_that_changes_another_item_is_found(scene: Scene) -> None:
    first, second = scene.enqueue("a"), scene.enqueue("b")
    operate(scene, "cancel", first, at=second)
    assert "operators" in scene.broken()


def test_an_ack_that_works_after_the_item_was_cancelled_is_found(scene: Scene) -> None:
    lease = scene.lease() if scene.enqueue("a") else None
    operate(scene, "cancel", lease.position)  # type: ignore[union-attr]
    scene.told("ack", {"claims": [(lease.position.text, lease.token.hex())]})  # type: ignore[union-attr]
    assert "I4" in scene.broken()


@pytest.mark.parametrize(("late", "recovers"), [(False, False), (True, False), (True, True)])
def test_an_item_that_is_taken_long_after_a_pause_is_found(
    scene: Scene, late: bool, recovers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if late:
        monkeypatch.setattr(operatorpromises, "LATE_US", 0)
    if recovers:
        monkeypatch.setattr(operatorpromises, "RECOVERY", 0)  # all versions in between are those that it skips
    scene.queue.pause(scene.db)
    scene.enqueue("a")
    layout = scene.queue.layout  # of a process that does not look again
    layout.known.note(Look(float("inf"), OwnChanges.count), scene.db.create_transaction())
    layout.known.is_open = True
    scene.ack(scene.lease())
    assert ("operators" in scene.broken()) == (late and not recovers)


@pytest.mark.parametrize("refused", ["OtherCodec", "CodecError", ""])
def test_another_codec_that_gets_past_the_registered_one_is_found(scene: Scene, refused: str) -> None:
    scene.told("other codec", {}, {"refused": refused})
    scene.enqueue("a")
    scene.ack(scene.lease())
    assert ("operators" in scene.broken()) == (refused != "OtherCodec")


@pytest.mark.parametrize(("drained", "paused"), [(True, False), (False, True), (False, False)])
def test_a_drain_that_ends_while_there_are_items_is_found(scene: Scene, drained: bool, paused: bool) -> None:
    def version() -> int:
        tr = scene.raw.create_transaction()
        return int(tr.get_read_version().wait())

    for name in "ab":
        scene.enqueue(name)
    since = version()
    first = scene.lease()
    second = scene.lease() if drained else None
    if paused:
        scene.queue.pause(scene.db)
    until = version()
    scene.queue.resume(scene.db)
    scene.told("consume", {}, {"stopped": False, "from": since, "to": until})
    scene.ack(first)
    scene.ack(second or scene.lease())
    assert ("operators" in scene.broken()) == (not drained and not paused)
