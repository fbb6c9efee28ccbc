"""The indices of the items that one of a caller's transactions enqueues in several calls.

The first call reads the last index. The items that the transaction itself enqueues after that are counted here. All
objects of one queue count together, so that their items keep the order of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdbqueue.base.beside import KeptBeside
from fdbqueue.engine.api import Future, Transaction
from fdbqueue.engine.marker import asks_marker
from fdbqueue.engine.steps import value_of
from fdbqueue.moves.admission import Admission, Entry, check_terms, give_up_to, mark_smart, refuse_plain_items
from fdbqueue.stored.catalogue import forget_queue
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import NO_TERMS, QueueTerms


@dataclass(slots=True)
class _Next:
    """The place of a transaction's next enqueue.

    `attempt` is the future of the transaction's versionstamp. It becomes ready when the transaction commits. It becomes
    ready with an error when the transaction is reset, directly or through `on_error`. The transaction then reads a
    newer version, so the next enqueue must read the last index again.
    """

    attempt: Future[Any]
    index: int
    order: str | None
    entry: Entry
    layout: Layout
    """The layout that read the last index. That read also told it whether there are subscriptions."""
    terms: QueueTerms
    """The queue's terms."""


_open: KeptBeside[dict[bytes, _Next]] = KeptBeside(dict)
"""By transaction, then by the prefix of a queue."""


async def reserve(tr: Transaction, layout: Layout, wanted: int, order: str | None, *, entry: Entry = "plain") -> int:
    """Reserve `wanted` indices and return the first one.

    Raises:
        OrderError: the queue's items have another order.
        ChecksBypassed: the queue is smart, and the items do not pass through its checks. Or they do, and the queue
            has items that did not.
        QueueFull: the queue has a quota, and no room for the items.
    """
    of_queues = _open.of(tr)
    following = of_queues.get(layout.prefix)
    if following is not None and not following.attempt.is_ready():
        # A cluster's client runs its requests one after the other, in its own thread. It answers this request without a
        # network call. After the answer `attempt` shows whether there was a `reset` before.
        await value_of(tr.get_approximate_size())
        following = of_queues.get(layout.prefix)  # another task may have run this meanwhile
    if following is None or (following.order, following.entry) != (order, entry) or following.attempt.is_ready():
        last = Admission(tr, layout, order, entry=entry, composed=True)
        index = await last.steps(wanted)
        if last.unmarked:
            await refuse_plain_items(tr, layout)
            # A smart enqueue has `started` these steps. They must not write before it wants the index: it may refuse.
            await value_of(tr.get_approximate_size())
            mark_smart(tr, layout)
        following = of_queues[layout.prefix] = _Next(tr.get_versionstamp(), index + 1, order, entry, layout, last.terms)
    elif following.terms is not NO_TERMS:
        await check_terms(tr, layout, following.terms, entry, wanted)
    layout.known.subscribed, layout.known.exclusive_all = (
        following.layout.known.subscribed,
        following.layout.known.exclusive_all,
    )
    index = following.index
    following.index += wanted
    give_up_to(tr, layout, following.index - 1, order)
    return index


def clear_keys(tr: Transaction, layout: Layout) -> None:
    """Remove all keys of a queue, also of one that is part of another."""
    asks_marker(tr)
    tr.clear_range(*layout.whole_range())
    forget_queue(tr, layout)
    forget(tr, layout)


def forget(tr: Transaction, layout: Layout) -> None:
    """Make the next call read the last index again, as the transaction has cleared the queue."""
    _open.of(tr).pop(layout.prefix, None)
