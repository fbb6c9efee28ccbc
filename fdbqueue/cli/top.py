"""``fdbqueue top``."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

import fdbqueue
from fdbqueue.base.reprs import sparkline
from fdbqueue.cli.opening import check_known, opened
from fdbqueue.cli.options import AsJson, Url, queue_of
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.tables import TableColumn, line_of, table_of
from fdbqueue.cli.troubling import trouble_record, troubles_shown, troubles_text
from fdbqueue.engine.steps import run
from fdbqueue.layers.sessions import SessionStats
from fdbqueue.layers.staged import StagedQueue, StagedStats
from fdbqueue.observe.figures import read_these
from fdbqueue.observe.judging import GRACE_SECONDS
from fdbqueue.reads.trouble import Troubles, worst_first
from fdbqueue.verbs.queues import Registered

FLOWS = ("enqueued", "dequeued")
DEPTHS = 16
"""How many of its last reads a terminal shows as a line of bars."""
COLUMNS = {
    **{state: state for state in ("available", "leased", "claimed", "delayed", "dead", "overdue")},
    "in/s": "enqueued_per_s",
    "out/s": "dequeued_per_s",
    "age s": "oldest_age_at_least_s",
    "wait": "requests",
}
DEPTH = "depth"
WIDE_COLUMNS = 110
"""A narrower terminal would cut off the names of queues."""


def top(
    queues: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]...", help="Names, or key tuples as JSON.")
    ] = None,
    interval: Annotated[float, typer.Option("--interval", "-i", min=0.1, help="Seconds between two reads.")] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Number of reads. Default: no end.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the items, rates, waiting processes and troubles of queues. Repeats until Ctrl-C.

    Without a queue it shows what is wrong with all of them, as `fdbqueue troubles`.

    The items of sessions are counted with the others. Those in progress are the leased ones.

    On a terminal, "depth" draws the available items of the last reads, from 0 to their maximum.

    If an item has no stored time, its age is a lower bound: the time since this command first counted it.

    Example: fdbqueue top orders invoices
    """
    looks = itertools.count() if count is None else range(count)
    with opened(url) as db:
        if not queues:
            _show_troubles(db, looks, interval, as_json)
            return
        watched = {name: StagedQueue(queue_of(name)) for name in queues}
        for staged in watched.values():
            own = staged.leases.queue
            run(own.read(db, partial(check_known, layout=own.layout)))
        shown = _looks(db, watched, looks, interval)
        if not wants_table(as_json):
            for look, told in shown:
                for name, row in look.items():
                    write_lines([line_of({"queue": name, **row, **troubles_shown(told[name])})])
            return
        with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
            depths: dict[str, list[float]] = {name: [] for name in watched}
            for look, told in shown:
                for name, row in look.items():
                    depths[name] = [*depths[name], row["available"] or 0][-DEPTHS:]
                table = _table(look, depths, live.console.width)
                every = worst_first(chain.from_iterable(told.values()))
                live.update(Group(troubles_text(every), table), refresh=True)


def _show_troubles(db: Any, looks: Iterable[int], interval: float, as_json: bool) -> None:
    """Show the troubles of all queues, again and again."""

    def read() -> Iterator[Troubles]:
        for look in looks:
            if look:
                time.sleep(interval)
            yield fdbqueue.troubles(db)

    if not wants_table(as_json):
        for found in read():
            write_lines([line_of(trouble_record(one)) for one in found])
        return
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        for found in read():
            live.update(troubles_text(found), refresh=True)


def _looks(
    db: Any, watched: dict[str, StagedQueue], looks: Any, interval: float
) -> Iterator[tuple[dict[str, dict[str, float | int | None]], dict[str, Troubles]]]:
    """Yield the rows of queues, and their troubles, by their names."""
    chosen = [Registered(staged.leases.queue.layout.prefix) for staged in watched.values()]
    before: dict[str, StagedStats] = {}
    since = time.monotonic()
    for look in looks:
        if look:
            time.sleep(interval)
        read = dict(zip(watched, read_these(db, chosen, grace=GRACE_SECONDS), strict=True))
        now = {name: _stats(db, staged, read[name].sessions) for name, staged in watched.items()}
        passed, since = time.monotonic() - since, time.monotonic()
        told = {name: worst_first(one.troubles) for name, one in read.items()}
        yield {name: _row(stats, before.get(name), passed) for name, stats in now.items()}, told
        before = now


def _stats(db: Any, staged: StagedQueue, sessions: SessionStats | None) -> StagedStats:
    """Return the numbers of a queue, with the items of its sessions."""
    stats = staged.stats(db)
    if sessions is None:
        return stats
    own, busy = stats.items, min(sessions.busy, sessions.available)
    items = replace(
        own,
        available=own.available + sessions.available - busy,
        leased=own.leased + busy,
        delayed=own.delayed + sessions.delayed,
        dead=own.dead + sessions.dead,
        enqueued=own.enqueued + sessions.enqueued,
        dequeued=own.dequeued + sessions.dequeued,
    )
    return replace(stats, items=items)


def _row(stats: StagedStats, before: StagedStats | None, passed: float) -> dict[str, float | int | None]:
    row: dict[str, float | int | None] = {**asdict(stats.items), "requests": stats.requests, "wanted": stats.wanted}
    for flow in FLOWS:
        change = None if before is None else getattr(stats.items, flow) - getattr(before.items, flow)
        row[f"{flow}_per_s"] = None if change is None else change / passed
    return row


def _table(look: dict[str, dict[str, float | int | None]], depths: dict[str, list[float]], width: int) -> Table:
    """Return the table: a row for each queue, or a column on a narrow terminal."""

    def cell(name: str, head: str) -> str:
        return sparkline(depths[name]) if head == DEPTH else _number(look[name][COLUMNS[head]])

    heads = [*COLUMNS, DEPTH]
    if width < WIDE_COLUMNS:
        names = [TableColumn(name, partial(cell, name), number=True) for name in look]
        return table_of(heads, [TableColumn("queue", str, whole=True), *names], live=True)
    columns = [TableColumn(head, partial(cell, head=head), number=head != DEPTH, whole=True) for head in heads]
    return table_of(look, [TableColumn("queue", str, least=8), *columns], live=True)


def _number(number: float | int | None) -> str:
    if number is None:
        return ""
    return f"{number:,.1f}" if isinstance(number, float) and number < 100 else f"{number:,.0f}"
