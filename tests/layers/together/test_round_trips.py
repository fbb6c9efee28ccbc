"""A call for many items waits for their reads together: on a cluster a transaction ends after five seconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases
from tests.helpers.rounds import Rounds

FEW, MANY = 6, 50


def filled(db: Any, space: Subspace, number: int) -> Leases[str]:
    leases: Leases[str] = Leases(Queue(space, codec="str"))
    leases.enqueue_many(db, [str(n) for n in range(number)])
    return leases


def of_leases(
    verb: Callable[[Leases[str], Any, list[Any]], Any],
) -> Callable[[Any, Subspace, int], Callable[[Any], Any]]:
    """Return how a verb is prepared that takes many leases, which are live."""

    def prepared(db: Any, space: Subspace, number: int) -> Callable[[Any], Any]:
        leases = filled(db, space, number)
        held = leases.lease_many(db, limit=number)
        return lambda slow: verb(leases, slow, held)

    return prepared


def of_lost(verb: Callable[[Leases[str], Any, list[Any]], Any]) -> Callable[[Any, Subspace, int], Callable[[Any], Any]]:
    """The same of leases that are lost."""

    def prepared(db: Any, space: Subspace, number: int) -> Callable[[Any], Any]:
        leases = filled(db, space, number)
        held = leases.lease_many(db, limit=number)
        leases.ack_many(db, held)

        def call(slow: Any) -> None:
            with suppress(LeaseLost):
                verb(leases, slow, held)
                pytest.fail("the leases are not lost")

        return call

    return prepared


def of_places(
    verb: Callable[[Queue[str], Any, list[Any]], Any],
) -> Callable[[Any, Subspace, int], Callable[[Any], Any]]:
    """The same of a verb that takes many positions, in several states."""

    def prepared(db: Any, space: Subspace, number: int) -> Callable[[Any], Any]:
        leases = filled(db, space, number)
        places = [item.position for item in leases.queue.browse(db)]
        leases.lease_many(db, limit=number // 3)
        leases.queue.reschedule_many(db, places[-(number // 3) :], delay=60.0)
        return lambda slow: verb(leases.queue, slow, places)

    return prepared


def with_dead(verb: Callable[[Leases[str], Any], Any]) -> Callable[[Any, Subspace, int], Callable[[Any], Any]]:
    """The same of a verb about dead letters."""

    def prepared(db: Any, space: Subspace, number: int) -> Callable[[Any], Any]:
        leases = filled(db, space, number)
        leases.nack_many(db, leases.lease_many(db, limit=number), last=True)
        return lambda slow: verb(leases, slow)

    return prepared


CALLS: dict[str, Callable[[Any, Subspace, int], Callable[[Any], Any]]] = {
    "ack_many": of_leases(lambda leases, slow, held: leases.ack_many(slow, held)),
    "nack_many": of_leases(lambda leases, slow, held: leases.nack_many(slow, held)),
    "snooze_many": of_leases(lambda leases, slow, held: leases.snooze_many(slow, held, delay=1.0)),
    "extend_many": of_leases(lambda leases, slow, held: leases.extend_many(slow, held, duration=1.0)),
    "ack_many of lost ones": of_lost(lambda leases, slow, held: leases.ack_many(slow, held)),
    "nack_many of lost ones": of_lost(lambda leases, slow, held: leases.nack_many(slow, held)),
    "extend_many of lost ones": of_lost(lambda leases, slow, held: leases.extend_many(slow, held, duration=1.0)),
    "get_many": of_places(lambda queue, slow, places: queue.get_many(slow, places)),
    "cancel_many": of_places(lambda queue, slow, places: queue.cancel_many(slow, places)),
    "update_many": of_places(lambda queue, slow, places: queue.update_many(slow, places, value="new")),
    "reschedule_many": of_places(lambda queue, slow, places: queue.reschedule_many(slow, places, delay=1.0)),
    "redrive": with_dead(lambda leases, slow: leases.dead.redrive(slow)),
    "purge": with_dead(lambda leases, slow: leases.dead.purge(slow)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_round_trips_of_a_call_do_not_grow_with_its_items(db: Any, space: Subspace, name: str) -> None:
    rounds = []
    for number in FEW, MANY:
        slow = Rounds(db)
        CALLS[name](db, space[number], number)(slow)
        rounds.append(slow.rounds)
    assert rounds[1] <= rounds[0] + 2, f"{FEW} items take {rounds[0]} round trips, and {MANY} take {rounds[1]}"
