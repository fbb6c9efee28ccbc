"""Take items out of a queue in the order of its leases' head, after due timers were fired."""

from __future__ import annotations

from typing import cast

from fdbqueue import Item
from fdbqueue.lowlevel import AdaptiveLimit, Database, Steps, Transaction, check_limit, is_database

from ..leases._leases import Leases
from ._delivery import Delivery


class Dequeueing:
    """Takes items out.

    Args:
        leases: the leases of the queue, with its head and its policy for failures.
    """

    __slots__ = ("_leases", "_serving")

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._serving = Delivery(leases)

    def take_out(self, tr: Transaction | Database, *, limit: int) -> Steps[list[Item]]:
        """Take up to `limit` items out, in the head's order. Returns fewer if it can't read so many in time.

        Raises:
            FormatError, CodecError: the first item can't be read; it stays in its place.
        """
        check_limit(limit, "items to take")
        portion = AdaptiveLimit(limit)

        def body(tr: Transaction) -> Steps[list[Item]]:
            return self._serving.take_out(tr, limit=portion.limit)

        items = yield from self._leases.queue.transact(tr, body, on_retry=portion.note)
        if not items and not is_database(tr):
            self._leases.head.found_nothing(cast(Transaction, tr))
        return items
