"""The calls of one process for items of one queue, and what becomes of items that no call claims."""

from __future__ import annotations

from fdbqueue.lowlevel import Database, Steps

from ..common._batcher import Batcher
from ..leases._leases import Leases
from ._allotments import Got
from ._attempt import Caller, Want
from ._delivery import Delivery
from ._early import EarlyRequest


class Callers(Batcher[Want, list[Got]]):
    """The calls of one process.

    Args:
        leases: the leases of the queue.
        delivery: takes the items, and puts them back.
    """

    def __init__(self, leases: Leases, delivery: Delivery) -> None:
        super().__init__()
        self._leases = leases
        self._delivery = delivery
        self._early = EarlyRequest()

    def joined(self, caller: Caller) -> None:
        """Make the leader look again for a call that does not wait. The leader may be resting on an empty queue."""
        if not caller.leads and not caller.argument.patient:
            self.calls.wake()

    def give_on(self, db: Database, result: list[Got]) -> Steps[None]:
        """Give items to the waiting calls, in order. Put unclaimed items back."""
        served = 0
        for caller in self.calls.waiting():
            if not result:
                break
            if self.calls.settle(caller, result[: caller.argument.limit]):
                result = result[caller.argument.limit :]
                served += 1
        if served:
            self.calls.served(served)
            self._early.served()
        yield from self.put_back(db, result)

    def put_back(self, db: Database, result: list[Got]) -> Steps[None]:
        if result:
            yield from self._leases.queue.transact(db, lambda tr: self._delivery.put_back(tr, result))
