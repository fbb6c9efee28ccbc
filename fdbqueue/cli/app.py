"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

import fdbqueue
from fdbqueue.cli.agents import agents
from fdbqueue.cli.dead import bury, dead, purge, redrive
from fdbqueue.cli.enqueue import enqueue
from fdbqueue.cli.errors import EXIT_CODES_HELP, Commands
from fdbqueue.cli.helptext import Command, reflowed
from fdbqueue.cli.items import browse, cancel, clear, get, peek, reschedule, update
from fdbqueue.cli.looking import check, health, top, troubles
from fdbqueue.cli.options import command_of
from fdbqueue.cli.parts import groups, schedules, streams, subscribe, subscriptions, unsubscribe
from fdbqueue.cli.queues import inspect, pause, queues, quota, register, rename, resume, stats
from fdbqueue.cli.serving import metrics, web
from fdbqueue.cli.sessions import sessions
from fdbqueue.cli.settling import ack, nack
from fdbqueue.cli.taking import dequeue, lease, watch
from fdbqueue.cli.transfer import backup, copy, export, import_
from fdbqueue.cli.watchdog import sweep, watchdog
from fdbqueue.cli.worker import worker

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=EXIT_CODES_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SECTIONS = {
    "Put items in, and take them out": (enqueue, dequeue, lease, ack, nack, watch),
    "Look at items, and change them": (peek, browse, get, update, reschedule, cancel, clear),
    "Dead letters": (dead, redrive, purge, bury),
    "Queues": (queues, inspect, stats, register, rename, pause, resume, quota),
    "Sessions, subscriptions, and more": (sessions, subscriptions, subscribe, unsubscribe, groups, streams),
    "Work": (worker, schedules, sweep, watchdog),
    "What is wrong, and how it goes": (troubles, health, check, top, metrics, web),
    "Copies and backups": (export, import_, copy, backup),
}
"""The commands, in the sections of the help."""
COMMANDS = tuple(command for commands in SECTIONS.values() for command in commands)
for section, commands in SECTIONS.items():
    for command in commands:
        app.command(cls=Command, help=reflowed(command.__doc__), rich_help_panel=section)(command_of(command))
app.add_typer(agents, name="agents", rich_help_panel="Work")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fdbqueue {fdbqueue.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Queues inside FoundationDB transactions: enqueue items, take them out, look at them."""
