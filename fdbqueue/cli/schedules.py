"""``fdbqueue schedules``: the schedules of tasks, and what operators do to them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of, text_of
from fdbqueue.cli.output import wants_table
from fdbqueue.cli.tables import TableColumn, line_of, print_rows, time_text
from fdbqueue.layers.schedules import Schedule, Schedules
from fdbqueue.stored.names import session_text

COLUMNS: tuple[TableColumn[Schedule], ...] = (
    TableColumn("schedule", lambda one: session_text(one.name)),
    TableColumn("task", lambda one: one.task),
    TableColumn("rule", lambda one: f"{one.rule}{', changed' * one.changed}"),
    TableColumn("status", lambda one: one.status),
    TableColumn("next", lambda one: time_text(one.next_at)),
    TableColumn("last", lambda one: time_text(one.last_at)),
)


def schedules(
    queue: QueueName,
    pause: Annotated[
        str | None,
        typer.Option("--pause", metavar="NAME", help="Enqueue no ticks of it.", callback=text_of("schedule")),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="NAME", help="End its pause.", callback=text_of("schedule"))
    ] = None,
    change: Annotated[
        str | None,
        typer.Option(
            "--change", metavar="NAME", help="Give it other times, by --cron or --every.", callback=text_of("schedule")
        ),
    ] = None,
    cron: Annotated[str, typer.Option("--cron", metavar="EXPRESSION", help="A cron expression.")] = "",
    every: Annotated[float | None, typer.Option("--every", metavar="SECONDS", help="Seconds between ticks.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", help="The time zone of the expression.")] = None,
    reset: Annotated[
        str | None,
        typer.Option("--reset", metavar="NAME", help="Take the times of the code again.", callback=text_of("schedule")),
    ] = None,
    remove: Annotated[
        str | None,
        typer.Option(
            "--remove", metavar="NAME", help="Forget it. Its code makes it again.", callback=text_of("schedule")
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the schedules of a queue of tasks. Exits with 1 if there is none.

    A schedule is on time, paused, or stopped: its tick is over, and no worker has enqueued it. Then no worker runs, or
    its code has left. With one of the options that take a name it changes that schedule first.

    Example: fdbqueue schedules mail --change digest --cron '0 8 * * *'
    """
    actions = {"pause": pause, "resume": resume, "reset": reset, "remove": remove, "change": change}
    given = {verb: name for verb, name in actions.items() if name is not None}
    if len(given) > 1:
        raise typer.BadParameter("give one of them at a time", param_hint=" / ".join(f"--{verb}" for verb in given))
    if change is None and (cron or every is not None or tz is not None):
        raise typer.BadParameter("they go with --change NAME", param_hint="--cron / --every / --tz")
    own = queue_of(queue)
    source = Schedules(own, time.time)
    with opened_queue(url, own) as db:
        try:
            if change is not None:
                source.change(db, change, cron, every=every, tz=tz)
            for verb, name in given.items():
                if verb != "change":
                    getattr(source, verb)(db, name)
        except LookupError as error:
            raise typer.BadParameter(str(error.args[0]), param_hint=f"--{next(iter(given))}") from error
        found = source.list(db)
    table = wants_table(as_json)
    if not print_rows(found, COLUMNS, lambda one: line_of({"queue": queue, **_record(one)}), table=table):
        raise typer.Exit(errors.EMPTY)


def _record(one: Schedule) -> dict[str, Any]:
    return {
        "schedule": one.name,
        "task": one.task,
        "rule": one.rule,
        "status": one.status,
        "changed": one.changed,
        "next": one.next_at,
        "last": one.last_at,
    }
