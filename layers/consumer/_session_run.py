"""One run of a consumer of sessions: several sessions side by side, and the items of each one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from fdbqueue import CheckFailed, CodecError, FormatError, LeaseLost, OtherCodec
from fdbqueue.engine.transactional import repeated
from fdbqueue.lowlevel import UNCHANGED, Database, KeyValue, pack, run, run_async
from fdbqueue.moves.outcomes import encode_result
from fdbqueue.stored.codecs import why_buried
from fdbqueue.stored.known import LOOK_SECONDS
from fdbqueue.verbs.editing import Unchanged

from ..common.handlers import ACKED, Handler
from ..common.logs import fields, item_fields
from ..common.middleware import Middleware
from ..common.observing import Acked, on_acked, tell_acked
from ..leases import Done as ItemDone
from ..leases import Lease
from ..sessions import NewState, SessionLease, Sessions
from ..sessions.line.line import Where
from ..sessions.line.line_queue import LineLeases, LineQueue
from ..sessions.session.lease import Begun, Behind, TurnDone
from ..sessions.session.records import name_of
from ..sessions.workers.read_ahead import NOTHING, Ahead, SettledTurn, Settlement
from ._holds import BATCH_ITEMS, Hold, is_out
from ._run import Run
from ._terms import ConsumerReport, ConsumerTerms

AHEAD_BYTES = 400_000
"""About how many bytes of items are read ahead in one session."""
AHEAD_SECONDS = 0.1
"""How long more items than a quantum are good that were read ahead, while no other session waits."""

_log = logging.getLogger("fdbqueue.layers.consumer")


@dataclass(slots=True, eq=False)
class TurnHold(Hold):
    """A session that a consumer holds."""

    before: Behind = field(default_factory=Behind)
    """Items whose handlers have returned, in order, and that are not known to be acked. A verb of the next item's lease
    has to ack these first. The event loop replaces it, and the thread reads it."""
    last_acked: TurnDone | None = None
    """The last item that the thread has acked. The event loop may not have taken it out of `before` yet."""
    current: Begun = NOTHING
    """The item that is in progress, or was last."""
    leaving: Where | None = None
    """Where the session goes when its items are acked."""
    urgent: bool = False
    """Whether an item has come that goes in front of those read ahead, or one of these may have changed."""
    edits: int = 0
    """How many calls had changed waiting items when these were read ahead."""
    others: bool = True
    """Whether another session waited when these were read ahead."""
    looked: float = -math.inf
    """When these were read ahead, by `time.monotonic`."""
    fenced: bool = False
    """Whether a call by position has changed or removed an item that was begun. The turn is over with the item in
    progress."""
    seen: float = -math.inf
    """When a read of the session's record began that found it running, by `time.monotonic`."""
    stops: bool = False
    """Whether an ack found the session paused or blocked."""
    over: bool = False
    """Whether the consumer has ended the lease, with all that was done."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when items were acked."""

    @property
    def done(self) -> tuple[TurnDone, ...]:
        """Items whose handlers have returned, and that are not known to be acked."""
        return self.before.done

    def add(self, done: TurnDone) -> None:
        """Note that an item's handler has returned."""
        self.before = Behind((*self.before.done, done), self.before.acked)

    def to_settle(self) -> Settlement:
        """Return the items to ack, and the item in progress behind them, for the thread that does so."""
        leaving = self.leaving  # read before `before`: nothing is done after it is set
        while True:
            current, before = self.current, self.before
            if current is self.current:  # else the event loop has begun another one
                break
        done, acked = before.done, before.acked
        if acked == current.packed or (done and pack(done[-1].position) == current.packed):
            current = NOTHING  # it is done, and the next one has not begun
        own = next((at for at, one in enumerate(done, 1) if one is self.last_acked), 0)
        if own:
            acked, done = pack(done[own - 1].position), done[own:]
        return Settlement(self.lease, done, current, leaving, acked)

    def note_acked(self, last: TurnDone) -> tuple[TurnDone, ...]:
        """Note that all items up to `last` are acked. Return those that were not known to be.

        A verb of a later item may have acked it already. Then this says nothing about the items that are left.
        """
        count = next((at for at, one in enumerate(self.done, 1) if one is last), 0)
        acked = self.done[:count]
        if count:
            self.before = Behind(self.done[count:], pack(last.position))
        self.room.set()
        return acked


class SessionRun(Run):
    """One run of a consumer of sessions. What it holds are pointers: leases of whole sessions."""

    def __init__(
        self,
        db: Database,
        source: Sessions,
        handler: Handler,
        middleware: Sequence[Middleware],
        terms: ConsumerTerms,
        report: ConsumerReport,
    ) -> None:
        super().__init__(db, source.line.leases, handler, middleware, terms, report)
        self._sessions = source
        self._turns = source.turns
        self._verbs = source
        self._retry = source.line.rules.retry
        self._mean_bytes = AHEAD_BYTES // 10
        """The size of the items that were read last."""

    def _staged(self, consumer: str | None) -> LineQueue:
        return LineQueue(cast(LineLeases, self._leases), consumer=consumer)

    @property
    def _name(self) -> object:
        return self._sessions

    async def _lease(self, limit: int) -> list[Lease]:
        # A damaged pointer is put aside by all takers. One of a newer version stays, whatever `on_bad` says of items.
        return await self._lease_readable(limit)

    def _hold(self, lease: Lease) -> Hold:
        return TurnHold(lease)

    def _held_what(self, hold: Hold) -> tuple[str, tuple[object, ...], dict[str, Any]]:
        session, queue = name_of(hold.lease.value.pointer.name), self._sessions.queue
        extra = fields(queue, session=session, attempt=hold.lease.attempt, consumer=hold.lease.consumer)
        return "the session %r of %r, of consumer %s", (session, queue, hold.lease.consumer), extra

    async def _handle(self, hold: Hold) -> None:
        if not isinstance(hold, TurnHold) or hold.missing:
            self._report.lost += 1
            self._let_go(hold)
            return
        hold.begun = True
        try:
            lease = await run_async(self._turns.begin(self._db, hold.lease))
            while lease is not None:
                lease = await self._next(hold, lease)
        except OtherCodec:
            raise  # the session is whole, and no item of this queue can be read here
        except (FormatError, CodecError, CheckFailed) as error:
            if self._terms.buries and not isinstance(error, CheckFailed):
                await self._skip(hold, error)
            else:
                told = "An item of a session of %r can't be read: the session is blocked."
                _log.exception(told, self._name, extra=fields(self._sessions.queue))
        if hold.leaving is None:
            self._let_go(hold)

    async def _skip(self, hold: TurnHold, error: Exception) -> None:
        """Make the item that blocks a session a dead letter, so that the session goes on."""
        if await self._sessions.skip.aio(self._db, name_of(hold.lease.value.pointer.name)):
            _log.warning("%s It is a dead letter now.", why_buried(error))
            self._report.buried += 1

    async def _next(self, hold: TurnHold, lease: SessionLease) -> SessionLease | None:
        """Work through the session's turn from this item on, as long as items were read ahead. Return the item after
        them; None if the turn is over."""
        try:
            quota = self._turns.quota(lease)
        except ValueError as error:  # the function `weights` failed: for this session, and for no other
            extra = item_fields(self._sessions.queue, lease)
            _log.exception("The session %r of %r is blocked.", lease.session, self._name, extra=extra)
            await run_async(self._turns.block(self._db, hold.lease, str(error)))
            return None
        used = hold.lease.value.pointer.used
        ahead: deque[KeyValue] = deque()
        state = self._turns.encoded(NewState(lease.state))
        stored = b""  # the first item is that of the lease
        fresh = True  # whether `state` is the newest, though it may not be written yet
        while True:
            if lease.group != "" and await run_async(is_out(self._db, self._leases, lease)):
                # The next lease of this session removes the item.
                self._leave(hold, "place")
                return None
            if not await self._may_go_on(hold):
                if not hold.over:
                    self._report.returned += 1
                    self._leave(hold, "place")
                return None
            hold.current = Begun(pack(lease.position), stored)
            hold.ends_at, hold.settling = math.inf, False
            returned, result = await self._attempt(hold, lease)
            if not returned:
                self._ended(hold)
                return None
            used += 1
            fresh = fresh and not lease.used
            if result is ACKED:
                hold.add(TurnDone(lease.position, UNCHANGED))
                self._count_acked(hold)
                fresh = False
            else:
                done = await self._done_with(hold, lease, result, stored)
                if done is None:
                    return None
                if self._sessions.has_messages and not self._stopping.done():
                    return await self._ack_and_next(hold, lease, result)
                hold.add(done)
                if not isinstance(done.state, Unchanged):
                    state, fresh = done.state, True
                if hold.lease.value.pointer.slot:
                    # Another slot may take the next item, so that nothing is read ahead.
                    self._leave(hold, "tail" if used >= quota else "place")
                    return None
                self._settle_soon(hold)
            if hold.urgent or not fresh:
                hold.urgent = False
                ahead.clear()
            while len(hold.done) >= BATCH_ITEMS and not (hold.missing or hold.fenced):
                hold.room.clear()
                await hold.room.wait()
                if hold.over:
                    return None
            if result is not ACKED and (self._stopping.done() or hold.missing or hold.fenced):
                self._leave(hold, "place")
                return None
            if used >= quota and ahead and not await self._are_good(hold, ahead):
                ahead.clear()
            if not ahead:
                limit = quota if hold.others or time.monotonic() - hold.looked > AHEAD_SECONDS else BATCH_ITEMS
                limit = max(1, min(limit, BATCH_ITEMS, AHEAD_BYTES // self._mean_bytes))
                before = hold.before
                found = await self._look(hold, hold.done, limit)
                if found is None:  # the lease is lost, or the handler has ended it
                    hold.over = True
                    if result is not ACKED:
                        await self._lost_turn(hold)
                    return None
                hold.missing, hold.edits, hold.looked = False, found.edits, time.monotonic()
                if not hold.done and hold.before is before:  # else an ack was committed after this look's read version
                    hold.before = Behind(acked=found.acked)  # a handler may have acked more than its own item
                hold.others = found.others or bool(self._ready)  # this consumer may have leased other sessions ahead
                over = used >= quota and hold.others
                if over or found.leaves or not found.rows or self._stopping.done() or self._sessions.has_messages:
                    self._leave(hold, "tail" if over else "place")
                    return None
                ahead = deque(found.rows)
                self._mean_bytes = 1 + sum(len(row.value) for row in ahead) // len(ahead)
                if not fresh:
                    state, fresh = found.state, True
            used %= quota
            row = ahead.popleft()
            stored = row.value
            try:
                lease = await run_async(self._turns.item(self._db, hold.lease, row, state, hold.before))
            except (FormatError, CodecError, CheckFailed):
                # The next lease of this session begins with the item, and blocks the session.
                self._leave(hold, "place")
                return None

    async def _may_go_on(self, hold: TurnHold) -> bool:
        """Return whether the session's next item may begin. An ack, or a look, has told so within the last second."""
        old = time.monotonic() - LOOK_SECONDS
        if not hold.stops and hold.seen <= old:
            if hold.seen == -math.inf:  # the first item: its lease has read the record
                age = self._leases.clock() - (hold.lease.expires_at - self._terms.duration)
                hold.seen = min(hold.leased_at, time.monotonic() - age)
            if hold.seen <= old:
                found = await self._look(hold, list(hold.done), 1)
                if found is None:
                    hold.over = True
                    await self._lost_turn(hold)
                    return False
                hold.stops = found.leaves
        return not hold.stops and await self.may_begin()

    async def _look(self, hold: TurnHold, done: Sequence[TurnDone], limit: int) -> Ahead | None:
        began = time.monotonic()
        look = partial(self._turns.look, pointer=hold.lease, done=done, limit=limit, acked=hold.before.acked)
        found = await run_async(self._sessions.queue.read(self._db, look))
        hold.seen = began
        return found

    async def _lost_turn(self, hold: TurnHold) -> None:
        """Count a lease that a look has found lost, with how a call by position took an item of this turn away."""
        begun = [one.begun for one in hold.done] or [hold.current]
        ask = partial(self._turns.why_taken, pointer=hold.lease, begun=begun)
        hold.reason = await run_async(self._sessions.queue.read(self._db, ask)) or hold.reason
        self._lost(hold)

    async def _are_good(self, hold: TurnHold, ahead: deque[KeyValue]) -> bool:
        """Return whether the turn can go on with the items that were read ahead, at the end of a quantum."""
        await asyncio.sleep(0)  # handlers that never wait would keep the loop from learning what was leased ahead
        if self._ready or time.monotonic() - hold.looked > AHEAD_SECONDS:
            return False
        first = self._turns.key(hold.lease, hold.done[0]) if hold.done else ahead[0].key
        ask = partial(self._turns.may_go_on, pointer=hold.lease, first=first, edits=hold.edits)
        began = time.monotonic()
        good = await run_async(repeated(self._db.create_transaction(), ask, commits=False))
        if good:
            hold.seen = began
        return good

    async def _ack_and_next(self, hold: TurnHold, lease: SessionLease, result: Any) -> SessionLease | None:
        """Ack an item, and begin the session's next one in the same transaction. Return it; None if the turn is over.

        A smart check may rewrite a waiting item, so that nothing is read ahead.
        """
        state = result.value if isinstance(result, NewState) else UNCHANGED
        done, duration = self._done_of(result), self._terms.duration
        hold.over, hold.settling, began = True, True, time.monotonic()
        following = None
        try:
            following = await self._sessions.ack_and_next.aio(
                self._db, lease, state=state, result=done, duration=duration
            )
        except LeaseLost as error:
            hold.reason = error.reasons.get(lease.position, "")
            self._tell_ended(hold, lease.position, acked=False)
            self._lost(hold)
            return None
        except (CodecError, FormatError, CheckFailed):  # of the next item; this one is acked
            self._report.acked += 1
            self._tell_ended(hold, lease.position, acked=True)
            raise
        except ValueError as error:  # of the function `weights`; nothing was written
            await self._fail(hold, lease, error)
            return None
        self._report.acked += 1
        self._tell_ended(hold, lease.position, acked=True)
        hold.over, hold.seen = following is None, began
        return following

    async def _done_with(self, hold: TurnHold, lease: SessionLease, result: Any, stored: bytes) -> TurnDone | None:
        """Return the finished item, `stored` when it began, with its new state. A state that can't be stored fails the
        attempt."""
        try:
            kept = encode_result(self._done_of(result).result) if lease.wants_result else b""
            return TurnDone(lease.position, self._turns.encoded(result), kept, stored)
        except (CodecError, ValueError) as error:
            await self._fail(hold, lease, error)
            self._ended(hold)
            return None

    _dones = (ItemDone, NewState)

    def _done_of(self, result: Any) -> ItemDone:
        return ItemDone(result.result, result.then) if isinstance(result, NewState) else super()._done_of(result)

    def _ack_alone(self, lease: Lease, result: Any, done: ItemDone) -> Any:
        state = result.value if isinstance(result, NewState) else UNCHANGED
        return self._sessions.ack.aio(self._db, cast(SessionLease, lease), state=state, result=done)

    def _leave(self, hold: TurnHold, where: Where) -> None:
        hold.current = NOTHING
        hold.leaving = where
        hold.settling = True
        self._settle_soon(hold)

    def _settle_soon(self, hold: TurnHold) -> None:
        self._done.append(hold)
        self._acking.wake()

    async def _settle(self, hold: Hold, verb: Any, counter: str) -> Any:
        if not isinstance(hold, TurnHold):
            return await super()._settle(hold, verb, counter)
        hold.settling = True
        try:
            fate = await verb
        except LeaseLost as error:
            hold.reason = next(iter(error.reasons.values()), "")
            # Perhaps the lease lives, and only an item of this turn was changed. Ack those in front of it, and leave.
            hold.fenced = True
            self._leave(hold, "place")
            return None
        setattr(self._report, counter, getattr(self._report, counter) + 1)
        self._let_go(hold)
        return fate

    def _ended(self, hold: TurnHold) -> None:
        """Note that the item was given back, together with an ack of those before it."""
        if hold.leaving is not None:
            return  # it was refused
        hold.over = True
        if not hold.told:
            self._count_acked(hold)

    def _count_acked(self, hold: TurnHold) -> None:
        """Count what a verb of a later item acked too."""
        if hold.done:
            self._count(hold, hold.note_acked(hold.done[-1]))

    def _count(self, hold: TurnHold, acked: Sequence[TurnDone]) -> None:
        self._report.acked += len(acked)
        if self._item_ended is not None:
            for one in acked:
                self._tell_ended(hold, one.position, acked=True)

    def _lost(self, hold: Hold) -> None:
        super()._lost(hold)
        for one in hold.done if isinstance(hold, TurnHold) else ():
            self._tell_ended(hold, one.position, acked=False)

    def _ack_what_is_done(self) -> None:
        while self._done:
            holds: dict[TurnHold, int] = {}
            while self._done and sum(holds.values()) < BATCH_ITEMS:
                hold = self._done.popleft()
                if isinstance(hold, TurnHold) and not hold.over:
                    holds[hold] = len(hold.done) + 1
            # Only now: what the event loop adds to a hold from here on, it has put into `_done` again.
            settlements, began = [hold.to_settle() for hold in holds], time.monotonic()
            settled = run(self._sessions.queue.transact(self._db, partial(self._turns.settle, settlements=settlements)))
            for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
                if outcome.acked:
                    hold.last_acked = settlement.done[outcome.acked - 1]
            self.loop.call_soon_threadsafe(self._settled, list(holds), settlements, settled, began)

    def _settled(
        self, holds: list[TurnHold], settlements: list[Settlement], settled: list[SettledTurn], began: float
    ) -> None:
        if on_acked and (items := sum(outcome.acked for outcome in settled)):
            tell_acked(Acked(self._sessions.queue, (), items, 0, time.monotonic() - began))
        for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
            if outcome.acked:  # also if the lease was lost since
                self._count(hold, hold.note_acked(settlement.done[outcome.acked - 1]))
            if hold.over:
                continue
            hold.stops, hold.seen = hold.stops or outcome.leaves, max(hold.seen, began)
            hold.urgent = hold.urgent or outcome.urgent or outcome.edits > hold.edits
            hold.fenced = hold.fenced or outcome.fenced
            hold.reason = outcome.reason or hold.reason
            if settlement.leaving is not None:
                hold.over = True
                if not outcome.live or hold.fenced:
                    self._lost(hold)
                self._let_go(hold)
            elif outcome.fenced:
                hold.room.set()
            elif not outcome.live:
                # The running handler may have ended the lease itself. If it has not, its own ack will find this out.
                hold.missing = True
                hold.room.set()
