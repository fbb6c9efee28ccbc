"""Priorities: an ordered list of standard queues. The end of a level is followed by the head of the next one.

Challenge
    An urgent item must not wait behind a less urgent one. Among items of equal priority the oldest comes out first,
    also after it was given back. With one queue per priority, a consumer has to look into each to find the first item.

Keys
    Those of a queue with an order (behind the queue's own tuple), with the level as rank. In all other states too, an
    item's key has the rank in front of its index:

    ==========================  ============================================================================
    ``(rank, index, random)``   available; each rank is a standard queue in a subspace of its own
    ``("level", rank)``         the number of available items in the level
    ==========================  ============================================================================

Ordering
    Smaller ranks always come first. Within a rank the order is strict: commit order, through an item's whole life. An
    item that is released, by nack, expiry or the end of its delay, comes before all later items of its level.

    With weights, every level gets turns. A round has as many turns as the sum of the weights. In each round of one
    process, exactly `weights[rank]` turns begin with that level. So the first item of a level waits at most for the
    other levels' turns of one round, and in each turn for the items of one call. Within a level the order stays strict.

Guarantees
    As `Leases`. One range read finds the next items in all levels. A consumer conflicts if a sooner item is committed
    while it takes one, and then takes the sooner item. Later arrivals cause no conflict. With weights, only arrivals in
    the levels that it takes from conflict. A queue has one order: an enqueue with another order, or none, is refused.

Limits
    An item keeps its level for life. Strict priority starves items that are not urgent. Weights prevent that; each
    consumer has its own. If two processes give a new queue two orders at the same instant, both succeed, and `check`
    reports it. A turn that meets a conflict is used up.

Source
    Apache Qpid, "Queue Implementation" (a priority queue as an ordered list of standard sub-queues; getHead and next).
    AMQP 0-10 and JMS for the meaning of priorities (`layers/common/levels.py`). Weighted round robin as in nginx.
"""

from __future__ import annotations

from ..common.levels import AmqpLevels, Levels
from ._priority import EarliestDeadline, PriorityQueue, PriorityStats, WeightedHead

__all__ = [
    "AmqpLevels",
    "EarliestDeadline",
    "Levels",
    "PriorityQueue",
    "PriorityStats",
    "WeightedHead",
]
