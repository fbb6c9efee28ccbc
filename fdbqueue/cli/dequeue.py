"""``fdbqueue dequeue``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.handles import with_those_held
from fdbqueue.cli.known import tell_if_paused
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, Codec, CodecName, QueueName, Raw, Records, Url, check_raw, queue_of
from fdbqueue.cli.output import CUT_OFF, Output, line, lines_of, wants_table
from fdbqueue.cli.stopping import StopSignals
from fdbqueue.cli.tables import items_columns, shown_rows
from fdbqueue.engine import FDBError
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.errors import leaves_in_doubt
from fdbqueue.engine.steps import run, value_of
from fdbqueue.errors import CodecError, FdbQueueError, LeaseLost
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.stored.layout import pack
from fdbqueue.writes.adaptive_limit import AdaptiveLimit

BATCH_ITEMS = 500
LEASE_SECONDS = 60.0
"""How long the last batch of a killed command stays leased."""
EXTEND_SECONDS = 20.0
"""How often leases are extended while a reader is slow."""


def dequeue(
    queue: QueueName,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Largest number of items. Default: 1.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take all items.")] = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Print the first items and take them out. Exits with 1 if there was none; if the queue is paused, it says so.

    First it fires due timers: items whose delay or lease has ended become available, and expired items are removed.

    No item is lost. Each batch of up to 500 items is leased, printed, and then taken out. If the command is
    interrupted, the disk is full, or the reader closes the pipe, the other items go back to their places. A message
    gives their number. After `kill -9` the last batch becomes available within a minute, and the next `fdbqueue
    dequeue` prints it again. In a pipe a line counts as printed when its reader has read it. So `fdbqueue dequeue
    orders --all | head -5` takes out five items. If the reader reads nothing for a second, the command fills the pipe,
    and its lines count as printed. To keep items until their work is done, use `fdbqueue lease` and `fdbqueue ack`.

    Example: fdbqueue dequeue orders --limit 10
    """
    check_raw(raw, codec)
    if everything and limit is not None:
        raise typer.BadParameter("say how many items, or all of them; not both", param_hint="--limit / --all")
    show = partial(line, codec=codec, records=records, raw=raw)
    table = (lambda items: shown_rows(items, items_columns(codec))) if wants_table(as_json) and not raw else None
    leases = Leases(queue_of(queue, codec))
    with opened_queue(url, leases.queue) as db, StopSignals() as signals:
        while leases.reclaim(db).more:
            signals.check()  # each call fires the timers that fit into a transaction
        drain = Drain(db, leases, signals, show, table)
        with noted(f"Items that were not taken out yet come back within {LEASE_SECONDS:g} s."):
            drain.run(None if everything else limit or 1)
        if everything or drain.out < (limit or 1):
            tell_if_paused(db, leases.queue)
    if drain.lost:
        raise typer.Exit(errors.LOST)
    if not drain.out:
        raise typer.Exit(errors.EMPTY)


class Drain:
    """Takes items out, each only after it was printed.

    Args:
        db: the database.
        leases: the leases of the queue.
        signals: raises if the command has to stop.
        show: turns an item into a line.
        table: turns items into a table instead, for a terminal.
    """

    def __init__(
        self,
        db: Any,
        leases: Leases,
        signals: StopSignals,
        show: Callable[[Lease], bytes],
        table: Callable[[Sequence[Lease]], bytes] | None = None,
    ) -> None:
        self._db = db
        self._leases = leases
        self._signals = signals
        self._show = show
        self._table = table
        self._printed: list[Lease] = []
        self._waiting: list[Lease] = []
        self._extend_at = 0.0
        self._in_doubt = self._cut_off = False
        self.out = 0
        """How many items were printed and taken out."""
        self.lost = 0
        """How many items were printed, but had lost their leases by then."""

    def run(self, limit: int | None) -> None:
        """Print and take out up to `limit` items; None: all.

        Raises:
            OutputFailed, Stopped, BadValue, FdbQueueError, FDBError: the reason for an early end. Items that were not
                printed went back.
        """
        adaptive = AdaptiveLimit(BATCH_ITEMS)
        try:
            while limit is None or self.out + len(self._printed) < limit:
                self._signals.check()
                most = adaptive.limit if limit is None else limit - self.out - len(self._printed)
                if not self._next_batch(adaptive, most):
                    break
                self._print()
            self._take_out()
        except (FdbQueueError, FDBError):
            typer.echo(self._settle(), err=True)
            raise
        finally:
            if self.lost:
                typer.echo(
                    f"{self.lost:,} items were printed when their leases were over: others may have taken them too.",
                    err=True,
                )

    def _next_batch(self, adaptive: AdaptiveLimit, most: int) -> bool:
        """Take the printed items out and lease the next ones, in one transaction. Return False if there are none."""
        self._extend_at = self._leases.clock() + EXTEND_SECONDS
        try:
            body = partial(self._exchange, adaptive=adaptive, most=most)
            taken = run(self._leases.queue.transact(self._db, body, on_retry=adaptive.note))
        except LeaseLost:
            self._take_out()
            return self._next_batch(adaptive, most)
        except FDBError as error:
            self._in_doubt = leaves_in_doubt(error)
            raise
        self.out += len(self._printed)
        self._printed, self._waiting = [], taken
        return bool(taken)

    async def _exchange(self, tr: Transaction, adaptive: AdaptiveLimit, most: int) -> list[Lease]:
        if self._printed:
            await self._leases.ack_many.steps(tr, self._printed)
        limit = min(adaptive.limit, most)
        taken = await self._leases.lease_many.steps(tr, limit=limit, duration=LEASE_SECONDS)
        return await self._up_to_a_blob(tr, taken)

    async def _up_to_a_blob(self, tr: Transaction, taken: list[Lease]) -> list[Lease]:
        """Put back the items from the first one on that has a blob, which is not printed. Return the others.

        Raises:
            CodecError: the first item has one.
        """
        for number, lease in enumerate(taken):
            stored = await value_of(tr.snapshot.get(self._leases.layout.leased.key(pack(lease.position))))
            try:
                self._leases.queue.check_dequeue(lease.position, bytes(stored))
            except CodecError:
                if not number:
                    raise
                await self._leases.snooze_many.steps(tr, taken[number:], delay=0.0)
                return taken[:number]
        return taken

    def _print(self) -> None:
        lines, wrong = lines_of(self._waiting, self._show)
        output = Output(self._between, counts_read=True)
        try:
            output.write([self._table(self._waiting[: len(lines)])] if self._table and lines else lines)
        finally:
            printed = len(lines) * output.lines if self._table else output.lines
            self._printed, self._waiting = self._waiting[:printed], self._waiting[printed:]
            self._cut_off = output.cut_off
        if wrong is not None:
            raise wrong

    def _between(self) -> None:
        self._signals.check()
        if self._leases.clock() >= self._extend_at:
            self._leases.extend_many(self._db, self._waiting, duration=LEASE_SECONDS)
            self._extend_at = self._leases.clock() + EXTEND_SECONDS

    def _take_out(self) -> None:
        held = with_those_held(partial(self._leases.ack_many, self._db), self._printed)
        self.out += len(held)
        self.lost += len(self._printed) - len(held)
        self._printed = []

    def _settle(self) -> str:
        """Take the printed items out and give the others back. Return a sentence that says how many."""
        told = CUT_OFF if self._cut_off else ""
        if self._in_doubt:
            last, self._printed = len(self._printed), []
            told += f" It is not known whether {last:,} more that were printed are out. What is not comes back within"
            told += f" {LEASE_SECONDS:g} s."
        try:
            self._take_out()
            back = with_those_held(partial(self._leases.snooze_many, self._db, delay=0.0), self._waiting)
        except (FdbQueueError, FDBError):
            told += f" {len(self._printed) + len(self._waiting):,} more come back within {LEASE_SECONDS:g} s, of which"
            told += f" {len(self._printed):,} were printed."
            back = []
        out = counted(self.out, "item was printed and is", "items were printed and are")
        return f"{out} out of the queue, {len(back):,} went back to it.{told}"
