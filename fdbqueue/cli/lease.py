"""``fdbqueue lease``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.handles import with_those_held
from fdbqueue.cli.known import tell_if_paused, tell_troubles
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, MaxAttempts, QueueName, Url, queue_of, text_of
from fdbqueue.cli.output import (
    CUT_OFF,
    Output,
    lines_of,
    rank_of,
    terms_shown,
    wants_table,
    write_lines,
    writing,
)
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.cli.stopping import StopSignals
from fdbqueue.cli.tables import TableColumn, headers_text, shown_rows, value_text
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.engine import FDBError
from fdbqueue.engine.api import Database
from fdbqueue.errors import CodecError, FdbQueueError
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.sessions import SessionLease
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.stored.codecs import codec_named
from fdbqueue.stored.names import session_json, session_text


def lease(
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of items.")] = 1,
    duration: Annotated[float, typer.Option("--duration", "-d", help="Seconds until the leases expire.")] = 30.0,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Name of the consumer. Default: host:pid.")] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            "-s",
            help="Lease for this subscription, within its credit.",
            callback=text_of("subscription"),
        ),
    ] = None,
    sessions: Annotated[
        bool, typer.Option("--sessions", "-S", help="Lease sessions, each with its first item.")
    ] = False,
    max_attempts: MaxAttempts = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Lease the first items and print them with their handles. Exits with 1 if there was none.

    If there are fewer than asked for because the queue is paused, it says so. With --sessions it also tells of sessions
    that are paused or blocked.

    Each line has the handle of a lease as "lease". Pipe the lines of finished items into `fdbqueue ack`. The others
    become available again when the duration is over. If the command is interrupted, or its output can't be written,
    the items that were not printed go back at once. A message gives their number.

    A line says "wants_result" if a producer waits for the item: `fdbqueue ack --result` stores its result.

    With --sessions it leases the first ready sessions. Until its item is acked, no other worker gets one of that
    session.

    Example: fdbqueue lease orders --limit 10 --duration 60 > leases.jsonl
    """
    leases = Leases(queue_of(queue, codec), max_attempts=max_attempts)
    table = wants_table(as_json)
    printed = 0
    if sessions:
        if subscription is not None:
            raise typer.BadParameter("a subscription has no items of sessions", param_hint="--subscription")
        taken = lease_sessions(queue, codec, url, limit, duration, consumer, max_attempts, as_json)
        raise typer.Exit(0 if taken else errors.EMPTY)
    with opened_queue(url, leases.queue) as db, StopSignals() as signals:
        source = leases if subscription is None else Subscriptions(leases).open(subscription)
        # One call leases as many items as fit into a transaction.
        while printed < limit and (
            batch := source.lease_many(db, limit=limit - printed, duration=duration, consumer=consumer)
        ):
            lines, wrong = lines_of(batch, partial(_line, codec=codec))
            output = Output(signals.check, counts_read=True)
            try:
                output.write([shown_rows(batch[: len(lines)], _columns(codec), lines)] if table and lines else lines)
                if wrong is not None:
                    raise wrong
                signals.check()
            except FdbQueueError:
                done = len(lines) * output.lines if table else output.lines
                told = _given_back(leases, db, printed + done, batch[done:])
                typer.echo(told + (CUT_OFF if output.cut_off else ""), err=True)
                raise
            printed += len(batch)
        if printed < limit:
            tell_if_paused(db, leases.queue)
            if isinstance(source, Subscription) and source.stats(db).suspended:
                typer.echo(
                    f"The subscription {source.name!r} is suspended: Subscription.resume ends that.",
                    err=True,
                )
    if not printed:
        raise typer.Exit(errors.EMPTY)


def lease_sessions(
    queue: str,
    codec: CodecName,
    url: str | None,
    limit: int,
    duration: float,
    consumer: str | None,
    max_attempts: int | None,
    as_json: bool,
) -> int:
    """Lease sessions and print them, one after the other. Return how many."""
    # An item that can't be decoded would block its session. So its bytes are leased, and decoded here.
    source = sessions_of(queue_of(queue), max_attempts=max_attempts, consumer=consumer)
    wants_table(as_json)  # it raises if there is no standard output
    printed = 0
    with opened_queue(url, source.queue) as db, StopSignals() as signals:
        while printed < limit and (lease := source.lease(db, duration=duration)) is not None:
            try:
                signals.check()
                own = {"session": session_json(lease.session), "level": lease.level}
                write_lines([_line(_decoded(lease, codec), codec, own)])
            except FdbQueueError:
                source.snooze(db, lease, delay=0.0)
                typer.echo(f"{counted(printed, 'lease was', 'leases were')} printed, 1 more item went back.", err=True)
                raise
            printed += 1
        if printed < limit:
            tell_if_paused(db, source.queue)
            tell_troubles(db, source.queue, "paused_session", "blocked_session")
    return printed


def _decoded(lease: SessionLease[bytes], codec: CodecName) -> Lease:
    try:
        return dataclasses.replace(lease, value=codec_named(codec.value).decode(lease.value))
    except Exception as error:
        raise CodecError(
            f"The item {lease.position.text} of the session {session_text(lease.session)} does not decode with the"
            f" codec {codec.value!r}: {error}. --codec names another one."
        ) from error


def _given_back(leases: Leases, db: Database, printed: int, rest: list[Lease]) -> str:
    """Give back the items that were not printed. Return a sentence that says how many."""
    told = counted(printed, "lease was", "leases were")
    try:
        back = len(with_those_held(partial(leases.snooze_many, db, delay=0.0), rest))
    except (FdbQueueError, FDBError):
        return f"{told} printed; {len(rest):,} more items come back when their leases are over."
    return f"{told} printed, {counted(back, 'more item')} went back."


def _columns(codec: CodecName) -> tuple[TableColumn[Lease], ...]:
    return (
        TableColumn("lease", lambda one: str(one.handle), whole=True),
        TableColumn("attempt", lambda one: str(one.attempt), number=True),
        TableColumn("value", lambda one: value_text(one, codec)),
        TableColumn("headers", lambda one: headers_text(one)),
    )


def _line(lease: Lease, codec: CodecName, own: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    with writing(lease.position):
        shown = {
            "lease": str(lease.handle),
            **own,
            "value": to_json(lease.value, codec),
            "attempt": lease.attempt,
            "expires_at": lease.expires_at,
            **rank_of(lease.position),
            **terms_shown(lease),
        }
        if lease.error:
            shown["error"] = lease.error
        if lease.wants_result:
            shown["wants_result"] = True
        return encode_json(shown).encode() + b"\n"
