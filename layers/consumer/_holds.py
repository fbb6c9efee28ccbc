"""The leases that a consumer holds, and verbs that apply to many of them in one transaction."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from fdbqueue import LeaseLost
from fdbqueue.lowlevel import Database, FDBError, Steps, Transaction
from fdbqueue.moves.taking import is_cancelled
from fdbqueue.writes.adaptive_limit import Halving

from ..leases import Lease, Leases

Verb: TypeAlias = Callable[..., Steps[Any]]

BATCH_ITEMS = 256
"""How many items one transaction leases, acks, or extends at most."""


@dataclass(slots=True, eq=False)
class Hold:
    """A lease that a consumer holds."""

    lease: Lease
    leased_at: float = field(default_factory=time.monotonic)
    """When it was leased, by `time.monotonic`."""
    extended_at: float = field(default_factory=time.monotonic)
    """When it was last leased or extended, by `time.monotonic`."""
    begun: bool = False
    """Whether its handler was called."""
    ends_at: float = math.inf
    """When its handler's time is over, by `time.monotonic`."""
    settling: bool = False
    """Whether its handler has ended, so that the consumer is acking it or giving it back."""
    missing: bool = False
    """Whether an extension found the lease lost. A running handler may have acked it in its own transaction."""
    result: object = None
    """What its handler returned."""
    reason: str = ""
    """How a call by position took the item away; "" if none did, as far as is known."""
    told: bool = False
    """Whether the log already reports it lost, or no longer extended."""

    def is_awaited(self) -> bool:
        """Return whether others may wait for the end of its item."""
        return self.lease.wants_result or self.lease.group != ""

    def overdue(self) -> bool:
        """Return whether its handler has run for too long. Such a lease is not extended."""
        return not self.settling and time.monotonic() > self.ends_at


async def all_not_lost(db: Database, leases: Leases, verb: Verb, batch: list[Hold], **terms: float) -> list[Hold]:
    """Apply a verb to all holds whose leases are not lost, and return the lost ones.

    Args:
        db: a database.
        leases: the leases of the queue.
        verb: the steps of a verb that takes a transaction and leases, such as ``leases.ack_many.steps``.
        batch: the holds.
        terms: further arguments of the verb.
    """
    lost: list[Hold] = []
    halving = Halving([batch])
    for holds in halving:
        held = [hold.lease for hold in holds]
        try:
            await leases.queue.transact(db, _applied(verb, held, terms), on_retry=halving.note)
        except LeaseLost as error:
            positions = set(error.lost)
            suspects = [hold for hold in holds if hold.lease.position in positions]
            halving.again([hold for hold in holds if hold.lease.position not in positions])
            counts = Counter(hold.lease.position for hold in suspects)
            for hold in suspects:
                hold.reason = error.reasons.get(hold.lease.position, "")
                if counts[hold.lease.position] == 1:
                    lost.append(hold)
                else:  # a lost lease of the item, and a live lease that this consumer took later
                    lost += await all_not_lost(db, leases, verb, [hold], **terms)
        except FDBError as error:
            halving.halve(error)
    return lost


def all_acked(db: Database, leases: Leases, batch: list[Hold]) -> Steps[list[Hold]]:
    """Ack all holds whose leases are not lost, each with its handler's result. Return the lost ones."""
    if not [hold for hold in batch if hold.result is not None]:
        return all_not_lost(db, leases, leases.ack_many.steps, batch)
    results = {id(hold.lease): hold.result for hold in batch}

    def ack(tr: Transaction, held: list[Lease]) -> Steps[None]:
        return leases.ack_many.steps(tr, held, results=[results[id(lease)] for lease in held])

    return all_not_lost(db, leases, ack, batch)


async def is_out(db: Database, leases: Leases, lease: Lease) -> bool:
    """Return whether the group of a leased item was cancelled, perhaps after it was leased.

    Args:
        leases: the leases of the queue that has the group.
    """
    return await leases.queue.read(db, partial(is_cancelled, layout=leases.layout, name=lease.group))


def _applied(verb: Verb, held: list[Lease], terms: dict[str, float]) -> Callable[[Transaction], Steps[Any]]:
    return lambda tr: verb(tr, held, **terms)
