"""``fdbqueue check``."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.values import encode_json
from layers.subscriptions import Subscriptions


def check(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Read the whole queue and say what does not fit together. Exits with 1 if something does not."""
    with opened(url) as db:
        report = Subscriptions(queue_of(queue)).check(db)
    if wants_table(as_json):
        console = Console(highlight=False)
        for problem in report.problems:
            console.print(f"[red]✗[/red] {escape(problem)}")
        if report.ok:
            console.print(f"[green]✓[/green] {report.items:,} items, all well")
        if not report.counted:
            console.print("The counters were not compared: items came and went meanwhile.")
    else:
        answer = {"queue": queue, "ok": report.ok, "items": report.items, "problems": report.problems}
        write_lines([encode_json({**answer, "counted": report.counted}).encode() + b"\n"])
    if not report.ok:
        raise typer.Exit(errors.EMPTY)
