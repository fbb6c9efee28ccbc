"""Taking items out of a queue by another head than the plain one, with timers settled before."""

from __future__ import annotations

from functools import partial
from typing import cast

from fdbqueue import Item
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.engine.transactional import is_database

from ..leases import Leases
from .serving import Serving


class Dequeueing:
    """Takes items out.

    Args:
        leases: of the queue, with the head and the rules for what falls due.
    """

    __slots__ = ("_leases", "_serving")

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._serving = Serving(leases)

    def take_out(self, tr: Transaction | Database, *, limit: int) -> Steps[list[Item]]:
        """Take up to `limit` items out, in the head's order.

        Raises:
            FormatError, CodecError: the first one can't be read; it stays where it is.
        """
        if limit < 1:
            raise ValueError(f"limit is how many items to take, at least 1, not {limit}.")
        items = yield from self._leases.queue.transact(tr, partial(self._serving.take_out, limit=limit))
        if not items and not is_database(tr):
            self._leases.head.found_nothing(cast(Transaction, tr))
        return items
