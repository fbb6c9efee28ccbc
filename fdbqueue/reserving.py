"""Which indices the items get that one transaction of a caller's enqueues, in several calls.

The last index is read at the first call; what the transaction itself enqueues after that is counted here. All objects
of one queue count together, so that their items stand in the order of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from fdbqueue.engine.api import Future, Transaction
from fdbqueue.engine.steps import Steps
from fdbqueue.layout import Layout
from fdbqueue.tail import Door, LastIndex, give_up_to, mark_smart


@dataclass(slots=True)
class _Next:
    """Where the next enqueue of a transaction goes.

    `attempt` is the future of the transaction's versionstamp: it gets ready when the transaction commits or, with an
    error, when it is reset, by itself or by `on_error`. Then it reads a newer version, and so must the next enqueue.
    """

    attempt: Future[Any]
    index: int
    order: str | None
    door: Door
    layout: Layout
    """Of whoever read it, which knows from that whether there are subscriptions."""


_open: WeakKeyDictionary[Any, dict[bytes, _Next]] = WeakKeyDictionary()
"""By transaction, and there by the prefix of a queue."""


def reserve(tr: Transaction, layout: Layout, wanted: int, order: str | None, *, door: Door = "plain") -> Steps[int]:
    """Reserve `wanted` indices and return the first one.

    Raises:
        OrderError: the queue's items have another order.
        ChecksBypassed: the queue is smart, and the items come in by the plain door.
    """
    of_queues = _open.setdefault(tr, {})
    following = of_queues.get(layout.prefix)
    if following is not None and not following.attempt.is_ready():
        # A cluster's client does what it is told in a thread of its own, one after the other: when it has answered
        # this, which it knows without asking anybody, `attempt` says whether there was a `reset` before.
        yield tr.get_approximate_size()
        following = of_queues.get(layout.prefix)  # another task may have been here meanwhile
    if following is None or (following.order, following.door) != (order, door) or following.attempt.is_ready():
        last = LastIndex(tr, layout, order, door=door, composed=True)
        index = yield from last.steps()
        if last.unmarked:
            mark_smart(tr, layout)
        following = of_queues[layout.prefix] = _Next(tr.get_versionstamp(), index + 1, order, door, layout)
    layout.subscribed, layout.sole = following.layout.subscribed, following.layout.sole
    index = following.index
    following.index += wanted
    give_up_to(tr, layout, following.index - 1, order)
    return index


def forget(tr: Transaction, layout: Layout) -> None:
    """Read the last index anew at the next call, as the transaction has cleared the queue."""
    _open.get(tr, {}).pop(layout.prefix, None)
