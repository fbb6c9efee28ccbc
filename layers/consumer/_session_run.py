"""One run of a consumer of sessions: several sessions side by side, and the items of each one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from fdbqueue import CheckFailed, CodecError, FormatError, LeaseLost, OtherCodec
from fdbqueue.lowlevel import UNCHANGED, Database, KeyValue, Unchanged, encode_result, pack, run, run_async

from ..common._handlers import ACKED, Handler
from ..leases._done import Done as ItemDone
from ..leases._lease import Lease
from ..sessions._lease import Behind, SessionLease
from ..sessions._line import Where
from ..sessions._line_queue import LineLeases, LineQueue
from ..sessions._sessions import Sessions
from ..sessions._turns import Ahead, Done, NewState, Settled, Settlement
from ._holds import BATCH_ITEMS, Hold, is_out
from ._run import Run
from ._terms import ConsumerReport, Terms

AHEAD_BYTES = 400_000
"""About how many bytes of items are read ahead in one session."""
AHEAD_SECONDS = 0.1
"""How long more items than a quantum are good that were read ahead, while no other session waits."""

_log = logging.getLogger("fdbqueue.layers.consumer")


@dataclass(slots=True, eq=False)
class TurnHold(Hold):
    """A session that a consumer holds."""

    done: list[Done] = field(default_factory=list)
    """Items whose handlers have returned, in order, and that are not known to be acked."""
    last_acked: Done | None = None
    """The last item that the thread has acked. The event loop may not have taken it out of `done` yet."""
    before: Behind = field(default_factory=lambda: Behind((), (), (), ()))
    """What a verb of the next item's lease has to ack first: these items, behind the last one that is known to be
    acked."""
    current: bytes = b""
    """The packed position of the item that is in progress."""
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
    over: bool = False
    """Whether the consumer has ended the lease, with all that was done."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when items were acked."""

    def add(self, done: Done) -> None:
        """Note that an item's handler has returned."""
        self.done.append(done)
        before = self.before
        self.before = Behind(
            (*before.positions, done.position),
            (*before.states, done.state),
            (*before.results, done.result),
            (*before.stored, done.stored),
        )

    def to_ack(self) -> list[Done]:
        """Return the items to ack, for the thread that does so."""
        done = list(self.done)
        acked = next((at for at, one in enumerate(done, 1) if one is self.last_acked), 0)
        return done[acked:]

    def note_acked(self, last: Done) -> int:
        """Note that all items up to `last` are acked. Return how many that were.

        A verb of a later item may have acked it already. Then this says nothing about the items that are left.
        """
        count = next((at for at, one in enumerate(self.done, 1) if one is last), 0)
        if count:
            del self.done[:count]
            kept, before = -1 - len(self.done), self.before
            self.before = Behind(
                before.positions[kept:], before.states[kept:], before.results[kept:], before.stored[kept:]
            )
        self.room.set()
        return count


class SessionRun(Run):
    """One run of a consumer of sessions. What it holds are pointers: leases of whole sessions."""

    def __init__(self, db: Database, source: Sessions, handler: Handler, terms: Terms, report: ConsumerReport) -> None:
        super().__init__(db, source.line.leases, handler, terms, report)
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

    def _hold(self, lease: Lease) -> Hold:
        return TurnHold(lease)

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
        except (FormatError, CodecError, CheckFailed):
            _log.exception("An item of a session of %r can't be read: the session is blocked.", self._name)
        if hold.leaving is None:
            self._let_go(hold)

    async def _next(self, hold: TurnHold, lease: SessionLease) -> SessionLease | None:
        """Work through the session's turn from this item on, as long as items were read ahead. Return the item after
        them; None if the turn is over."""
        quota = self._turns.quota(lease)
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
            hold.current = pack(lease.position)
            hold.ends_at, hold.settling = math.inf, False
            returned, result = await self._attempt(hold, lease)
            if not returned:
                self._ended(hold)
                return None
            used += 1
            fresh = fresh and not lease.used
            if result is ACKED:
                hold.add(Done(lease.position, UNCHANGED))
                self._count_acked(hold)
                fresh = False
            else:
                done = await self._done_with(hold, lease, result)
                if done is None:
                    return None
                if self._sessions.has_messages and not self._stopping.done():
                    return await self._ack_and_next(hold, lease, result)
                hold.add(replace(done, stored=stored))
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
            if result is not ACKED and (self._stopping.done() or hold.missing):
                self._leave(hold, "place")
                return None
            while len(hold.done) >= BATCH_ITEMS:
                hold.room.clear()
                await hold.room.wait()
                if hold.over:
                    return None
            if used >= quota and ahead and not await self._are_good(hold, ahead):
                ahead.clear()
            if not ahead:
                limit = quota if hold.others or time.monotonic() - hold.looked > AHEAD_SECONDS else BATCH_ITEMS
                limit = max(1, min(limit, BATCH_ITEMS, AHEAD_BYTES // self._mean_bytes))
                found = await self._look(hold, list(hold.done), limit)
                if found is None:  # the lease is lost, or the handler has ended it
                    hold.over = True
                    if result is not ACKED:
                        self._lost(hold)
                    return None
                hold.missing, hold.edits, hold.looked = False, found.edits, time.monotonic()
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
            except (FormatError, CodecError):
                # The next lease of this session begins with the item, and blocks the session.
                self._leave(hold, "place")
                return None

    async def _look(self, hold: TurnHold, done: list[Done], limit: int) -> Ahead | None:
        look = partial(self._turns.look, pointer=hold.lease, done=done, limit=limit)
        return await run_async(self._sessions.queue.read(self._db, look))

    async def _are_good(self, hold: TurnHold, ahead: deque[KeyValue]) -> bool:
        """Return whether the turn can go on with the items that were read ahead, at the end of a quantum."""
        await asyncio.sleep(0)  # handlers that never wait would keep the loop from learning what was leased ahead
        if self._ready or time.monotonic() - hold.looked > AHEAD_SECONDS:
            return False
        found = await self._look(hold, [], 1)
        if found is None or found.others or found.leaves or not found.rows or found.edits != hold.edits:
            return False
        first = self._turns.key(hold.lease, hold.done[0]) if hold.done else ahead[0].key
        return found.rows[0].key >= first  # no more urgent item has come

    async def _ack_and_next(self, hold: TurnHold, lease: SessionLease, result: Any) -> SessionLease | None:
        """Ack an item, and begin the session's next one in the same transaction. Return it; None if the turn is over.

        A smart check may rewrite a waiting item, so that nothing is read ahead.
        """
        state = result.value if isinstance(result, NewState) else UNCHANGED
        done, duration = self._done_of(result), self._terms.duration
        hold.over, hold.settling = True, True
        following = None
        try:
            following = await self._sessions.ack_and_next.aio(
                self._db, lease, state=state, result=done, duration=duration
            )
        except LeaseLost:
            self._lost(hold)
            return None
        except (CodecError, FormatError, CheckFailed):  # of the next item; this one is acked
            self._report.acked += 1
            raise
        self._report.acked += 1
        hold.over = following is None
        return following

    async def _done_with(self, hold: TurnHold, lease: SessionLease, result: Any) -> Done | None:
        """Return the finished item with its new state. A state that can't be stored fails the attempt."""
        try:
            stored = encode_result(self._done_of(result).result) if lease.wants_result else b""
            return Done(lease.position, self._turns.encoded(result), stored)
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
        hold.current = b""
        hold.leaving = where
        hold.settling = True
        self._settle_soon(hold)

    def _settle_soon(self, hold: TurnHold) -> None:
        self._done.append(hold)
        self._acking.wake()

    def _ended(self, hold: TurnHold) -> None:
        """Note that the item was given back, together with an ack of those before it."""
        hold.over = True
        if not hold.told:
            self._count_acked(hold)

    def _count_acked(self, hold: TurnHold) -> None:
        """Count what a verb of a later item acked too."""
        if hold.done:
            self._report.acked += hold.note_acked(hold.done[-1])

    def _ack_what_is_done(self) -> None:
        while self._done:
            holds: dict[TurnHold, Settlement] = {}
            items = 0
            while self._done and items < BATCH_ITEMS:
                hold = self._done.popleft()
                if isinstance(hold, TurnHold) and hold not in holds and not hold.over:
                    leaving = hold.leaving  # read before `done`: nothing is done after it is set
                    holds[hold] = Settlement(hold.lease, hold.to_ack(), hold.current, leaving)
                    items += len(holds[hold].done) + 1
            settlements = list(holds.values())
            settled = run(self._sessions.queue.transact(self._db, partial(self._turns.settle, settlements=settlements)))
            for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
                if outcome.live and settlement.done:
                    hold.last_acked = settlement.done[-1]
            self.loop.call_soon_threadsafe(self._settled, list(holds), settlements, settled)

    def _settled(self, holds: list[TurnHold], settlements: list[Settlement], settled: list[Settled]) -> None:
        for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
            if hold.over:
                continue
            hold.urgent = hold.urgent or outcome.urgent or outcome.edits > hold.edits
            if outcome.live and settlement.done:
                self._report.acked += hold.note_acked(settlement.done[-1])
            if settlement.leaving is not None:
                hold.over = True
                if not outcome.live:
                    self._lost(hold)
                self._let_go(hold)
            elif not outcome.live:
                # The running handler may have ended the lease itself. If it has not, its own ack will find this out.
                hold.missing = True
                hold.room.set()
