"""The position of a session's item, given to another layer, is not "not there": an error names the session's method."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Groups,
    Leases,
    PriorityQueue,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
)

LAYERS: dict[str, Callable[[Queue[Any]], Any]] = {
    "Queue": lambda queue: queue,
    "Leases": Leases,
    "Subscriptions": lambda queue: Subscriptions(Leases(queue)),
    "StagedQueue": lambda queue: StagedQueue(Leases(queue)),
    "Results": lambda queue: Results(Leases(queue)),
    "Groups": lambda queue: Groups(Leases(queue)),
    "dead letters": lambda queue: Leases(queue).dead,
}
VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "get": ("get", {}),
    "get_many": ("get", {}),
    "cancel": ("cancel", {}),
    "cancel_many": ("cancel", {}),
    "update": ("update", {"value": "z"}),
    "update_many": ("update", {"value": "z"}),
    "reschedule": ("reschedule", {"delay": 5}),
    "reschedule_many": ("reschedule", {"delay": 5}),
    "bury": ("skip(db, session)", {}),
    "redrive": ("redrive", {}),
    "purge": ("purge", {}),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("of", ["completion", "session"])
def test_every_verb_by_position_says_whose_it_is(db: Any, space: Subspace, layer: str, of: str) -> None:
    queue = Queue(space, codec="str")
    sessions = Sessions(queue)
    positions = {
        "completion": Results(sessions).enqueue(db, "x", session="ann").position,
        "session": sessions.enqueue(db, "y", session="ann"),
    }
    made, called = LAYERS[layer](queue), 0
    for verb, (method, terms) in VERBS.items():
        call = getattr(made, verb, None)
        if call is None:
            continue
        given = [positions[of]] if verb.endswith("many") else positions[of]
        with pytest.raises(ValueError, match=re.escape(f"Sessions.{method}")) as told:
            call(db, given, **terms)
        assert "'ann'" in str(told.value) or of == "session"
        called += 1
    assert called
    info = sessions.info(db, "ann")
    assert info is not None
    assert info.items == 2


def test_an_item_that_has_left_a_queue_with_levels_is_not_there(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    levels = PriorityQueue(queue, levels=3)
    gone = levels.enqueue(db, "a", priority=1)
    Sessions(queue).enqueue(db, "b", session="ann")
    assert levels.cancel(db, gone) is True

    assert levels.get(db, gone) is None
    assert levels.cancel(db, gone) is False


def test_without_sessions_a_position_with_a_rank_is_not_there(db: Any, space: Subspace) -> None:
    assert Queue(space).get(db, Position(1, b"random", rank=2)) is None
