"""The ways of calls through the layers: counts are exact, where times are noisy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions, StagedQueue
from tests.helpers.calls import Way, all_calls, python_calls, way_of

WAYS = {
    "staged lease": Way(33, 148, 188),
    "staged ack": Way(27, 126, 168),
    "staged dequeue": Way(32, 130, 170),
    "session lease": Way(40, 240, 280),
}
"""The ways of warm calls in memory. A change may make them a tenth longer; more asks for a reason, and a new figure.

Each wait of a body is a call of `value_of`. Each transaction looks once whether its body is a generator. A change may
ask for a commit marker, whose file `transactional` shares.
A lease asks the module that decides for all takers, once for its pointer and once for the session's first item.
"""


@pytest.mark.parametrize("call", WAYS)
def test_a_call_beside_leases_in_hand_takes_a_short_way(untouched: Any, space: Subspace, call: str) -> None:
    db = untouched
    staged: StagedQueue[bytes] = StagedQueue(Queue(space["staged"]))
    sessions: Sessions[bytes] = Sessions(Queue(space["sessions"]))
    for number in range(20):
        staged.enqueue(db, b"x")
        sessions.enqueue(db, b"x", session=f"session {number}")
    held = [staged.lease(db) for _ in range(8)]
    for _ in range(3):
        sessions.lease(db)
    calls: dict[str, Callable[[], object]] = {
        "staged lease": lambda: staged.lease(db),
        "staged ack": lambda: staged.ack(db, held.pop(0)),  # type: ignore[arg-type]
        "staged dequeue": lambda: staged.dequeue(db),
        "session lease": lambda: sessions.lease(db),
    }
    ways = [way_of(calls[call]) for _ in range(5)]  # now and then a commit trims the log, or a look is due

    found, most = min(ways, key=lambda way: way.calls), WAYS[call]
    assert found.files <= 1.1 * most.files
    assert found.calls <= 1.1 * most.calls
    assert found.moves <= 1.1 * most.moves


def test_a_new_session_of_a_bulk_load_costs_the_same_behind_few_and_many_others(
    untouched: Any, space: Subspace
) -> None:
    def calls(number: int) -> int:
        sessions: Sessions[str] = Sessions(Queue(space[number], codec="str"))
        sessions.enqueue(untouched, "first", session="first")
        names = [f"session {at}" for at in range(number)]
        return python_calls(lambda: sessions.enqueue_many(untouched, names, session=str))

    assert calls(400) < 2.3 * calls(200)


def test_an_enqueue_into_a_session_costs_the_same_behind_few_and_many_others_of_its_transaction(
    untouched: Any, space: Subspace
) -> None:
    def calls(number: int) -> int:
        sessions: Sessions[bytes] = Sessions(Queue(space[number]))
        sessions.enqueue(untouched, b"first", session="first")
        tr = untouched.create_transaction()

        def enqueue() -> None:
            for at in range(number):
                sessions.enqueue(tr, b"x", session=f"session {at}")

        return all_calls(enqueue)

    assert calls(200) < 2.5 * calls(100)
