"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

import fdbqueue
from fdbqueue.cli.ack import ack
from fdbqueue.cli.agents import agents
from fdbqueue.cli.backup import backup
from fdbqueue.cli.browse import browse
from fdbqueue.cli.bury import bury
from fdbqueue.cli.byposition import cancel, get, reschedule, update
from fdbqueue.cli.check import check
from fdbqueue.cli.clear import clear
from fdbqueue.cli.copy import copy
from fdbqueue.cli.dead import dead
from fdbqueue.cli.dequeue import dequeue
from fdbqueue.cli.enqueue import enqueue
from fdbqueue.cli.errors import EXIT_CODES_HELP, Commands
from fdbqueue.cli.export import export, import_
from fdbqueue.cli.groups import groups
from fdbqueue.cli.health import health
from fdbqueue.cli.helptext import Command, reflowed
from fdbqueue.cli.inspecting import inspect
from fdbqueue.cli.lease import lease
from fdbqueue.cli.metrics import metrics
from fdbqueue.cli.nack import nack
from fdbqueue.cli.peek import peek
from fdbqueue.cli.purge import purge
from fdbqueue.cli.queues import pause, queues, quota, register, rename, resume
from fdbqueue.cli.redrive import redrive
from fdbqueue.cli.schedules import schedules
from fdbqueue.cli.sessions import sessions
from fdbqueue.cli.stats import stats
from fdbqueue.cli.streams import streams
from fdbqueue.cli.subscribing import subscribe, subscriptions, unsubscribe
from fdbqueue.cli.sweep import sweep
from fdbqueue.cli.top import top
from fdbqueue.cli.troubles import troubles
from fdbqueue.cli.watch import watch
from fdbqueue.cli.watchdog import watchdog
from fdbqueue.cli.web import web
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
        app.command(cls=Command, help=reflowed(command.__doc__), rich_help_panel=section)(command)
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
