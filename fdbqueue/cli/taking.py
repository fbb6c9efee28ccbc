"""``fdbqueue dequeue``, ``lease`` and ``watch``: commands that give items out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import StopSignals, end, end_if, noted, refuse_if, tell, told
from fdbqueue.cli.naming import sessions_of
from fdbqueue.cli.opening import CodecName, opened_queue, store_policy, tell_if_paused, tell_troubles
from fdbqueue.cli.options import check_raw
from fdbqueue.cli.output import (
    CUT_OFF,
    TAKEN,
    Output,
    item_columns,
    item_line,
    line,
    lines_of,
    shown_rows,
    wants_table,
    write_lines,
)
from fdbqueue.cli.settling import with_those_held
from fdbqueue.engine import FDBError
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import leaves_in_doubt
from fdbqueue.engine.steps import run, value_of
from fdbqueue.errors import CodecError, FdbQueueError, FormatError, LeaseLost, OtherCodec
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.sessions import SessionLease
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.stored.codecs import codec_named
from fdbqueue.stored.names import session_text
from fdbqueue.stored.positions import pack
from fdbqueue.writes.adaptive_limit import AdaptiveLimit

BATCH_ITEMS = 500
LEASE_SECONDS = 60.0
"""How long the last batch of a killed command stays leased."""
EXTEND_SECONDS = 20.0
"""How often leases are extended while a reader is slow."""
ITEMS_AT_ONCE = 100
"""How many items `watch` reads at once."""
LEASED = "value attempt expires_at rank? headers? ttl_at? error? wants_result?"
"""What JSON has of a leased item, beside the handle of its lease."""


def dequeue(
    queue: str,
    limit: int | None = None,
    everything: bool = False,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    records: bool = False,
    raw: bool = False,
    as_json: bool = False,
) -> None:
    """Print the first items and take them out. Exits with 1 if there was none; if the queue is paused, it says so.

    First it fires due timers: items whose delay or lease has ended become available, and expired items are removed.

    No item is lost. Each batch of up to 500 items is leased, printed, and then taken out. If the command is
    interrupted, the disk is full, or the reader closes the pipe, the other items go back to their places. A message
    gives their number. After `kill -9` the last batch becomes available within a minute, and the next `fdbqueue
    dequeue` prints it again. In a pipe a line counts as printed when its reader has read it. So `fdbqueue dequeue
    orders --all | head -5` takes out five items. If the reader reads nothing for a second, the command fills the pipe,
    and its lines count as printed. To keep items until their work is done, use `fdbqueue lease` and `fdbqueue ack`.

    Args:
        limit (-n, min=1): Largest number of items. Default: 1.
        everything (--all): Take all items.

    Example: fdbqueue dequeue orders --limit 10
    """
    check_raw(raw, codec)
    refuse_if(everything and limit is not None, "say how many items, or all of them; not both", "--limit / --all")
    show = partial(line, codec=codec, records=records, raw=raw)
    table = partial(shown_rows, columns=item_columns(codec, TAKEN)) if wants_table(as_json) and not raw else None
    with opened_queue(url, queue, codec) as (db, own), StopSignals() as signals:
        leases = Leases(own)
        while leases.reclaim(db).more:
            signals.check()  # each call fires the timers that fit into a transaction
        drain = Drain(db, leases, signals, show, table)
        with noted(f"Items that were not taken out yet come back within {LEASE_SECONDS:g} s."):
            drain.run(None if everything else limit or 1)
        if everything or drain.out < (limit or 1):
            tell_if_paused(db, own)
    end_if(drain.lost, errors.LOST)
    end_if(not drain.out)


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
        db: Database,
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
            tell(self._settle())
            raise
        finally:
            if self.lost:
                tell(f"{self.lost:,} items were printed when their leases were over: others may have taken them too.")

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


def lease(
    queue: str,
    limit: int = 1,
    duration: float = 30.0,
    consumer: str | None = None,
    subscription: str | None = None,
    sessions: bool = False,
    max_attempts: int | None = None,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    as_json: bool = False,
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

    Args:
        limit (-n, min=1): Largest number of items.
        duration (-d): Seconds until the leases expire.
        consumer: Name of the consumer. Default: host:pid.
        subscription (-s, reads=subscription): Lease for this subscription, within its credit.
        sessions (-S): Lease sessions, each with its first item.

    Example: fdbqueue lease orders --limit 10 --duration 60 > leases.jsonl
    """
    table = wants_table(as_json)
    printed = 0
    if sessions:
        refuse_if(subscription is not None, "a subscription has no items of sessions", "--subscription")
        terms = {"max_attempts": max_attempts, "consumer": consumer}
        end(0 if _lease_sessions(queue, url, codec, limit, duration, terms) else errors.EMPTY)
    with opened_queue(url, queue, codec) as (db, own), StopSignals() as signals:
        leases = Leases(own, max_attempts=max_attempts)
        store_policy(db, own)
        source = leases if subscription is None else Subscriptions(leases).open(subscription)
        columns = item_columns(codec, "lease attempt# value headers")
        # One call leases as many items as fit into a transaction.
        while printed < limit and (
            batch := source.lease_many(db, limit=limit - printed, duration=duration, consumer=consumer)
        ):
            lines, wrong = lines_of(batch, partial(item_line, codec=codec, fields=f"lease {LEASED}"))
            output = Output(signals.check, counts_read=True)
            try:
                shown = [shown_rows(batch[: len(lines)], columns, lines)] if table and lines else lines
                output.write(shown)
                if wrong is not None:
                    raise wrong
                signals.check()
            except FdbQueueError:
                done = len(lines) * output.lines if table else output.lines
                told = _given_back(leases, db, printed + done, batch[done:])
                tell(told + (CUT_OFF if output.cut_off else ""))
                raise
            printed += len(batch)
        if printed < limit:
            tell_if_paused(db, own)
            if isinstance(source, Subscription) and source.stats(db).suspended:
                tell(f"The subscription {source.name!r} is suspended: Subscription.resume ends that.")
    end_if(not printed)


def _lease_sessions(
    queue: str, url: str | None, codec: CodecName, limit: int, duration: float, terms: dict[str, Any]
) -> int:
    """Lease sessions and print them, one after the other. Return how many."""
    printed = 0
    # An item that can't be decoded would block its session. So its bytes are leased, and decoded here.
    with opened_queue(url, queue) as (db, own), StopSignals() as signals:
        source = sessions_of(own, **terms)
        store_policy(db, own)
        while printed < limit and (lease := source.lease(db, duration=duration)) is not None:
            try:
                signals.check()
                write_lines([item_line(_decoded(lease, codec), codec, f"lease session level {LEASED}")])
            except FdbQueueError:
                source.snooze(db, lease, delay=0.0)
                tell(f"{counted(printed, 'lease was', 'leases were')} printed, 1 more item went back.")
                raise
            printed += 1
        if printed < limit:
            tell_if_paused(db, own)
            tell_troubles(db, own, "paused_session", "blocked_session")
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


def watch(
    queue: str,
    name: str | None = None,
    head: bool = False,
    where: str | None = None,
    limit: int | None = None,
    timeout: float | None = None,
    create: bool = False,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    records: bool = False,
    raw: bool = False,
) -> None:
    """Print items when they arrive, and leave them in their places, like tail -f. Repeats until Ctrl-C.

    Items that are given back, or become due, arrive again. Items that a consumer takes at once may not be printed. With
    --name no other item is missed, also while the command does not run; `fdbqueue unsubscribe` removes the name.

    Exits with 1 if there was no item.

    Args:
        name: Keep the place under this name, and go on there the next time.
        head: Begin with the items that are there now, not with the next arrival.
        limit (-n, min=1): End after this number of items.
        timeout (-t, min=0.0): End after this many seconds without an arrival.

    Example: fdbqueue watch orders --where "color = 'red'"
    """
    check_raw(raw, codec)
    printed, handled = 0, True
    with opened_queue(url, queue, codec, create=create) as (db, own):
        follower = Subscriptions(own).follow(db, name, selector=where, start="head" if head else "tail")
        try:
            while limit is None or printed < limit:
                handled = False  # a signal, or a closed pipe: the items come again
                most = ITEMS_AT_ONCE if limit is None else min(ITEMS_AT_ONCE, limit - printed)
                try:
                    found = follower.next_many(limit=most, timeout=timeout)
                except OtherCodec:
                    raise  # no item of the queue would decode
                except (CodecError, FormatError) as error:
                    tell(f"Error: {told(error)}")
                    handled = True
                    continue
                if not found:
                    handled = True
                    break
                write_lines([line(item, codec, records=records, raw=raw) for item in found])
                printed += len(found)
                handled = True
        finally:
            follower.close(handled=handled)
    end_if(not printed)
