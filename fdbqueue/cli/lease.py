"""``fdbqueue lease``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.cli import errors
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Codec, CodecName, MaxAttempts, QueueName, Url, queue_of
from fdbqueue.cli.output import print_to_copy, wants_table, write_lines, writing
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.layers.lease import Lease
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.subscriptions import Subscriptions


def lease(
    queue: QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many items at most.")] = 1,
    duration: Annotated[float, typer.Option("--duration", "-d", help="Seconds until the items are anybody's.")] = 30.0,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Who takes them; default: host:pid.")] = None,
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", help="Only what this subscription selects, on its credit.")
    ] = None,
    max_attempts: MaxAttempts = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Lease items, from the first on, and print them with what to ack them by. Exits with 1 if there was none.

    Each line has the handle of a lease as "lease". Pipe the lines of those that are done into `fdbqueue ack`; the
    others come back when the duration is over.
    """
    leases = Leases(queue_of(queue, codec), max_attempts=max_attempts)
    with opened(url) as db:
        source = leases if subscription is None else Subscriptions(leases).open(subscription)
        taken = 0
        # One call takes what fits into a transaction.
        while taken < limit and (
            batch := source.lease_many(db, limit=limit - taken, duration=duration, consumer=consumer)
        ):
            taken += len(batch)
            lines = [_line(one, codec) for one in batch]
            if wants_table(as_json):
                print_to_copy(_table(batch, codec), lines)
            else:
                write_lines(lines)
    if not taken:
        raise typer.Exit(errors.EMPTY)


def _table(taken: list[Lease], codec: CodecName) -> Table:
    table = Table(header_style="bold")
    table.add_column("lease", no_wrap=True)  # to be copied
    table.add_column("attempt", justify="right")
    for column in ("value", "headers"):
        table.add_column(column, overflow="fold")
    for one in taken:
        with writing(one.position):
            headers = Text(encode_json(one.headers) if one.headers else "")
            table.add_row(str(one.handle), str(one.attempt), Text(encode_json(to_json(one.value, codec))), headers)
    return table


def _line(lease: Lease, codec: CodecName) -> bytes:
    with writing(lease.position):
        shown = {
            "lease": str(lease.handle),
            "value": to_json(lease.value, codec),
            "attempt": lease.attempt,
            "expires_at": lease.expires_at,
        }
        if lease.headers:
            shown["headers"] = dict(lease.headers)
        if lease.error:
            shown["error"] = lease.error
        return encode_json(shown).encode() + b"\n"
