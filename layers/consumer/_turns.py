"""Turns of sessions: a consumer holds several sessions side by side, and does the items of each one after the other.

It works ahead of its acks: it reads several items of a session at once, and a thread acks those that are done, of all
sessions together. In a turn of one session three things can say that this must stop: the acks, a look ahead, and what
a verb of the item in progress has found. (docs/adr/0089)
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from fdbqueue import CheckFailed, CodecError, FormatError, LeaseLost, OtherCodec, Position, Queue
from fdbqueue.engine.transactional import repeated
from fdbqueue.lowlevel import UNCHANGED, KeyValue, pack, run, run_async
from fdbqueue.moves.ends import encode_result
from fdbqueue.stored.codecs import why_buried
from fdbqueue.stored.known import LOOK_SECONDS
from fdbqueue.stored.looks import check_decodes

from ..common.handlers import ACKED, Acked, fields, item_fields, on_acked, tell_acked
from ..leases import Done, Lease
from ..sessions import NewState, SessionLease, Sessions
from ..sessions.line.line_queue import LineLeases, LineQueue
from ..sessions.line.slots import Where
from ..sessions.session.lease import TurnItem, TurnProgress
from ..sessions.session.records import name_of
from ..sessions.workers.read_ahead import Ahead, SettledTurn, Settlement
from ._handling import Handling
from .holds import BATCH_ITEMS, Hold, Holds, RunTerms, is_out

AHEAD_BYTES = 400_000
"""About how many bytes of items are read ahead in one session."""
AHEAD_SECONDS = 0.1
"""How long more items than a quantum are good that were read ahead, while no other session waits."""

_log = logging.getLogger("fdbqueue.layers.consumer")


@dataclass(slots=True, eq=False)
class TurnHold(Hold):
    """A session that a consumer holds."""

    progress: TurnProgress = field(default_factory=TurnProgress)
    """What is done, and not known to be acked, and the item in progress, whose lease's verbs have to ack these first.
    The event loop replaces it, and the thread reads it."""
    last_acked: TurnItem | None = None
    """The last item that the thread has acked. The event loop may not have taken it out of `progress` yet."""
    quota: int = 1
    """How many items its turn has, while other sessions wait."""
    used: int = 0
    """How many of these are done."""
    rows: deque[KeyValue] = field(default_factory=deque)
    """The items behind it that were read ahead."""
    state: Any = UNCHANGED
    """The session's newest state, encoded, though it may not be written yet; `UNCHANGED`: a look has to tell."""
    edits: int = 0
    """How many calls had changed waiting items when these were read ahead."""
    others: bool = True
    """Whether another session waited then."""
    looked: float = -math.inf
    """When that was, by `time.monotonic`."""
    outdated: bool = False
    """Whether an ack has found an item that goes in front of those read ahead, or that one of these may have changed.
    A look that was under way then may not know of it."""
    is_alone: bool = False
    """Whether the session had no item behind the one in progress when it was leased: its turn needs no look."""
    seen: float = -math.inf
    """When a read of the session's record began that found it running, by `time.monotonic`."""
    stops: bool = False
    """Whether an ack or a look found the session paused or blocked."""
    fenced: bool = False
    """Whether a call by position has changed or removed an item that was begun. The turn is over with the item in
    progress."""
    leaving: Where | None = None
    """Where the session goes when its items are acked; None: its turn goes on."""
    over: bool = False
    """Whether the consumer has ended the lease, with all that was done."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when items were acked."""
    awaited: bool = False
    """Whether others may wait for the end of one of its items."""

    def is_awaited(self) -> bool:
        return self.awaited

    def handled(self) -> Iterable[Position]:
        return [one.position for one in self.progress.done]

    def words(self, queue: Queue) -> tuple[str, dict[str, Any]]:
        session, lease = name_of(self.lease.value.pointer.name), self.lease
        extra = fields(queue, session=session, attempt=lease.attempt, consumer=lease.consumer)
        return f"the session {session!r} of {queue!r}, of consumer {lease.consumer}", extra

    def add(self, item: TurnItem) -> None:
        """Note that an item's handler has returned."""
        done, _, acked = self.progress
        self.progress = TurnProgress((*done, item), None, acked)

    def forget(self) -> None:
        """Forget what was read ahead, and the state: it may have changed."""
        self.rows.clear()
        self.state = UNCHANGED

    def to_settle(self) -> Settlement:
        """Return the items to ack, and the item in progress behind them, for the thread that does so."""
        leaving = self.leaving  # read before `progress`: nothing is done after it is set
        progress = self.progress
        own = next((at for at, one in enumerate(progress.done, 1) if one is self.last_acked), 0)
        return Settlement(self.lease, progress.without(own), leaving)

    def note_acked(self, last: TurnItem) -> tuple[TurnItem, ...]:
        """Note that all items up to `last` are acked. Return those that were not known to be.

        A verb of a later item may have acked it already. Then this says nothing about the items that are left.
        """
        done = self.progress.done
        count = next((at for at, one in enumerate(done, 1) if one is last), 0)
        self.progress = self.progress.without(count)
        self.room.set()
        return done[:count]

    def note(self, settlement: Settlement, outcome: SettledTurn, began: float) -> bool:
        """Note what an ack of some of its items has found. Return whether it has ended the lease.

        Args:
            began: when its transaction began.
        """
        self.stops, self.seen = self.stops or outcome.leaves, max(self.seen, began)
        self.outdated = self.outdated or outcome.urgent or outcome.edits > self.edits
        self.fenced = self.fenced or outcome.fenced
        self.reason = outcome.reason or self.reason
        # A running handler may have ended the lease itself. If it has not, its own ack will find this out.
        self.missing = self.missing or not outcome.live
        self.over = settlement.leaving is not None
        self.room.set()
        return self.over


class SessionHandling(Handling):
    """Handles sessions. What a run holds are pointers: leases of whole sessions."""

    def __init__(
        self, given: RunTerms, source: Sessions, stopping: asyncio.Future[None], freed: Callable[[], None]
    ) -> None:
        holds = Holds(given, source.queue, source.line.leases)
        super().__init__(given, holds, source, source.line.rules.retry, stopping, freed)
        self.source = self._sessions = source
        self._turns = source.turns
        self._staged = LineQueue(cast(LineLeases, holds.leases), consumer=given.terms.consumer)
        self.lease_many = self._staged.lease_many.aio
        self._mean_bytes = AHEAD_BYTES // 10
        """The size of the items that were read last."""

    def hold(self, lease: Lease) -> Hold:
        return TurnHold(lease)

    async def ask_for_all(self) -> None:
        await super().ask_for_all()
        await run_async(check_decodes(self.db, self._sessions.queue.home))

    async def bury(self, error: CodecError | FormatError) -> bool:
        return False  # all takers put a damaged pointer aside; one of a newer version stays, whatever `on_bad` says

    async def handle(self, hold: Hold) -> None:
        if not isinstance(hold, TurnHold) or hold.missing:
            self.report.lost += 1
            self.holds.let_go(hold)
            return
        hold.begun = True
        try:
            lease = await self._first(hold)
            while lease is not None and await self._may_begin_next(hold, lease):
                lease = await self._after(hold, lease)
        except OtherCodec:
            raise  # the session is whole, and no item of this queue can be read here
        except (FormatError, CodecError, CheckFailed) as error:
            if self.terms.buries and not isinstance(error, CheckFailed):
                await self._skip(hold, error)
            else:
                told = "An item of a session of %r can't be read: the session is blocked."
                _log.exception(told, self._sessions, extra=fields(self._sessions.queue))
        if hold.leaving is None:
            self.holds.let_go(hold)

    async def _skip(self, hold: TurnHold, error: Exception) -> None:
        """Make the item that blocks a session a dead letter, so that the session goes on."""
        if await self._sessions.skip.aio(self.db, name_of(hold.lease.value.pointer.name)):
            _log.warning("%s It is a dead letter now.", why_buried(error))
            self.report.buried += 1

    async def _first(self, hold: TurnHold) -> SessionLease | None:
        """Begin a turn. Return the session's first item; None if it has none, or can't be worked on."""
        lease = await run_async(self._turns.working.opened(self.db, hold.lease))
        if lease is None:
            return None
        try:
            hold.quota = self._sessions.line.quota(lease.session)
        except ValueError as error:  # the function `weights` failed: for this session, and for no other
            extra = item_fields(self._sessions.queue, lease)
            _log.exception("The session %r of %r is blocked.", lease.session, self._sessions, extra=extra)
            await run_async(self._turns.working.block(self.db, hold.lease, str(error)))
            return None
        hold.used, hold.is_alone = hold.lease.value.pointer.used, hold.lease.value.is_alone
        hold.state = self._turns.encoded(NewState(lease.state))
        return lease

    async def _may_begin_next(self, hold: TurnHold, lease: SessionLease) -> bool:
        """Return whether an item may begin. If not, the turn is over."""
        if lease.group != "" and await run_async(is_out(self.db, self.holds.leases, lease)):
            # The next lease of this session removes the item.
            self.leave(hold, "place")
            return False
        if await self._runs(hold) and await self.may_begin():
            return True
        if not hold.over:
            self.report.returned += 1
            self.leave(hold, "place")
        return False

    async def _runs(self, hold: TurnHold) -> bool:
        """Return whether the session is not stopped. An ack, or a look, has told so within the last second."""
        old = time.monotonic() - LOOK_SECONDS
        if not hold.stops and hold.seen <= old:
            if hold.seen == -math.inf:  # the first item: its lease has read the record
                age = self.holds.leases.clock() - (hold.lease.expires_at - self.terms.duration)
                hold.seen = min(hold.leased_at, time.monotonic() - age)
            if hold.seen <= old:
                found = await self._look(hold, 1)
                if found is None:
                    await self._lost(hold)
                    return False
                hold.stops = found.leaves
        return not hold.stops

    async def _after(self, hold: TurnHold, lease: SessionLease) -> SessionLease | None:
        """Do an item. Return the session's next one; None if the turn is over."""
        known = None if lease.behind is None else lease.behind.current
        item = known or TurnItem(lease.position, pack(lease.position))
        hold.progress = hold.progress._replace(current=item)
        hold.ends_at, hold.settling = math.inf, False
        hold.awaited = hold.awaited or lease.wants_result or lease.group != ""
        returned, result = await self.attempt(hold, lease)
        if not returned:
            self._ended(hold)
            return None
        hold.used += 1
        if lease.used or result is ACKED:
            hold.forget()
        if result is ACKED:
            hold.add(item)
            self._count_acked(hold)
        else:
            done = await self._done_with(hold, item, lease, result)
            if done is None:
                return None
            if self._sessions.has_messages and not self._stopping.done():
                return await self._ack_and_next(hold, lease, result)
            hold.add(done)
            if done.state is not UNCHANGED:
                hold.state = done.state
            if hold.lease.value.pointer.slot:
                # Another slot may take the next item, so that nothing is read ahead.
                self.leave(hold, "tail" if hold.used >= hold.quota else "place")
                return None
            self.holds.to_ack(hold)
        return await self._next_row(hold) if await self._has_more(hold, by_handler=result is ACKED) else None

    async def _has_more(self, hold: TurnHold, *, by_handler: bool) -> bool:
        """Return whether the turn goes on, with an item that was read ahead.

        Args:
            by_handler: whether the handler has acked the last item, and may have ended the lease.
        """
        while len(hold.progress.done) >= BATCH_ITEMS and not (hold.missing or hold.fenced):
            hold.room.clear()
            await hold.room.wait()
            if hold.over:
                return False
        if not by_handler and (self._stopping.done() or hold.missing or hold.fenced):
            self.leave(hold, "place")
            return False
        over = hold.used >= hold.quota
        if not by_handler and (hold.is_alone or (over and self.holds.ready)):
            # The ack looks whether an item has come meanwhile; or this consumer has others that wait.
            self.leave(hold, "tail" if over else "place")
            return False
        if hold.outdated or not await self._are_good(hold):
            hold.outdated = False
            hold.rows.clear()
        return bool(hold.rows) or await self._read_ahead(hold, by_handler=by_handler)

    async def _are_good(self, hold: TurnHold) -> bool:
        """Return whether the turn can go on with the items that were read ahead, at the end of a quantum."""
        if hold.used < hold.quota or not hold.rows:
            return True
        await asyncio.sleep(0)  # handlers that never wait would keep the loop from learning what was leased ahead
        if self.holds.ready or time.monotonic() - hold.looked > AHEAD_SECONDS:
            return False
        done, available = hold.progress.done, self._turns.session(hold.lease).layout.available
        first = available.key(done[0].packed) if done else hold.rows[0].key
        ask = partial(self._turns.may_go_on, pointer=hold.lease, first=first, edits=hold.edits)
        began = time.monotonic()
        good = await run_async(repeated(self.db.create_transaction(), ask, commits=False))
        if good:
            hold.seen = began
        return good

    async def _read_ahead(self, hold: TurnHold, *, by_handler: bool) -> bool:
        """Read the session's next items. Return False if the turn is over."""
        limit = hold.quota if hold.others or time.monotonic() - hold.looked > AHEAD_SECONDS else BATCH_ITEMS
        before = hold.progress
        found = await self._look(hold, max(1, min(limit, BATCH_ITEMS, AHEAD_BYTES // self._mean_bytes)))
        if found is None:
            hold.over = True
            if not by_handler:
                await self._lost(hold)
            return False
        hold.missing, hold.edits, hold.looked = False, found.edits, time.monotonic()
        if not before.done and hold.progress is before:  # else an ack was committed after this look's read version
            hold.progress = TurnProgress(acked=found.acked)  # a handler may have acked more than its own item
        hold.others = found.others or bool(self.holds.ready)  # this consumer may have leased other sessions ahead
        over = hold.used >= hold.quota and hold.others
        if over or found.leaves or not found.rows or self._stopping.done() or self._sessions.has_messages:
            self.leave(hold, "tail" if over else "place")
            return False
        hold.rows.extend(found.rows)
        self._mean_bytes = 1 + sum(len(row.value) for row in found.rows) // len(found.rows)
        if hold.state is UNCHANGED:
            hold.state = found.state
        return True

    async def _look(self, hold: TurnHold, limit: int) -> Ahead | None:
        began = time.monotonic()
        look = partial(self._turns.look, pointer=hold.lease, progress=hold.progress, limit=limit)
        found = await run_async(self._sessions.queue.read(self.db, look))
        hold.seen = began
        return found

    async def _next_row(self, hold: TurnHold) -> SessionLease | None:
        """Return the lease of the next item that was read ahead."""
        hold.used %= hold.quota
        row = hold.rows.popleft()
        try:
            return await run_async(self._turns.item(self.db, hold.lease, row, hold.state, hold.progress))
        except (FormatError, CodecError, CheckFailed):
            # The next lease of this session begins with the item, and blocks the session.
            self.leave(hold, "place")
            return None

    async def _lost(self, hold: TurnHold) -> None:
        """Count a lease that a look has found lost, with how a call by position took an item of this turn away."""
        hold.over = True
        ask = partial(self._turns.why_taken, pointer=hold.lease, begun=hold.progress.begun)
        hold.reason = await run_async(self._sessions.queue.read(self.db, ask)) or hold.reason
        self.holds.lost(hold)

    async def _ack_and_next(self, hold: TurnHold, lease: SessionLease, result: object) -> SessionLease | None:
        """Ack an item, and begin the session's next one in the same transaction. Return it; None if the turn is over.

        A smart check may rewrite a waiting item, so that nothing is read ahead.
        """
        hold.over, hold.settling, began = True, True, time.monotonic()
        done = self._done_of(result) or Done(result if lease.wants_result else None)
        try:
            following: SessionLease | None = await self._sessions.ack_and_next.aio(
                self.db, lease, state=_state_of(result), result=done, duration=self.terms.duration
            )
        except LeaseLost as error:
            hold.reason = error.reasons.get(lease.position, "")
            self.holds.tell_ended(hold, lease.position, acked=False)
            self.holds.lost(hold)
            return None
        except (CodecError, FormatError, CheckFailed):  # of the next item
            self._acked_alone(hold, lease)
            raise
        except ValueError as error:  # of the function `weights`; nothing was written
            await self.fail(hold, lease, error)
            return None
        self._acked_alone(hold, lease)
        hold.over, hold.seen = following is None, began
        return following

    async def _done_with(self, hold: TurnHold, item: TurnItem, lease: SessionLease, result: object) -> TurnItem | None:
        """Return the finished item, with its new state. A state that can't be stored fails the attempt."""
        try:
            kept = encode_result((self._done_of(result) or Done(result)).result) if lease.wants_result else b""
            return item._replace(state=self._turns.encoded(result), result=kept)
        except (CodecError, ValueError) as error:
            await self.fail(hold, lease, error)
            self._ended(hold)
            return None

    def leave(self, hold: TurnHold, where: Where) -> None:
        """End a turn: the items that are done are acked, and the lease ends."""
        hold.progress = hold.progress._replace(current=None)
        hold.leaving = where
        hold.settling = True
        self.holds.to_ack(hold)

    def _ended(self, hold: TurnHold) -> None:
        """Note that the item was given back, together with an ack of those before it."""
        if hold.leaving is not None:
            return  # it was refused
        hold.over = True
        if not hold.told:
            self._count_acked(hold)

    def _count_acked(self, hold: TurnHold) -> None:
        """Count what a verb of a later item acked too."""
        if done := hold.progress.done:
            self._count(hold, hold.note_acked(done[-1]))

    def _count(self, hold: TurnHold, acked: Sequence[TurnItem]) -> None:
        self.report.acked += len(acked)
        for one in acked:
            self.holds.tell_ended(hold, one.position, acked=True)

    def write_acks(self) -> None:
        waiting = self.holds.done
        while waiting:
            self.holds.gather()
            holds: dict[TurnHold, int] = {}
            while waiting and sum(holds.values()) < BATCH_ITEMS:
                hold = waiting.popleft()
                if isinstance(hold, TurnHold) and not hold.over:
                    holds[hold] = max(1, len(hold.progress.done))
            # Only now: what the event loop adds to a hold from here on, it has put into `done` again.
            settlements, began = [hold.to_settle() for hold in holds], time.monotonic()
            settled = run(self._sessions.queue.transact(self.db, partial(self._turns.settle, settlements=settlements)))
            for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
                if outcome.acked:
                    hold.last_acked = settlement.progress.done[outcome.acked - 1]
            self.holds.pace.acked_in(time.monotonic() - began)
            self._loop.call_soon_threadsafe(self.settled, list(holds), settlements, settled, began)

    def settled(
        self, holds: list[TurnHold], settlements: list[Settlement], settled: list[SettledTurn], began: float
    ) -> None:
        if on_acked and (items := sum(outcome.acked for outcome in settled)):
            tell_acked(Acked(self._sessions.queue, (), items, 0, time.monotonic() - began))
        for hold, settlement, outcome in zip(holds, settlements, settled, strict=True):
            if outcome.acked:  # also if the lease was lost since
                self._count(hold, hold.note_acked(settlement.progress.done[outcome.acked - 1]))
            if hold.over:
                continue
            if hold.note(settlement, outcome, began):
                if not outcome.live or hold.fenced:
                    self.holds.lost(hold)
                self.holds.let_go(hold)

    async def _is_live(self, hold: Hold, lease: Lease) -> bool:
        look = partial(self._turns.is_live, pointer=hold.lease, position=lease.position)
        return await run_async(self._sessions.queue.read(self.db, look))

    def _refused(self, hold: Hold, error: LeaseLost) -> None:
        # Perhaps the lease lives, and only an item of this turn was changed. Ack those in front of it, and leave.
        if isinstance(hold, TurnHold):
            hold.reason = next(iter(error.reasons.values()), "")
            hold.fenced = True
            self.leave(hold, "place")

    def _ack(self, lease: Lease, result: object, done: Done) -> Awaitable[None]:
        return self._sessions.ack.aio(self.db, cast(SessionLease, lease), state=_state_of(result), result=done)

    def _done_of(self, result: object) -> Done | None:
        if isinstance(result, NewState):
            return Done(result.result, result.then)
        return result if isinstance(result, Done) else None


def _state_of(result: object) -> Any:
    return result.value if isinstance(result, NewState) else UNCHANGED
