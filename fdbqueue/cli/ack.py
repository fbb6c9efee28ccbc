"""``fdbqueue ack``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.engine import open
from fdbqueue.errors import LeaseLost
from layers.lease import LeaseHandle
from layers.leases import Leases

BATCH_ITEMS = 500


def ack(
    queue: QueueName,
    handles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LEASE]...", help="Handles of leases; without one, lines of standard input."),
    ] = None,
    url: Url = None,
) -> None:
    """Let leased items be gone: they are done. Exits with 5 if leases are lost; those are named, the others acked.

    A line of standard input is a handle, or what `fdbqueue lease` printed.
    """
    if not handles and sys.stdin.isatty():
        raise typer.BadParameter("give handles, or pipe lines into standard input", param_hint="LEASE")
    given = iter([_handle(text, text) for text in handles]) if handles else _lines()
    leases = Leases(queue_of(queue))
    acked = lost = 0
    with open(url) as db:
        while batch := list(itertools.islice(given, BATCH_ITEMS)):
            try:
                leases.ack_many(db, batch)
            except LeaseLost as error:
                typer.echo(f"Error: {error}", err=True)
                lost += len(error.lost)
                batch = [handle for handle in batch if handle.position not in error.lost]
                leases.ack_many(db, batch)
            acked += len(batch)
    say(f"{acked:,} items acked")
    if lost:
        raise typer.Exit(errors.LOST)


def _lines() -> Iterator[LeaseHandle]:
    for number, line in enumerate(sys.stdin, 1):
        text = line.strip()
        if text:
            yield _handle(_text(text), f"Line {number}")


def _text(line: str) -> str:
    """Return the handle in a line: bare, as a JSON string, or as the "lease" of a JSON object."""
    try:
        decoded = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    return str(decoded.get("lease") if isinstance(decoded, dict) else decoded)


def _handle(text: str, where: str) -> LeaseHandle:
    try:
        return LeaseHandle.parse(text)
    except ValueError as error:
        raise BadValue(f"{where}: {error}") from error
