"""`fdbqueue.check`: the check of a queue together with what every layer keeps there."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, cast

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.blocking import blocking
from fdbqueue.engine.steps import Steps, rows, run
from fdbqueue.engine.verb import verb
from fdbqueue.reads.check import CheckReport, check_queue, checked, foreign_keys, read_in
from fdbqueue.reads.queue_rows import CheckPart, check_parts
from fdbqueue.stored.layout import Layout
from fdbqueue.verbs.queue import Queue

REMOVED_AT_ONCE = 500
"""How many foreign keys one transaction removes."""


class _Check:
    """Holds the verb that checks a queue."""

    def __repr__(self) -> str:
        return "fdbqueue"

    @verb
    def check(
        self, tr: Transaction | Database, queue: Queue[Any], *, remove_foreign: bool = False
    ) -> Steps[CheckReport]:
        """Read everything that a queue owns and compare: items and counters, and the keys of all layers.

        It knows leases, requests, subscriptions, streams, sessions, schedules and smart checks. Of a smart queue
        it checks what needs none of the program's own types; `SmartQueue.check` does the rest. A layer of your own adds
        its part by `fdbqueue.lowlevel.add_to_check`. Like each `check`, it has an awaitable form, `check.aio`, which
        reads in a thread.

        Args:
            tr: a transaction, or a database.
            queue: the queue.
            remove_foreign: whether to remove all keys below the queue's name that fdbqueue did not write, first. Do
                this with the newest version of the library that uses the queue: a newer one may have written them.
                Damaged records of sessions, and damaged pointers in their line, go too if they belong to no item.
                Keys of a queue whose name is below this one stay, and so do keys that a layer of your own names by
                `CheckPart.owns` in this process.

        Raises:
            TypeError: it is no `Queue`. QueueRenamed: it has another name now.

        *Conflicts:* none, it reads by snapshot. With `remove_foreign`, with a transaction that writes such a key.
        *Cost:* as `Queue.check`, also for its sessions; memory for the keys of timers. With `remove_foreign` it reads
        all keys once more.

        >>> import fdbqueue
        >>> orders = fdbqueue.Queue("orders", codec="str")
        >>> with fdbqueue.open("memory:") as db:
        ...     position = orders.enqueue(db, "teapot")
        ...     report = fdbqueue.check(db, orders)
        >>> report
        CheckReport(items=1, problems=(), counted=True)
        >>> "timers" in report.looked_at
        True
        """
        if not isinstance(cast(object, queue), Queue):
            raise TypeError(f"check is of a Queue, as in check(db, Queue('orders')), not of {queue!r}.")

        def look() -> CheckReport:
            removed = _remove_foreign(tr, queue) if remove_foreign else 0
            return replace(checked(tr, queue.layout, partial(_check, queue=queue)), removed=removed)

        return blocking(look)


check = _Check().check


def _check(tr: Transaction | Database, queue: Queue[Any]) -> CheckReport:
    plain = copy.copy(queue)  # layers are made of it for this check alone
    parts = check_parts.all().values()
    report = check_queue(tr, queue.layout, *(partial(part.make, tr, plain) for part in parts))
    looked_at = [*report.looked_at, *(name for part in parts for name in part.looks_at)]
    left = read_in(tr, partial(_left_out, layout=queue.layout, parts=list(parts)))
    return replace(report, looked_at=tuple(looked_at), not_looked_at=tuple(left))


def _remove_foreign(tr: Transaction | Database, queue: Queue[Any]) -> int:
    """Remove foreign keys, some in each transaction, and return how many."""

    async def remove(tr: Transaction, keys: list[bytes]) -> None:
        for key in keys:
            tr.add_read_conflict_key(key)
            tr.clear(key)

    found, removed = foreign_keys(tr, queue.layout), 0
    while keys := list(islice(found, REMOVED_AT_ONCE)):
        run(queue.transact(tr, partial(remove, keys=keys)))
        removed += len(keys)
    for part in check_parts.all().values():
        removed += 0 if part.removes is None else part.removes(tr, queue)
    return removed


async def _left_out(tr: Transaction, layout: Layout, parts: list[CheckPart]) -> list[str]:
    """Return the names of what the queue has and no part looks at, by snapshot."""
    left = []
    for name, of in (one for part in parts for one in part.leaves_out):
        span = of(layout).range()
        if await rows(tr.snapshot, span.start, span.stop, limit=1):
            left.append(name)
    return left
