"""``fdbqueue check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import fdbqueue
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.checkfile import check_file
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.values import encode_json

RemoveForeign = Annotated[
    bool, typer.Option("--remove-foreign", help="First remove keys among the queue's own that fdbqueue did not write.")
]


File = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FOLDER", help="Read every page of an embedded folder instead, to find damaged ones."
    ),
]


def check(
    queue: QueueName = "",
    url: Url = None,
    remove_foreign: RemoveForeign = False,
    file: File = None,
    as_json: AsJson = False,
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

    Example: fdbqueue check orders
    """
    if file is not None:
        if queue or remove_foreign:
            raise typer.BadParameter("--file reads a whole folder: leave the queue and --remove-foreign out.")
        check_file(file, as_json=as_json)
        return
    if not queue:
        raise typer.BadParameter("Name a queue, or a folder by --file.")
    checked = queue_of(queue)
    with opened_queue(url, checked) as db:
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
        answer: dict[str, Any] = {"queue": queue, "ok": not problems, "items": report.items, "problems": problems}
        answer |= {"unsure": report.unsure, "counted": report.counted}
        answer |= {"foreign": [key.hex() for key in report.foreign], "removed": report.removed}
        told = {"looked_at": report.looked_at, "not_looked_at": report.not_looked_at}
        write_lines([encode_json({**answer, **told}).encode() + b"\n"])
    if problems:
        raise typer.Exit(errors.EMPTY)
