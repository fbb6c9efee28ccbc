"""``fdbqueue clear``."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from fdbqueue.base.reprs import counted
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import QueueName, Url, Yes, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.where import confirm_removal
from fdbqueue.engine.steps import run
from fdbqueue.errors import FormatError
from fdbqueue.stored.counters import read_stats


def clear(
    queue: QueueName,
    url: Url = None,
    yes: Yes = False,
) -> None:
    """Remove all items and everything else that the queue owns, including its counters. Asks first.

    Example: fdbqueue clear orders
    """
    cleared = queue_of(queue)
    with opened_queue(url, cleared, renamed=True) as db:
        items = "items"
        with suppress(FormatError):  # a counter that can't be read: a clear mends that
            held = run(cleared.read(db, partial(read_stats, layout=cleared.layout)))  # also of an old name
            items = counted(held.available + held.leased + held.delayed + held.dead + held.claimed, "item")
        confirm_removal(f"the {items} of {queue} and all that belongs to it", yes=yes)
        cleared.clear(db)
    say(f"{items} removed")
