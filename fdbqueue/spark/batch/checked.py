"""Rows that are compared with queued items. Each row goes through a smart queue, in its batch's own transaction.

The transaction that logs a row also writes the effect of the comparison. An ignored row is logged like an
appended row. So a repeated attempt does not decide about either a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

from fdbqueue.engine import Subspace
from fdbqueue.engine.api import Transaction
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.spark.optionvalues import function_named
from fdbqueue.spark.rows.appender import Appender, QueuePart
from fdbqueue.stored.items import parse
from fdbqueue.stored.layout import Layout

BATCH_ROWS = 100
"""Each row reads the writes of the rows before it. All comparisons have to fit into a transaction's time."""
COMMITS_IN_FLIGHT = 1
"""A transaction that begins before the previous one has committed could not see its rows, and would conflict."""


class CheckedAppender(Appender):
    """Writes the rows of one attempt through smart queues.

    Args:
        home: the queue of rows that name no queue.
        smart: ``"module:function"``; the function takes a queue's subspace and returns its `SmartQueue`.
    """

    def __init__(self, home: Layout, smart: str) -> None:
        super().__init__(home)
        self._make: Callable[[Subspace], SmartQueue] = function_named("smart", smart, "SmartQueue")
        self._queues: dict[bytes, SmartQueue] = {}

    def write(self, tr: Transaction, parts: list[QueuePart]) -> None:
        """Compare and enqueue the rows one after the other."""
        for part in parts:
            smart, rows = self._smart(part.tail.layout), part.rows
            for stored, large in zip(rows.stored, rows.large or repeat(None), strict=rows.large is not None):
                opened = parse(stored)
                message = smart.messages.decode(opened.payload if large is None else large)
                smart.enqueue(tr, message, headers=dict(opened.headers) or None)

    def _smart(self, layout: Layout) -> SmartQueue:
        smart = self._queues.get(layout.prefix)
        if smart is None:
            smart = self._queues[layout.prefix] = self._make(layout.space)
        return smart
