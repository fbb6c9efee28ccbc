"""``fdbqueue inspect``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fdbqueue.cli.known import beside_troubles
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, queue_of
from fdbqueue.cli.output import headers_shown, rank_of, wants_table, write_lines, writing
from fdbqueue.cli.queues import pause_shown, quota_shown
from fdbqueue.cli.tables import print_shown
from fdbqueue.cli.troubling import troubles_shown
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.layers.sessions.reading.page import BusySession, LargeSession, SessionsPage
from fdbqueue.reads.inspecting import Inspection, SeenItem
from fdbqueue.stored.names import queue_text, session_json


def inspect(
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of items to show at each end.")] = 5,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Print a page about a queue: its troubles, its states, the ages of items, who has leases, why items died.

    It reads as much of a large queue as of a small one. Ages come from a sample. An item that a plain enqueue has put
    there has no age. Of sessions it prints the totals, who works on what, and the largest of those that it
    counted; `fdbqueue sessions` lists all.

    Example: fdbqueue inspect orders
    """
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db, beside_troubles(db, source):
        page = source.inspect(db, limit=limit)
    if wants_table(as_json):
        shown = replace(page, queue=f"{queue_text(source.layout.prefix)} ({source.codec.name})")
        print_shown(Text(shown.text(Console().width)))
    else:
        write_lines([encode_json({"queue": queue, **_record(page, codec)}).encode() + b"\n"])


def _record(page: Inspection, codec: CodecName) -> dict[str, Any]:
    return {
        "at": page.at,
        **troubles_shown(page.troubles),
        "order": page.order,
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


def _sessions(page: SessionsPage) -> dict[str, Any]:
    def named(one: BusySession | LargeSession) -> dict[str, Any]:
        return {**asdict(one), "session": session_json(one.session)}

    return {**asdict(page), "busy": [*map(named, page.busy)], "largest": [*map(named, page.largest)]}


def _item(one: SeenItem, codec: CodecName) -> dict[str, Any]:
    with writing(one.position):
        value = {"note": one.note} if one.note else {"value": to_json(one.value, codec)}
    own = {"item": one.position.text, **value, "age_s": one.age_s, "attempt": one.attempt}
    own |= {"error": one.error} if one.error else {}
    return {**own, **rank_of(one.position), **headers_shown(one.headers)}
