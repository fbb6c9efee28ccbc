"""Priorities: an ordered list of standard queues, the tail of a level followed by the head of the next.

Challenge
    What is urgent must not wait behind what is not, and what came first among equals must come out first, also after it
    was given back. One queue per priority would need a look into each to find the first item.

Keys
    Those of a queue with an order (behind the queue's own tuple), with the level as rank; all other places of an item
    have the rank in front of its index too:

    ==========================  ============================================================================
    ``(rank, index, random)``   available; each rank is a standard queue in a subspace of its own
    ``("level", rank)``         how many those are
    ==========================  ============================================================================

Ordering
    Smaller ranks first, always. Within a rank strict, in the order of commits and through an item's whole life: what is
    released, by nack, expiry or the end of its delay, comes before everything of its level that came after it. With
    weights every level gets its turn: of as many turns in a row of one process as the sum of the weights, exactly
    `weights[rank]` begin with that level, so that the first item of a level waits at most for the turns of that sum
    that are another's, and per turn for what one call takes. Within a level order stays strict.

Guarantees
    As `Leases`. One range read finds the next items, whichever levels they are in. A consumer that takes an item while
    a sooner one is committed conflicts, and takes that one; later arrivals disturb nobody. With weights only arrivals
    in the levels that are taken from matter. A queue has one order: who enqueues by another, or by none, is refused.

Limits
    An item keeps its level for life. Strict priority starves what is not urgent, as it says; that is what weights are
    for, which are each consumer's own. Two who give a new queue two orders at the same instant both succeed: `check`
    tells then. A turn that meets a conflict counts as had.

Source
    Apache Qpid, "Queue Implementation" (a priority queue as an ordered list of standard sub-queues; getHead and next);
    AMQP 0-10 and JMS for what priorities mean (`levels.py`); weighted round robin as web servers spread it (nginx).
"""

from __future__ import annotations

from ..common._levels import AmqpLevels, Levels
from ._earliest import EarliestDeadline
from ._priority import PriorityQueue, PriorityStats
from ._weighted import WeightedHead

__all__ = [
    "AmqpLevels",
    "EarliestDeadline",
    "Levels",
    "PriorityQueue",
    "PriorityStats",
    "WeightedHead",
]
