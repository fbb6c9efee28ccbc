"""``fdbqueue nack``."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.handles import Handles, handles_of, told_lost
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import MaxAttempts, QueueName, Url, queue_of
from fdbqueue.cli.output import say, write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.errors import LeaseLost
from layers.leases import Leases


def nack(
    queue: QueueName,
    handles: Handles = None,
    delay: Annotated[
        float, typer.Option("--delay", "-d", min=0, help="Seconds until the items are available again.")
    ] = 0.0,
    error: Annotated[
        str | None, typer.Option("--error", help="Why; kept with the items, and with dead letters.")
    ] = None,
    max_attempts: MaxAttempts = None,
    url: Url = None,
) -> None:
    """Give leased items back: their attempts have failed. Exits with 5 if leases are lost; those are named.

    A line of standard input is a handle, or what `fdbqueue lease` printed. Each item that is given back is one line of
    output, with what became of it: available again in its old place, delayed, dead or expired.
    """
    given = handles_of(handles)
    leases = Leases(queue_of(queue), max_attempts=max_attempts)
    fates: Counter[str] = Counter()
    lost = 0
    with opened(url) as db:
        for handle in chain.from_iterable(given):
            try:
                fate = leases.nack(db, handle, delay=delay, error=error)
            except LeaseLost:
                told_lost(handle)
                lost += 1
                continue
            fates[fate.value] += 1
            write_lines([encode_json({"lease": str(handle), "fate": fate.value}).encode() + b"\n"])
    say(f"{fates.total():,} items given back" + "".join(f", {number:,} {fate}" for fate, number in fates.items()))
    if lost:
        raise typer.Exit(errors.LOST)
