"""``fdbqueue queues``, ``fdbqueue register``, ``fdbqueue pause`` and ``fdbqueue resume``: whole queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.cli import errors
from fdbqueue.cli.known import check_known
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, named, queue_of
from fdbqueue.cli.output import print_shown, say, wants_table, write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.pausing import Pause
from fdbqueue.queues import QueueInfo, find_queues
from fdbqueue.queues import queues as registered_queues

FIGURES = ("available", "leased", "delayed", "dead")


def queues(
    within: Annotated[
        str | None, typer.Option("--within", metavar="NAME", help="Only queues below this name, or key tuple as JSON.")
    ] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Also find queues that are not registered, by reading the whole database.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the queues of the database with their figures. Exits with 1 if there is none.

    A queue registers itself when something is enqueued into it. With --scan it also finds queues that an older version
    has written. `fdbqueue register` registers them. The states are those of plain items; "in sessions" counts the
    available items of sessions, with those in progress.

    Example: fdbqueue queues --within shop
    """
    table = wants_table(as_json)
    below = None if within is None else named(within)
    found: Iterable[QueueInfo]
    printed = 0
    shown = Table(header_style="bold")
    for column in ("queue", "codec", "order", *FIGURES, "in sessions", "paused"):
        shown.add_column(column, overflow="fold", justify="right" if column in (*FIGURES, "in sessions") else "left")
    with opened(url) as db:
        found = find_queues(db, within=below) if scan else registered_queues(db, within=below)
        for info in found:
            printed += 1
            if table:
                shown.add_row(*_cells(info))
            else:
                write_lines([encode_json(_record(info)).encode() + b"\n"])
    if table and printed:
        if not any(map(str, shown.columns[-2].cells)):
            del shown.columns[-2]
        print_shown(shown)
    if not printed:
        raise typer.Exit(errors.EMPTY)


def register(queue: QueueName, url: Url = None, codec: Codec = CodecName.json) -> None:
    """Register a queue with a codec, so that `fdbqueue queues` lists it. Also corrects a registration.

    Example: fdbqueue register orders --codec msgpack
    """
    with opened(url) as db:
        own = queue_of(queue, codec)
        check_known(db, own)
        own.register(db)
    say(f"{queue} is registered with the codec {codec.value}")


def pause(
    queue: QueueName,
    reason: Annotated[str, typer.Option("--reason", help="Why, for people who look at the queue.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who pauses it. Default: host:pid.")] = None,
    url: Url = None,
) -> None:
    """Pause a queue: consumers find no items, and wait. Producers go on, and leased items can be acked.

    Example: fdbqueue pause orders --reason stocktaking
    """
    with opened(url) as db:
        check_known(db, queue_of(queue))
        queue_of(queue).pause(db, reason=reason, by=by)
    say(f"{queue} is paused; fdbqueue resume ends that")


def resume(queue: QueueName, url: Url = None) -> None:
    """End the pause of a queue. Exits with 1 if it was not paused.

    Example: fdbqueue resume orders
    """
    with opened(url) as db:
        own = queue_of(queue)
        check_known(db, own)
        was = own.paused(db)
        own.resume(db)
    if was is None:
        raise typer.Exit(errors.EMPTY)
    say(f"{queue} goes on")


def pause_shown(pause: Pause | None) -> dict[str, Any]:
    """Return a pause as a record has it; empty if there is none."""
    if pause is None:
        return {}
    return {"paused": {"by": pause.by, "reason": pause.reason, "since": pause.since}}


def pause_told(pause: Pause | None) -> str:
    """Return a pause for a cell of a table."""
    if pause is None:
        return ""
    since = datetime.fromtimestamp(pause.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"by {pause.by} since {since}" + (f": {pause.reason}" if pause.reason else "")


def _record(info: QueueInfo) -> dict[str, Any]:
    texts = {name: text for name in ("codec", "order", "policy") if (text := getattr(info, name))}
    path = {"path": list(info.path)} if info.path else {}
    since = {} if info.registered_at is None else {"registered_at": info.registered_at}
    figures = {name: getattr(info.stats, name) for name in (*FIGURES, "enqueued", "dequeued")}
    sessions = {} if info.sessions is None else {"sessions": asdict(info.sessions)}
    return {"queue": info.text, **texts, **path, **since, **figures, **sessions, **pause_shown(info.paused)}


def _cells(info: QueueInfo) -> tuple[str | Text, ...]:
    name = "/".join(info.path) if info.path else info.text
    codec = info.codec or "not registered"
    figures = [f"{getattr(info.stats, figure):,}" for figure in FIGURES]
    within = "" if info.sessions is None else f"{info.sessions.available:,}"
    return Text(name), codec, Text(info.order), *figures, within, Text(pause_told(info.paused))
