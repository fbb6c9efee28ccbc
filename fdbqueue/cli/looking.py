"""``fdbqueue troubles``, ``health``, ``check`` and ``top``: what is wrong, and how it goes."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

import fdbqueue
from fdbqueue.base.reprs import counted, sparkline
from fdbqueue.cli.errors import end_if, refuse_if, refused
from fdbqueue.cli.input import JsonRecord
from fdbqueue.cli.opening import check_known, name_below, opened, opened_queue, queue_of
from fdbqueue.cli.output import (
    TableColumn,
    line_of,
    next_step,
    print_json,
    print_pairs,
    print_troubles,
    table_of,
    trouble_record,
    troubles_shown,
    troubles_text,
    wants_table,
    write_lines,
)
from fdbqueue.engine.api import Database
from fdbqueue.engine.embedded.store.disk.data_file import Damage, check_pages
from fdbqueue.engine.embedded.store.disk.layout import DATA
from fdbqueue.engine.keys import below
from fdbqueue.engine.steps import run
from fdbqueue.observe.figures import read_these
from fdbqueue.observe.judging import QueueFigures
from fdbqueue.reads.queue_rows import ITEM_STATES, with_sessions
from fdbqueue.reads.remembering import Ages, History, Look
from fdbqueue.reads.trouble import Troubles, worst_first
from fdbqueue.stored.layout import CATALOGUE
from fdbqueue.stored.names import queue_text
from fdbqueue.verbs.queues import Registered


def troubles(
    queue: str | None = None,
    within: str | None = None,
    max_age: float | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """List the troubles of all queues, the worst first, each with the next command.

    A problem needs somebody now. A warning wants a look. A note tells of a pause, or of something that ends soon.
    Exits with 1 if there is a problem.

    Args:
        queue (argument, [QUEUE]): Only this queue: its name, or key tuple as JSON.

    Example: fdbqueue troubles
    """
    refuse_if(queue is not None and within is not None, "give a queue or --within, and not both", "--within")
    with opened(url) as db:
        if queue is not None:
            own = queue_of(queue)
            run(own.read(db, partial(check_known, layout=own.layout)))
        one, below = name_below(queue, "QUEUE"), name_below(within, "--within")
        found = fdbqueue.troubles(db, one, within=below, max_age=max_age)
    if wants_table(as_json):
        print_troubles(found)
    else:
        write_lines([line_of(trouble_record(trouble)) for trouble in found])
    end_if(found.worst == "problem")


FIGURES = {
    "commit_s": "a commit took, seconds",
    "ahead_s": "times are ahead, seconds",
    "queues": "queues",
    "oldest_age_s": "oldest first item, seconds",
    "oldest_queue": "which is of the queue",
    "version": "version of fdbqueue",
}
"""What a terminal shows beside the troubles, and its words."""


def health(
    max_age: float | None = None,
    max_commit: float = 2.0,
    max_skew: float = 5.0,
    patience: float = 5.0,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """Look whether the database answers, and whether its queues are well. For probes, and for people at night.

    Exits with 0 if all is well, with 1 if there is a problem, and with 3 if the database does not answer. The troubles
    are those of `fdbqueue troubles`, and a slow commit.

    Only problems change the exit code. Warnings, such as dead letters, and notes, such as pauses, are printed.

    Args:
        max_commit (min=0.001): Longest time of a commit, in seconds.
        max_skew (min=0.0): How far an item's time may be ahead of this clock, in seconds.
        patience (min=0.1): How many seconds the database may take for an answer.

    Example: fdbqueue health --max-age 600
    """
    from fdbqueue.observe.figures import Wanted
    from fdbqueue.observe.health import Limits, check_health

    with refused("--include / --exclude"):
        wanted = Wanted(include or (), exclude or ())
    with opened(url, patience=patience) as db:
        report = check_health(db, wanted=wanted, limits=Limits(max_age, max_commit, max_skew))
    if wants_table(as_json):
        print_troubles(report.troubles, report.unmatched)
        shown = {name: value for name, value in report.record().items() if name in FIGURES and value not in (None, "")}
        print_pairs("health", {"well": "yes" if report.ok else "no", **shown}, FIGURES)
    else:
        steps = [next_step(one) for one in report.troubles if one.severity == "problem"]
        told = {"troubles": [trouble_record(one) for one in report.troubles]}
        print_json({**report.record(), **told, "problems": [*report.unmatched, *steps]})
    end_if(not report.ok)


ALL = "a part that all queues use"
UNREGISTERED = "keys of no queue that is registered"


def check_file(folder: Path, *, as_json: bool) -> None:
    """Print what is damaged in the data file of a folder, and end the command with 1 if anything is."""
    queues: list[bytes] = []

    def see(key: bytes) -> None:
        prefix = key.removeprefix(CATALOGUE)
        if prefix != key:
            queues.append(prefix)

    report = check_pages(os.path.abspath(folder.expanduser()), see)
    told = [(damage, harmed(damage, queues)) for damage in report.damages]
    if wants_table(as_json):
        console = Console(highlight=False)
        for damage, names in told:
            what = f"page {damage.page} of {damage.database.decode(errors='replace')}: {damage.what}."
            console.print(f"[red]✗[/red] {escape(what)} Affected: {escape(', '.join(names))}.")
        if not told:
            console.print(f"[green]✓[/green] {counted(report.pages, 'page')}, {counted(report.rows, 'key')}, all well")
            if report.checked is False:
                console.print(
                    "This folder's rows have no checksums: a value that was changed in its place is not found."
                )
        elif all(damage.is_row for damage in report.damages):
            console.print("A read of such a row raises an error. Restore a backup.")
        else:
            console.print("Do not open this folder: a damaged page ends the process that reads it. Restore a backup.")
    else:
        damages = [
            {"page": damage.page, "database": damage.database.decode(errors="replace"), "what": damage.what}
            | {"begin": damage.begin.hex(), "end": None if damage.end is None else damage.end.hex(), "affected": names}
            for damage, names in told
        ]
        answer = {"folder": str(folder), "ok": not told, "pages": report.pages, "keys": report.rows}
        answer |= {"checksums": report.checked, "damaged": damages}
        write_lines([msgspec.json.encode(answer) + b"\n"])
    end_if(told)


def harmed(damage: Damage, queues: list[bytes]) -> list[str]:
    """Return the names of the queues, among the registered ones, that may have keys in a damaged page."""
    if damage.database != DATA:
        return [ALL]
    names = []
    for prefix in queues:
        end = below(prefix)[1]
        if end > damage.begin and (damage.end is None or prefix < damage.end):
            names.append(queue_text(prefix))
    if damage.end is None or damage.end > CATALOGUE:
        names.append("the list of queues")
    return names or [UNREGISTERED]


def check(
    queue: str = "",
    url: str | None = None,
    remove_foreign: bool = False,
    file: Path | None = None,
    as_json: bool = False,
) -> None:
    """Check the whole queue for inconsistencies. Exits with 1 if there are any.

    It also checks the keys of the layers: leases, requests, subscriptions, streams, priorities and sessions. Of a smart
    queue it checks the part that needs none of the program's own types. SmartQueue.check does the rest.

    The queue may be in use. If reading it takes more than five seconds, and it changes meanwhile, what looked wrong is
    told apart, as "unsure".

    Keys below the queue's name that fdbqueue did not write are problems, too. --remove-foreign removes them: use the
    newest version of fdbqueue that this queue is used with, since a newer one may have written them. If programs keep
    keys of their own below the queue's name, look at the list first: this command does not know these.

    --file reads a folder's data file without opening it, and says which queues its damaged pages belong to. No program
    may write there meanwhile. A damaged page ends a process that opens the folder and reads it.

    Args:
        remove_foreign: First remove keys among the queue's own that fdbqueue did not write.
        file (FOLDER): Read every page of an embedded folder instead, to find damaged ones.

    Example: fdbqueue check orders
    """
    if file is not None:
        refuse_if(queue or remove_foreign, "--file reads a whole folder: leave the queue and --remove-foreign out.")
        check_file(file, as_json=as_json)
        return
    refuse_if(not queue, "Name a queue, or a folder by --file.")
    with opened_queue(url, queue) as (db, checked):
        report = fdbqueue.check(db, checked, remove_foreign=remove_foreign)
    problems = report.problems
    if wants_table(as_json):
        console = Console(highlight=False)
        if remove_foreign:
            console.print(f"{counted(report.removed, 'foreign key')} removed.")
        for problem in problems:
            console.print(f"[red]✗[/red] {escape(problem)}")
        if not problems:
            console.print(f"[green]✓[/green] {counted(report.items, 'item')}, all well")
        for unsure in report.unsure:
            console.print(f"? {escape(unsure)}")
        if not report.counted:
            console.print("The queue is long, and changed while it was read: it was not compared at one time.")
        if report.unsure:
            console.print("What has a ? is a problem only if a check finds it at rest.")
        console.print(f"Looked at: {', '.join(report.looked_at)}.")
        if report.not_looked_at:
            console.print(f"Not looked at: {', '.join(report.not_looked_at)}.")
    else:
        found = {"items": report.items, "problems": problems, "unsure": report.unsure, "counted": report.counted}
        foreign = {"foreign": [key.hex() for key in report.foreign], "removed": report.removed}
        told = {"looked_at": report.looked_at, "not_looked_at": report.not_looked_at}
        print_json({"queue": queue, "ok": not problems, **found, **foreign, **told})
    end_if(problems)


DEPTHS = 16
"""How many of its last reads a terminal shows as a line of bars."""
COLUMNS = {
    **{name: name for name in (*ITEM_STATES, "overdue")},
    "in/s": "enqueued_per_s",
    "out/s": "dequeued_per_s",
    "age s": "oldest_age_at_least_s",
    "wait": "requests",
}
DEPTH = "depth"
WIDE_COLUMNS = 110
"""A narrower terminal would cut off the names of queues."""


def top(
    queues: list[str] | None = None,
    interval: float = 2.0,
    count: int | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """Show the items, rates, waiting processes and troubles of queues. Repeats until Ctrl-C.

    Without a queue it shows what is wrong with all of them, as `fdbqueue troubles`.

    The items of sessions are counted with the others. Those in progress are the leased ones.

    On a terminal, "depth" draws the available items of the last reads, from 0 to their maximum.

    If an item has no stored time, its age is a lower bound: the time since this command first counted it.

    Args:
        queues (argument, [QUEUE]...): Names, or key tuples as JSON.
        interval (-i, min=0.1): Seconds between two reads.
        count (-n, min=1): Number of reads. Default: no end.

    Example: fdbqueue top orders invoices
    """
    looks = itertools.count() if count is None else range(count)
    with opened(url) as db:
        if not queues:
            _show_troubles(db, looks, interval, as_json)
            return
        watched = {name: queue_of(name) for name in queues}
        for own in watched.values():
            run(own.read(db, partial(check_known, layout=own.layout)))
        histories = {name: History(inf) for name in watched}
        shown = _looks(db, {name: Registered(own.layout.prefix) for name, own in watched.items()}, looks, interval)
        if not wants_table(as_json):
            for read in shown:
                for name, one in read.items():
                    told = troubles_shown(worst_first(one.troubles))
                    print_json({"queue": name, **_row(one, histories[name]), **told})
            return
        with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
            for read in shown:
                rows = {name: _row(one, histories[name]) for name, one in read.items()}
                depths = {name: history.depths for name, history in histories.items()}
                every = worst_first(chain.from_iterable(one.troubles for one in read.values()))
                live.update(Group(troubles_text(every), _table(rows, depths, live.console.width)), refresh=True)


def _show_troubles(db: Database, looks: Iterable[int], interval: float, as_json: bool) -> None:
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
    db: Database, watched: dict[str, Registered], looks: Iterable[int], interval: float
) -> Iterator[dict[str, QueueFigures]]:
    """Yield the figures of queues, by their names."""
    ages: dict[bytes, Ages] = {}
    for look in looks:
        if look:
            time.sleep(interval)
        yield dict(zip(watched, read_these(db, watched.values(), ages=ages), strict=True))


def figures_record(one: QueueFigures) -> JsonRecord:
    """Return the times and waiting calls of a queue as a record has them."""
    own = {"overdue": one.overdue, "oldest_age_s": one.stored_age_s, "oldest_age_at_least_s": one.oldest_age_s}
    return {**own, "requests": one.requests, "wanted": one.wanted}


def _row(one: QueueFigures, history: History) -> JsonRecord:
    """Note what was read of a queue, and return it as a row."""
    items = None if one.stats is None else with_sessions(one.stats, one.sessions)
    if items is not None:
        history.add(Look(one.now, items), DEPTHS)
    came, went = history.rates
    numbers = {} if items is None else asdict(items)
    return {**numbers, **figures_record(one), "enqueued_per_s": came, "dequeued_per_s": went}


def _table(look: dict[str, JsonRecord], depths: dict[str, list[float]], width: int) -> Table:
    """Return the table: a row for each queue, or a column on a narrow terminal."""

    def cell(name: str, head: str) -> str:
        return sparkline(depths[name]) if head == DEPTH else _number(look[name].get(COLUMNS[head]))

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
