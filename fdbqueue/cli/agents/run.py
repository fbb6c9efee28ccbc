"""``fdbqueue agents run``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fdbqueue.agents.watchdog import AgentEvent, AgentWatchdog
from fdbqueue.agents.words import MAX_TYPE
from fdbqueue.base.position import Position
from fdbqueue.cli.errors import OutputFailed
from fdbqueue.cli.known import tell_if_paused
from fdbqueue.cli.opening import Create, opened_queue
from fdbqueue.cli.options import Url, queue_of
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.stopping import OnSignals
from fdbqueue.cli.values import encode_json
from fdbqueue.layers.leases import Leases, exponential, immediately

UNCONFIRMED = 1
"""An item's last attempt failed, or its command could not run."""
CONTEXT = {"allow_interspersed_args": False}
"""Options behind the command's name are the command's own."""


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments.")],
    type: Annotated[
        int | None,
        typer.Option("--type", min=0, max=MAX_TYPE, help='The agent type, a number: the queue ["agents", TYPE].'),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Any queue, in place of --type.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="How many commands run at once.")] = 1,
    lock: Annotated[
        float, typer.Option("--lock", min=0.001, help="Seconds that a command may take. Then it is killed.")
    ] = 30.0,
    max_attempts: Annotated[
        int, typer.Option("--max-attempts", min=1, help="After so many failed attempts an item is a dead letter.")
    ] = 5,
    backoff: Annotated[
        float, typer.Option("--backoff", min=0, help="Seconds until the second attempt; doubled for each further one.")
    ] = 1.0,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds that running commands have to end after SIGTERM or Ctrl-C.")
    ] = 30.0,
    once: Annotated[
        bool, typer.Option("--once", help="End when no item is available; exit with 1 if one was not confirmed.")
    ] = False,
    create: Create = False,
    url: Url = None,
) -> None:
    """Run a command for each item of a queue until SIGTERM or Ctrl-C: the data on its input, exit code 0 confirms.

    A command that fails or takes longer than its lock is started again later, for the same item. Prints a JSON line
    for everything that happens to an item, and a last one with totals. What the command prints goes to standard error.
    """
    if (type is None) == (queue is None):
        raise typer.BadParameter("give a type, as in --type 5, or any queue, as in --queue orders", param_hint="--type")
    name = queue if queue is not None else encode_json(["agents", type])
    waits = exponential(first=backoff, longest=max(backoff, 3_600.0)) if backoff else immediately
    leases = Leases(queue_of(name), max_attempts=max_attempts, backoff=waits)
    unconfirmed: set[Position] = set()

    def tell(event: AgentEvent) -> None:
        if event.what in ("confirmed", "lost"):  # lost: it is another consumer's now
            unconfirmed.discard(event.item)
        elif event.what != "started":
            unconfirmed.add(event.item)
        _print(event)

    dog = AgentWatchdog(leases, command, processes=processes, lock=lock, grace=grace, on_event=tell)
    # Agents of a type may wait before the first data come. Another queue must be there.
    with opened_queue(url, leases.queue, create=create or queue is None) as db:
        # A lost database must not end it: it waits, and its signals work meanwhile.
        db.options.set_transaction_timeout(0)
        with OnSignals(dog.stop):  # SIGHUP, which a consumer leaves to the application
            report = dog.drain(db) if once else dog.run(db)
        if once:
            tell_if_paused(db, leases.queue)
    _write({"what": "ended", **{name: getattr(report, name) for name in report.__slots__}})
    if once and unconfirmed:
        raise typer.Exit(UNCONFIRMED)


def _print(event: AgentEvent) -> None:
    shown: dict[str, Any] = {"what": event.what, "item": event.item.text, "attempt": event.attempt}
    if event.pid is not None:
        shown["pid"] = event.pid
    if event.seconds:
        shown["seconds"] = round(event.seconds, 3)
    if event.fate is not None:
        shown["fate"] = event.fate.value
    if event.why:
        shown["why"] = event.why
    _write(shown)


def _write(shown: dict[str, Any]) -> None:
    try:
        write_lines([encode_json(shown).encode() + b"\n"])
    except OutputFailed as error:
        typer.echo(f"Error: {error}", err=True)
