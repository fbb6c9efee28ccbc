"""``fdbqueue check``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.cli.values import encode_json
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import Steps, rows, run
from fdbqueue.layers.smart.orphans import check_dependent_keys
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.streams.check import check_streams
from fdbqueue.layers.subscriptions.check import check_subscriptions
from fdbqueue.stored.layout import Layout

LOOKED_AT = (
    *("items", "order", "chunks", "counters", "timers", "outcomes", "groups", "requests", "grants", "subscriptions"),
    *("streams", "dependent keys", "sessions"),
)
MESSAGES, JOBS = "messages of a smart queue", "records of Spark's jobs"


def check(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Check the whole queue for inconsistencies. Exits with 1 if there are any.

    It also checks the keys of the layers: leases, requests, subscriptions, streams, priorities and sessions. Of a smart
    queue it checks the part that needs none of the program's own types. SmartQueue.check does the rest.

    Example: fdbqueue check orders
    """
    checked = queue_of(queue)
    with opened_queue(url, checked) as db:
        staged = StagedQueue(checked)
        report = staged.check(db)
        problems = [
            *report.problems,
            *check_subscriptions(db, staged.leases),
            *check_streams(db, checked.layout),
            *check_dependent_keys(db, checked.layout),
        ]
        in_sessions = sessions_of(checked).check(db)
        problems += in_sessions.problems
        report = replace(report, items=report.items + in_sessions.items, counted=report.counted and in_sessions.counted)
        left = run(checked.read(db, partial(_not_looked_at, layout=checked.layout)))
    if wants_table(as_json):
        console = Console(highlight=False)
        for problem in problems:
            console.print(f"[red]✗[/red] {escape(problem)}")
        if not problems:
            console.print(f"[green]✓[/green] {report.items:,} items, all well")
        if not report.counted:
            console.print("The counters were not compared: items came and went meanwhile.")
        console.print(f"Looked at: {', '.join(LOOKED_AT)}.")
        if left:
            console.print(f"Not looked at: {', '.join(left)}.")
    else:
        answer: dict[str, Any] = {"queue": queue, "ok": not problems, "items": report.items, "problems": problems}
        told = {"counted": report.counted, "looked_at": LOOKED_AT, "not_looked_at": left}
        write_lines([encode_json({**answer, **told}).encode() + b"\n"])
    if problems:
        raise typer.Exit(errors.EMPTY)


def _not_looked_at(tr: Transaction, layout: Layout) -> Steps[list[str]]:
    """Return the names of the parts of the queue that this command does not check, by snapshot."""
    left = []
    for name, space in ((MESSAGES, layout.smart), (JOBS, layout.jobs)):
        span = space.range()
        if (yield from rows(tr.snapshot, span.start, span.stop, limit=1)):
            left.append(name)
    return left
