"""``fdbqueue queues``, ``fdbqueue register``, ``fdbqueue pause`` and ``fdbqueue resume``: whole queues."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import Enum, StrEnum
from itertools import islice
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.opening import Create, opened, opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Url, named, queue_of
from fdbqueue.cli.output import say, wants_table, write_lines
from fdbqueue.cli.troubling import troubles_shown
from fdbqueue.cli.values import encode_json
from fdbqueue.moves.pausing import Pause
from fdbqueue.moves.quotas import LEAST_BYTES, Quota
from fdbqueue.observe.troubles import listed, listed_these
from fdbqueue.reads.trouble import Troubles
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.states import STATES
from fdbqueue.verbs.queue import Queue
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
    within: Annotated[
        str | None, typer.Option("--within", metavar="NAME", help="Only queues below this name, or key tuple as JSON.")
    ] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Also find queues that are not registered, by reading the whole database.")
    ] = False,
    after: Annotated[
        str | None, typer.Option("--after", metavar="NAME", help="Go on behind this queue. Not with --scan.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Largest number. Default: all.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the queues of the database with their figures. Exits with 1 if there is none.

    A queue registers itself when something is enqueued into it. With --scan it also finds queues that an older version
    has written. `fdbqueue register` registers them. The states are those of plain items; "in sessions" counts the
    available items of sessions, with those in progress. Troubles of a queue are below it, the worst first.

    Example: fdbqueue queues --within shop
    """
    table = wants_table(as_json)
    below = None if within is None else named(within, "--within")
    if scan and after is not None:
        raise typer.BadParameter("--scan reads the whole database, from its first key on", param_hint="--after")
    behind = None if after is None else named(after, "--after")
    shown: list[tuple[QueueInfo, Troubles]] = []
    is_empty = True
    with opened(url) as db:
        if scan:
            there = islice(find_queues(db, within=below), limit)
            found = listed_these(db, (Registered(_prefix(info)) for info in there))
        else:
            found = listed(db, within=below, after=behind, limit=limit)
        for info, troubles in found:
            is_empty = False
            if table:
                shown.append((info, troubles))
            else:
                write_lines([encode_json({**_record(info), **troubles_shown(troubles)}).encode() + b"\n"])
    if is_empty:
        raise typer.Exit(errors.EMPTY)
    if table:
        write_lines([_table(shown, Console().width)])


def register(
    queue: QueueName,
    create: Create = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    on_codec: Annotated[
        OnCodec,
        typer.Option("--on-codec", help="If the queue has items, and another codec: fail, or replace a wrong one."),
    ] = OnCodec.fail,
) -> None:
    """Register a queue with a codec, so that `fdbqueue queues` lists it. Also corrects a registration.

    A registration says how items are read, and changes none.

    Example: fdbqueue register orders --codec msgpack
    """
    own = queue_of(queue, codec)
    with opened_queue(url, own, create=create, decodes=False) as db:
        own.register(db, on_codec=on_codec.value)
    say(f"{queue} is registered with the codec {codec.value}")


def pause(
    queue: QueueName,
    reason: Annotated[str, typer.Option("--reason", help="Why, for people who look at the queue.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who pauses it. Default: host:pid.")] = None,
    create: Create = False,
    url: Url = None,
) -> None:
    """Pause a queue: consumers find no items, and wait. Producers go on, and leased items can be acked.

    Example: fdbqueue pause orders --reason stocktaking
    """
    own = queue_of(queue)
    with opened_queue(url, own, create=create) as db:
        own.pause(db, reason=reason, by=by)
    say(f"{queue} is paused; fdbqueue resume ends that")


def resume(queue: QueueName, url: Url = None) -> None:
    """End the pause of a queue. Exits with 1 if it was not paused.

    Example: fdbqueue resume orders
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        was = own.paused(db)
        own.resume(db)
    if was is None:
        typer.echo(f"The queue {own.layout.describe()} was not paused.", err=True)
        raise typer.Exit(errors.EMPTY)
    say(f"{queue} goes on")


def rename(
    queue: QueueName,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new name, or key tuple as JSON.")],
    url: Url = None,
) -> None:
    """Rename a queue: items in all states, leases and records are under the new name then.

    It takes 6 seconds or more. During that time producers and consumers of both names get an error; afterwards those of
    the old name do. An interrupted command goes on when it is repeated.

    Example: fdbqueue rename orders sales
    """
    with opened(url) as db, noted("The rename may be unfinished. Run the same command again: it goes on."):
        report = rename_queue(db, named(queue), named(new))
    say(f"{queue} is {queue_text(Layout(named(new)).prefix)} now, with {counted(report.items, 'item')}")


def quota(
    queue: QueueName,
    items: Annotated[
        int | None, typer.Option("--items", "-n", min=1, help="Most items that the queue may have. Default: show it.")
    ] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", "-b", min=LEAST_BYTES, help="About the most bytes that it may have.")
    ] = None,
    when_full: Annotated[
        WhenFull | None,
        typer.Option(
            "--when-full",
            help="What an enqueue does then: fail, or wait for room. Default: refuse. Alone: keep the limits.",
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove the quota.")] = False,
    create: Create = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Limit how many items or bytes a queue may have, or show the limits. Exits with 1 if there are none to show.

    It counts items in all states. Concurrent producers may exceed it by the items that they enqueue at the same time.
    The number of bytes is an estimate. New limits replace the old ones.

    Example: fdbqueue quota orders --items 100000 --when-full wait
    """
    limited = items is not None or size is not None
    if none and limited:
        raise typer.BadParameter("give a number or --none, not both", param_hint="--items / --bytes / --none")
    if none and when_full is not None:
        raise typer.BadParameter("without a quota the queue is never full", param_hint="--when-full / --none")
    own = queue_of(queue)
    with opened_queue(url, own, create=create and limited) as db:
        if when_full is not None and not limited:
            items, size = _limits(db, own)
        if none or limited or when_full is not None:
            own.set_quota(db, items, size_bytes=size, when_full=(when_full or WhenFull.refuse).value)
        found = own.quota(db)
    if found is None:
        say(f"{queue} has no quota")
        raise typer.Exit(0 if none else errors.EMPTY)
    if wants_table(as_json):
        say(f"{queue}: {found.text}")
    else:
        write_lines([encode_json({"queue": queue, **quota_shown(found)}).encode() + b"\n"])


def _limits(db: Any, queue: Queue) -> tuple[int | None, int | None]:
    """Return the limits of a queue's quota, in items and in bytes.

    Raises:
        BadParameter: it has none.
    """
    found = queue.quota(db)
    if found is None:
        raise typer.BadParameter("the queue has no quota: give --items or --bytes, too", param_hint="--when-full")
    return found.items, found.size_bytes


def quota_shown(quota: Quota | None) -> dict[str, Any]:
    """Return a quota as a record has it; empty if there is none."""
    if quota is None:
        return {}
    shown = {"items": quota.items, "size_bytes": quota.size_bytes, "when_full": quota.when_full}
    return {"quota": {name: part for name, part in shown.items() if part is not None}}


def pause_shown(pause: Pause | None) -> dict[str, Any]:
    """Return a pause as a record has it; empty if there is none."""
    if pause is None:
        return {}
    return {"paused": {"by": pause.by, "reason": pause.reason, "since": pause.since}}


def _prefix(info: QueueInfo) -> bytes:
    return info.name if isinstance(info.name, bytes) else Layout(info.name).prefix


def _record(info: QueueInfo) -> dict[str, Any]:
    texts = {name: text for name in ("codec", "order", "policy") if (text := getattr(info, name))}
    path = {"path": list(info.path)} if info.path else {}
    since = {} if info.registered_at is None else {"registered_at": info.registered_at}
    figures = {name: getattr(info.stats, name) for name in (*STATES, "enqueued", "dequeued")}
    sessions = {} if info.sessions is None else {"sessions": asdict(info.sessions)}
    return {
        "queue": info.text,
        **texts,
        **path,
        **since,
        **figures,
        **sessions,
        **quota_shown(info.quota),
        **pause_shown(info.paused),
        **({"problem": info.problem} if info.problem else {}),
    }


def _table(listed: list[tuple[QueueInfo, Troubles]], width: int) -> bytes:
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
    within = "" if info.sessions is None else f"{info.sessions.available:,}"
    figures = (f"{getattr(info.stats, figure):,}" for figure in STATES)
    return info.codec or "not registered", info.order, *figures, within
