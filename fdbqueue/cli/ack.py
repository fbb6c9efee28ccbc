"""``fdbqueue ack``."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Annotated, Any

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.byposition import refuse_positions
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.handles import Handles, apart, bundles, handles_of, told_lost, with_those_held
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import CodecName, QueueName, Url, queue_of
from fdbqueue.cli.output import say
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.cli.values import parse
from fdbqueue.engine import FDBError
from fdbqueue.errors import CodecError, FdbQueueError, ItemTooLarge, LeaseLost
from fdbqueue.layers.leases import LeaseHandle, Leases
from fdbqueue.layers.sessions import SessionHandle, Sessions
from fdbqueue.moves.outcomes import encode_result

BUNDLE_ITEMS = 500


def ack(
    queue: QueueName,
    handles: Handles = None,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="Result of the items, for those that wait for it.")
    ] = None,
    url: Url = None,
) -> None:
    """Acknowledge leased items: their work is done. Exits with 5 if leases are lost, and with 1 if none are given.

    It prints the lost leases and acks the others.

    A line of standard input is a handle, or a line that `fdbqueue lease` printed. A line that also has a "result" gives
    that item's result, in place of --result. Items without a completion ignore results. If a result can't be stored, no
    item of its batch is acked.

    Example: fdbqueue ack orders --result '{"paid": 9}' < leases.jsonl
    """
    usual = None if result is None else _result(result)
    results: dict[LeaseHandle, Any] = {}
    try:
        given = handles_of(handles, results)
    except BadValue:
        with opened_queue(url, queue_of(queue)) as db:
            refuse_positions(db, queue_of(queue), handles)
        raise
    leases = Leases(queue_of(queue))
    acked = taken = 0
    with opened_queue(url, leases.queue) as db:
        try:
            for bundle in chain.from_iterable(bundles(group, BUNDLE_ITEMS) for group in given):
                taken += len(bundle)
                done = {handle: _checked(results.pop(handle, usual), handle) for handle in bundle}
                plain, of_sessions = apart(bundle)
                ack_many = partial(_ack_many, db, leases, results=done)
                acked += len(with_those_held(ack_many, plain, on_lost=told_lost))
                acked += _ack_sessions(db, sessions_of(leases.queue), of_sessions, done)
        except BadValue as error:
            raise BadValue(f"{error} {counted(acked, 'item was', 'items were')} acked.") from error
        except (FdbQueueError, FDBError, KeyboardInterrupt):
            if acked:
                typer.echo(f"{counted(acked, 'item was', 'items were')} acked before.", err=True)
            raise
    if not taken:
        typer.echo("Standard input had no handles of leases: nothing was acked.", err=True)
        raise typer.Exit(errors.EMPTY)
    say(f"{counted(acked, 'item')} acked")
    if acked < taken:
        raise typer.Exit(errors.LOST)


def _result(text: str) -> Any:
    """Return the result that the option describes."""
    try:
        found = parse(text, CodecName.msgpack)
        encode_result(found)
    except (BadValue, CodecError, ItemTooLarge) as error:
        raise typer.BadParameter(str(error), param_hint="--result") from error
    return found


def _checked(result: Any, handle: LeaseHandle) -> Any:
    """Return a result that can be stored.

    Raises:
        BadValue: this one can't.
    """
    try:
        encode_result(result)
    except (CodecError, ItemTooLarge) as error:
        raise BadValue(f"The result of {handle} can't be stored: {error} None of its batch was acked.") from error
    return result


def _ack_many(db: Any, leases: Leases, handles: list[LeaseHandle], results: dict[LeaseHandle, Any]) -> None:
    leases.ack_many(db, handles, results=[results[handle] for handle in handles])


def _ack_sessions(db: Any, sessions: Sessions, handles: list[SessionHandle], results: dict[LeaseHandle, Any]) -> int:
    """Ack items of sessions, one after the other. Return how many were not lost."""
    acked = 0
    for handle in handles:
        try:
            sessions.ack(db, handle, result=results[handle])
            acked += 1
        except LeaseLost:
            told_lost(handle)
    return acked
