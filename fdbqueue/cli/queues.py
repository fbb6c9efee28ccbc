"""``fdbqueue queues``, ``register``, ``rename``, ``pause``, ``resume``, ``quota``, ``stats``, ``inspect``."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from enum import Enum, StrEnum
from itertools import islice
from textwrap import wrap
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import end, end_if, noted, refuse, refuse_if, tell
from fdbqueue.cli.input import JsonRecord
from fdbqueue.cli.looking import figures_record
from fdbqueue.cli.naming import order_of
from fdbqueue.cli.opening import (
    CodecName,
    beside_troubles,
    name_below,
    named,
    opened,
    opened_queue,
    registered_codec,
    registration,
)
from fdbqueue.cli.output import (
    item_record,
    present,
    print_json,
    print_pairs,
    print_shown,
    say,
    troubles_shown,
    wants_table,
    write_lines,
)
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.common.levels import levels_named
from fdbqueue.layers.sessions.reading.listing import BusySession, LargeSession, SessionsPage
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.observe.figures import read_these
from fdbqueue.observe.troubles import Listed, listed, listed_these
from fdbqueue.reads.inspecting import Inspection, SeenItem
from fdbqueue.reads.queue_rows import or_more
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text, session_json
from fdbqueue.stored.places import STATES
from fdbqueue.stored.settings import Pause, Quota
from fdbqueue.verbs.queues import QueueInfo, Registered, find_queues
from fdbqueue.verbs.renaming import rename as rename_queue


class WhenFull(StrEnum):
    """What an enqueue does in a full queue."""

    refuse = "refuse"
    wait = "wait"


class OnCodec(Enum):
    """What a registration does if the queue has items, and is registered with another codec."""

    fail = "fail"
    replace = "replace"


COLUMNS = ("codec", "order", *STATES, "in sessions")


def queues(
    within: str | None = None,
    scan: bool = False,
    after: str | None = None,
    limit: int | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """List the queues of the database with their figures. Exits with 1 if there is none.

    A queue registers itself when something is enqueued into it. With --scan it also finds queues that an older version
    has written. `fdbqueue register` registers them. The states are those of plain items; "in sessions" counts the
    items of sessions: available, in progress and delayed. Troubles of a queue are below it, the worst first.

    Args:
        scan: Also find queues that are not registered, by reading the whole database.
        after (NAME): Go on behind this queue. Not with --scan.
        limit (-n, min=1): Largest number. Default: all.

    Example: fdbqueue queues --within shop
    """
    table = wants_table(as_json)
    below = name_below(within, "--within")
    refuse_if(scan and after is not None, "--scan reads the whole database, from its first key on", "--after")
    behind = name_below(after, "--after")
    shown: list[Listed] = []
    is_empty = True
    with opened(url) as db:
        if scan:
            there = islice(find_queues(db, within=below), limit)
            found = listed_these(db, (Registered(_prefix(info)) for info in there))
        else:
            found = listed(db, within=below, after=behind, limit=limit)
        for one in found:
            is_empty = False
            if table:
                shown.append(one)
            else:
                print_json({**_record(one.info), **troubles_shown(one.troubles)})
    end_if(is_empty)
    if table:
        write_lines([_table(shown, Console().width)])


def register(
    queue: str,
    create: bool = False,
    url: str | None = None,
    codec: CodecName | None = None,
    on_codec: OnCodec = OnCodec.fail,
    max_attempts: str | None = None,
    backoff: str | None = None,
) -> None:
    """Register a queue, so that `fdbqueue queues` lists it. Also changes its policy, and corrects its codec.

    A registration changes no item. It says how items are read, and what becomes of those that fail. All programs
    and commands follow it within a second.

    Args:
        codec (-c, $FDBQUEUE_CODEC): The queue's codec. Default: the one that it is registered with, or json.
        on_codec: If the queue has items, and another codec: fail, or replace a wrong one.
        max_attempts (N, reads=attempts): Failed attempts after which an item is dead, or none. Default: as it is.
        backoff (SECONDS, reads=backoff): Seconds until the second attempt, doubled for each further one; or as
            `fdbqueue stats` prints it, such as 'constant(5)'; or none. Default: as it is.

    Example: fdbqueue register orders --max-attempts 5 --backoff 'exponential(first=1, jitter=0.1)'
    """
    policy: dict[str, Any] = {"max_attempts": max_attempts, "backoff": backoff}
    kept = codec is None and registered_codec(Layout(named(queue)), url)
    with opened_queue(url, queue, None if kept else codec or CodecName.json, create=create, decodes=False) as (db, own):
        own.register(db, on_codec=on_codec.value, **policy)
        about = registration(db, own.layout)
    say(f"{queue} is registered with the codec {about.codec}{about.policy and f', {about.policy}'}")


def pause(queue: str, reason: str = "", by: str | None = None, create: bool = False, url: str | None = None) -> None:
    """Pause a queue: consumers find no items, and wait. Producers go on, and leased items can be acked.

    Args:
        reason: Why, for people who look at the queue.
        by: Who pauses it. Default: host:pid.

    Example: fdbqueue pause orders --reason stocktaking
    """
    with opened_queue(url, queue, create=create) as (db, own):
        own.pause(db, reason=reason, by=by)
    say(f"{queue} is paused; fdbqueue resume ends that")


def resume(queue: str, url: str | None = None) -> None:
    """End the pause of a queue. Exits with 1 if it was not paused.

    Example: fdbqueue resume orders
    """
    with opened_queue(url, queue) as (db, own):
        was = own.paused(db)
        own.resume(db)
    if was is None:
        tell(f"The queue {own.layout.describe()} was not paused.")
        end()
    say(f"{queue} goes on")


def rename(queue: str, new: str, url: str | None = None) -> None:
    """Rename a queue: items in all states, leases and records are under the new name then.

    It takes 6 seconds or more. During that time producers and consumers of both names get an error; afterwards those of
    the old name do. An interrupted command goes on when it is repeated.

    Args:
        new (argument, NEW): The new name, or key tuple as JSON.

    Example: fdbqueue rename orders sales
    """
    with opened(url) as db, noted("The rename may be unfinished. Run the same command again: it goes on."):
        report = rename_queue(db, named(queue), named(new))
    say(f"{queue} is {queue_text(Layout(named(new)).prefix)} now, with {counted(report.items, 'item')}")


def quota(
    queue: str,
    items: int | None = None,
    size: int | None = None,
    when_full: WhenFull | None = None,
    none: bool = False,
    create: bool = False,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """Limit how many items or bytes a queue may have, or show the limits. Exits with 1 if there are none to show.

    It counts items in all states. Concurrent producers may exceed it by the items that they enqueue at the same time.
    The number of bytes is an estimate. New limits replace the old ones.

    Args:
        items (-n, min=1): Most items that the queue may have. Default: show it.
        size (as quota_bytes):
        when_full: What an enqueue does then: fail, or wait for room. Default: refuse. Alone: keep the limits.
        none: Remove the quota.

    Example: fdbqueue quota orders --items 100000 --when-full wait
    """
    limited = items is not None or size is not None
    refuse_if(none and limited, "give a number or --none, not both", "--items / --bytes / --none")
    refuse_if(none and when_full is not None, "without a quota the queue is never full", "--when-full / --none")
    with opened_queue(url, queue, create=create and limited) as (db, own):
        if when_full is not None and not limited:
            before = own.quota(db)
            if before is None:
                refuse("the queue has no quota: give --items or --bytes, too", "--when-full")
            items, size = before.items, before.size_bytes
        if none or limited or when_full is not None:
            own.set_quota(db, items, size_bytes=size, when_full=(when_full or WhenFull.refuse).value)
        found = own.quota(db)
    if found is None:
        say(f"{queue} has no quota")
        end(0 if none else errors.EMPTY)
    if wants_table(as_json):
        say(f"{queue}: {found.text}")
    else:
        print_json({"queue": queue, **quota_shown(found)})


def quota_shown(quota: Quota | None) -> JsonRecord:
    """Return a quota as a record has it; empty if there is none."""
    if quota is None:
        return {}
    return {"quota": present({"items": quota.items, "size_bytes": quota.size_bytes, "when_full": quota.when_full})}


def pause_shown(pause: Pause | None) -> JsonRecord:
    """Return a pause as a record has it; empty if there is none."""
    if pause is None:
        return {}
    return {"paused": {"by": pause.by, "reason": pause.reason, "since": pause.since}}


def _prefix(info: QueueInfo) -> bytes:
    return info.name if isinstance(info.name, bytes) else Layout(info.name).prefix


def _record(info: QueueInfo) -> JsonRecord:
    own = {name: getattr(info, name) for name in ("codec", "order", "policy")}
    own |= {"path": list(info.path) if info.path else None, "registered_at": info.registered_at}
    figures = {name: getattr(info.stats, name) for name in (*STATES, "enqueued", "dequeued")}
    sessions = None if info.sessions is None else asdict(info.sessions)
    settings = {**quota_shown(info.quota), **pause_shown(info.paused)}
    return {
        "queue": info.text,
        **present(own),
        **figures,
        **present({"sessions": sessions}),
        **settings,
        **present({"problem": info.problem}),
    }


def _table(listed: list[Listed], width: int) -> bytes:
    """Return queues as a table. A name that does not fit has a line of its own, as in `df`; so has each trouble."""
    rows = [_figures(info) for info, _ in listed]
    shown = [at for at, column in enumerate(COLUMNS) if column in ("codec", *STATES) or any(row[at] for row in rows)]
    heads = [COLUMNS[at] for at in shown]
    cells = [[row[at] for at in shown] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    room = max(len("queue"), width - sum(widths) - 2 * len(widths))
    names = [_name(info) for info, _ in listed]
    first = max((cell_len(one) for one in ("queue", *names) if cell_len(one) <= room), default=0)
    lines = [_line("queue", heads, heads, widths, first)]
    for (info, troubles), name, row in zip(listed, names, cells, strict=True):
        if cell_len(name) > first:
            lines.append(name)
        lines.append(_line("" if cell_len(name) > first else name, row, heads, widths, first))
        about = [f"{one.severity}: {one.text}{one.told_since}" for one in troubles]
        about += [] if info.quota is None else [f"quota: {info.quota.text}"]
        for told in about:
            lines += wrap(told, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return "".join(f"{line}\n" for line in lines).encode(sys.stdout.encoding, sys.stdout.errors or "strict")


def _line(name: str, row: list[str], heads: list[str], widths: list[int], first: int) -> str:
    cells = [
        one.ljust(width) if head in ("codec", "order") else one.rjust(width)
        for one, head, width in zip(row, heads, widths, strict=True)
    ]
    return "  ".join([name + " " * (first - cell_len(name)), *cells]).rstrip()


def _name(info: QueueInfo) -> str:
    text = "/".join(info.path) if info.path else info.text
    return text if text.isprintable() else repr(text)


def _figures(info: QueueInfo) -> tuple[str, ...]:
    within = "" if info.sessions is None else f"{info.sessions.available + info.sessions.delayed:,}"
    figures = (f"{getattr(info.stats, figure):,}" for figure in STATES)
    return info.codec or "not registered", info.order, *figures, within


WORDS = {
    "oldest_age_s": "first item waits, seconds",
    "oldest_age_at_least_s": "first item waits at least, seconds",
    "overdue": "timers overdue",
    "requests": "waiting requests",
    "wanted": "items that they want",
    "policy": "policy for failed items",
    "outcomes": "results kept",
    "blob_bytes": "bytes of blobs",
    "uploads": "uploads under way",
}
"""What a terminal calls a number whose name does not say it."""


def stats(queue: str, zeros: bool = False, url: str | None = None, as_json: bool = False) -> None:
    """Print the number of items in each state, totals, the age of the first item, and the waiting processes.

    A terminal shows the rows that are not 0, and the number of available items. JSON has all of them.

    For a queue with an order it prints the order's name and the number of available items of each level. It counts up
    to 1,000 subscriptions. For a queue with blobs it prints how many there are, their size, and the uploads under way.
    The numbers of a queue's sessions, and of the items in them, begin with "sessions_".

    Args:
        zeros (--all, -a): Print also the rows that are 0.

    Example: fdbqueue stats orders
    """
    with opened_queue(url, queue) as (db, own), beside_troubles(db, own):
        [one] = read_these(db, [Registered(own.layout.prefix)], ages={})
        if one.rows.uncounted is not None:
            raise one.rows.uncounted
        order, subscribed, blobs = order_of(db, own), Subscriptions(own).count(db), Blobs(own).stats(db)
        paused, quota, counts = one.rows.paused, one.rows.quota, one.rows.levels
        policy = registration(db, own.layout).policy
    found: JsonRecord = {**asdict(one.rows.stats), **figures_record(one), **present({"policy": policy})}
    if order is not None:
        levels = levels_named(order)
        ranks = sorted(counts) if levels is None else range(levels.count)
        found |= {"order": order, "levels": {str(rank): counts.get(rank, 0) for rank in ranks}}
    if subscribed:
        found["subscriptions"] = subscribed
    if blobs.blobs or blobs.uploads:
        found |= {"blobs": blobs.blobs, "blob_bytes": blobs.size_bytes}
        found |= {"uploads": blobs.uploads, "overdue_uploads": blobs.overdue}
    if one.sessions is not None:
        found |= {f"sessions_{name}": number for name, number in asdict(one.sessions).items()}
    if wants_table(as_json):
        found |= {"overdue": f"{one.overdue:,} {or_more(one.overdue)}".strip()} if one.overdue else {}
        found |= {"quota": quota.text} if quota else {}
        found |= {"paused": paused.text} if paused else {}
        by_rank = found.pop("levels", {})
        rows = {**found, **{f"level {rank}": there for rank, there in by_rank.items()}}
        print_pairs(queue, {name: row for name, row in rows.items() if row or zeros or name == "available"}, WORDS)
    else:
        print_json({"queue": queue, **found, **quota_shown(quota), **pause_shown(paused)})


def inspect(
    queue: str, limit: int = 5, url: str | None = None, codec: CodecName = CodecName.json, as_json: bool = False
) -> None:
    """Print a page about a queue: its troubles, its states, the ages of items, who has leases, why items died.

    It reads as much of a large queue as of a small one. Ages come from a sample. An item that a plain enqueue has put
    there has no age. Of sessions it prints the totals, who works on what, and the largest of those that it
    counted; `fdbqueue sessions` lists all.

    Args:
        limit (-n, min=1): Number of items to show at each end.

    Example: fdbqueue inspect orders
    """
    with opened_queue(url, queue, codec) as (db, source), beside_troubles(db, source):
        page = source.inspect(db, limit=limit)
    if wants_table(as_json):
        shown = replace(page, queue=f"{queue_text(source.layout.prefix)} ({source.codec.name})")
        print_shown(Text(shown.text(Console().width)))
    else:
        print_json({"queue": queue, **_page(page, codec)})


def _page(page: Inspection, codec: CodecName) -> JsonRecord:
    return {
        "at": page.at,
        **troubles_shown(page.troubles),
        "order": page.order,
        **present({"policy": page.policy}),
        "states": asdict(page.stats),
        **quota_shown(page.quota),
        **pause_shown(page.paused),
        "overdue": page.overdue,
        "next_due_at": page.next_due_at,
        "requests": page.waiting,
        "first": [_item(one, codec) for one in page.head],
        "last": [_item(one, codec) for one in page.tail],
        "ages": page.age_counts,
        "ages_sampled": page.sampled,
        "holders": [asdict(one) for one in page.holders],
        "leased_read": page.leased_read,
        "errors": [asdict(one) for one in page.errors],
        "other_errors": page.other_errors,
        "dead_read": page.dead_read,
        **({} if page.sessions is None else {"sessions": _sessions(page.sessions)}),
    }


def _sessions(page: SessionsPage) -> JsonRecord:
    def named(one: BusySession | LargeSession) -> JsonRecord:
        return {**asdict(one), "session": session_json(one.session)}

    return {**asdict(page), "busy": [*map(named, page.busy)], "largest": [*map(named, page.largest)]}


def _item(one: SeenItem, codec: CodecName) -> JsonRecord:
    return item_record(one, codec, f"item {'note' if one.note else 'value'} age_s attempt error? rank? headers?")
