"""``fdbqueue stats``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fdbqueue.cli.known import beside_troubles
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.ordering import order_stats
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.queues import pause_shown, quota_shown
from fdbqueue.cli.sessioning import session_stats
from fdbqueue.cli.tables import print_pairs
from fdbqueue.cli.values import encode_json
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions

WORDS = {
    "oldest_age_s": "first item waits, seconds",
    "oldest_age_at_least_s": "first item waits at least, seconds",
    "overdue": "timers overdue",
    "requests": "waiting requests",
    "wanted": "items that they want",
    "outcomes": "results kept",
    "blob_bytes": "bytes of blobs",
    "uploads": "uploads under way",
}
"""What a terminal calls a number whose name does not say it."""


def stats(
    queue: QueueName,
    zeros: Annotated[bool, typer.Option("--all", "-a", help="Print also the rows that are 0.")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Print the number of items in each state, totals, the age of the first item, and the waiting processes.

    A terminal shows the rows that are not 0, and the number of available items. JSON has all of them.

    For a queue with an order it prints the order's name and the number of available items of each level. It counts up
    to 1,000 subscriptions. For a queue with blobs it prints how many there are, their size, and the uploads under way.
    The numbers of a queue's sessions, and of the items in them, begin with "sessions_".

    Example: fdbqueue stats orders
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db, beside_troubles(db, own):
        staged = StagedQueue(own).stats(db)
        paused, quota = own.paused(db), own.quota(db)
        order = order_stats(db, own)
        subscribed = Subscriptions(own).count(db)
        blobs = Blobs(own).stats(db)
        sessions = session_stats(db, own)
    found = {**asdict(staged.items), "requests": staged.requests, "wanted": staged.wanted, **order}
    if subscribed:
        found["subscriptions"] = subscribed
    if blobs.blobs or blobs.uploads:
        found |= {"blobs": blobs.blobs, "blob_bytes": blobs.size_bytes}
        found |= {"uploads": blobs.uploads, "overdue_uploads": blobs.overdue}
    if sessions is not None:
        found |= {f"sessions_{name}": number for name, number in asdict(sessions).items()}
    if wants_table(as_json):
        found |= {"quota": quota.text} if quota else {}
        found |= {"paused": paused.text} if paused else {}
        levels = found.pop("levels", {})
        rows = {**found, **{f"level {rank}": there for rank, there in levels.items()}}
        print_pairs(queue, {name: row for name, row in rows.items() if row or zeros or name == "available"}, WORDS)
    else:
        write_lines(
            [encode_json({"queue": queue, **found, **quota_shown(quota), **pause_shown(paused)}).encode() + b"\n"]
        )
