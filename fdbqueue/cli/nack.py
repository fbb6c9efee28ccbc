"""``fdbqueue nack``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Annotated

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.byposition import refuse_positions
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.handles import Handles, apart, bundles, handles_of, told_lost
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import MaxAttempts, QueueName, Url, queue_of
from fdbqueue.cli.output import say, write_lines
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.cli.values import encode_json
from fdbqueue.engine import FDBError
from fdbqueue.errors import FdbQueueError, LeaseLost
from fdbqueue.layers.leases import Disposition, LeaseHandle, Leases
from fdbqueue.layers.sessions import SessionHandle
from fdbqueue.writes.adaptive_limit import Halving

BUNDLE_ITEMS = 100
"""The most items that one transaction gives back. It writes them again, with up to 100,000 bytes each."""


def nack(
    queue: QueueName,
    handles: Handles = None,
    delay: Annotated[
        float, typer.Option("--delay", "-d", min=0, help="Seconds until the items are available again.")
    ] = 0.0,
    error: Annotated[
        str | None, typer.Option("--error", help="Reason, stored with the items and dead letters.")
    ] = None,
    max_attempts: MaxAttempts = None,
    url: Url = None,
) -> None:
    """Give leased items back after failed attempts. Exits with 5 if leases are lost, and prints those.

    It exits with 1 if none are given. A line of standard input is a handle, or a line that `fdbqueue lease` printed.
    For each item it prints a line with the item's disposition: available again in its old place, delayed, dead or
    expired.

    Example: fdbqueue nack orders --delay 30 --error 'printer is off' < leases.jsonl
    """
    try:
        given = handles_of(handles)
    except BadValue:
        with opened_queue(url, queue_of(queue)) as db:
            refuse_positions(db, queue_of(queue), handles)
        raise
    leases = Leases(queue_of(queue), max_attempts=max_attempts)
    own = sessions_of(leases.queue, max_attempts=max_attempts)
    fates: Counter[str] = Counter()
    taken = 0
    with opened_queue(url, leases.queue) as db:
        give_back = partial(leases.nack_many, db, delay=delay, error=error)
        try:
            for bundle in chain.from_iterable(bundles(group, BUNDLE_ITEMS) for group in given):
                taken += len(bundle)
                plain, of_sessions = apart(bundle)
                give_back_one = partial(own.nack, db, delay=delay, error=error)
                for held, of_held in chain(_fates(give_back, plain), _fates_in_sessions(give_back_one, of_sessions)):
                    fates.update(fate.value for fate in of_held)
                    shown = [{"lease": str(one), "fate": fate.value} for one, fate in zip(held, of_held, strict=True)]
                    write_lines([encode_json(one).encode() + b"\n" for one in shown])
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if fates.total():
                typer.echo(f"{counted(fates.total(), 'item was', 'items were')} given back before.", err=True)
            raise
    if not taken:
        typer.echo("Standard input had no handles of leases: nothing was given back.", err=True)
        raise typer.Exit(errors.EMPTY)
    say(
        f"{counted(fates.total(), 'item')} given back"
        + "".join(f", {number:,} {fate}" for fate, number in fates.items())
    )
    if fates.total() < taken:
        raise typer.Exit(errors.LOST)


def _fates_in_sessions(
    give_back: Callable[[SessionHandle], Disposition], handles: list[SessionHandle]
) -> Iterator[tuple[list[LeaseHandle], list[Disposition]]]:
    """Give items of sessions back, one after the other, and report the lost leases."""
    for handle in handles:
        try:
            yield [handle], [give_back(handle)]
        except LeaseLost:
            told_lost(handle)


def _fates(
    give_back: Callable[[list[LeaseHandle]], list[Disposition]], bundle: list[LeaseHandle]
) -> Iterator[tuple[list[LeaseHandle], list[Disposition]]]:
    """Give items back, in one transaction if they fit into one, and report the lost leases."""
    halving = Halving([bundle])
    for held in halving:
        try:
            fates = give_back(held)
        except LeaseLost as error:
            for handle in held:
                if handle.position in error.lost:
                    told_lost(handle)
            halving.again([handle for handle in held if handle.position not in error.lost])
        except FDBError as error:
            halving.halve(error)
        else:
            yield held, fates
