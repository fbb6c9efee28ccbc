"""The transaction of a smart enqueue: it reads everything, decides, and then writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from msgspec.structs import replace

from fdbqueue import BulkInterrupted, BulkReport, FdbQueueError, ItemTooLarge, Position, Queue
from fdbqueue.engine.keys import is_within
from fdbqueue.engine.optional import has_turns
from fdbqueue.lowlevel import (
    Database,
    Editing,
    Envelope,
    FDBError,
    Layout,
    Notes,
    Standing,
    Steps,
    Transaction,
    chunks_of,
    clear_parts,
    envelope,
    has_parts,
    is_database,
    leaves_in_doubt,
    locate,
    new_random,
    notes_of,
    started,
    write_chunks,
)
from fdbqueue.moves.ends import OutcomeRecord
from fdbqueue.stored.items import check_headers
from fdbqueue.stored.looks import check_encodes
from fdbqueue.verbs.editing import EditPlan, ItemChange
from fdbqueue.writes.adaptive_limit import Halving
from fdbqueue.writes.appending import append_item, ask_to_enter

from ..leases import Leases
from ..leases.lease import positive, visible_at
from ..leases.transitions import Transitions
from .capacity import Capacity, Going
from .check_runner import Answers, CheckRunner, Incoming
from .copies import Copies, recipient_parts
from .scanning import (
    WINDOW,
    FoundItem,
    Scan,
    SmartIndex,
    begun_entries,
    deadline_parts,
    depend_on_last,
    is_deadline,
    last_of,
    place_of,
    position_of,
)
from .types import Decision, Message, MessageType, Outcome

_DELETING = (Decision.queue_and_delete, Decision.ignore_and_delete)
_LEAVING_OUT = (Decision.ignore, Decision.ignore_and_delete)
_ONE = (1).to_bytes(8, "little")
DEPENDENT_NAMES_BYTES = 1_000
"""Largest size of the names of dependent keys in an item's notes."""


@dataclass(frozen=True, slots=True)
class EnqueueTerms:
    """The other arguments of an enqueue."""

    visible_at_us: int
    """Time at which the item becomes available; 0: no delay."""
    ttl_us: int
    """Time to live; 0: as its type says."""
    headers: Mapping[str, object] | None


def enqueue_terms(
    now_us: int, delay: float | None, at: float | None, ttl: float | None, headers: Mapping[str, object] | None
) -> EnqueueTerms:
    """Return the terms that an enqueue was given.

    Raises:
        TypeError, ValueError: one of them is wrong.
    """
    if headers is not None:
        check_headers(headers)
    ttl_us = 0 if ttl is None else positive(ttl, "ttl")
    return EnqueueTerms(visible_at(now_us, delay, at), ttl_us, headers)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A queued item that takes the incoming item's values."""

    by: FoundItem
    payload: bytes
    stored: bytes
    """The new stored value."""
    notes: Notes
    told: tuple[bytes, ...]
    """The parts of the notes that name keys for monitors and recipients."""
    moves: bool
    """Whether the incoming item's delay changes the time at which it becomes available."""


@dataclass(slots=True)
class _Entering:
    """The item to append."""

    new: Incoming
    headers: Mapping[str, object] | None
    rank: int | None
    stored: bytes
    notes: Notes


class Admitting:
    """Decides about the incoming items of one queue, and enqueues them.

    Args:
        queue: the queue.
        leases: the leases whose clock and timers count.
        check_runner: asks the queued items. Its terms say how many an incoming item may be compared with.
    """

    def __init__(self, queue: Queue, leases: Leases, check_runner: CheckRunner) -> None:
        self._queue = queue
        self._layout: Layout = queue.layout
        self._home: Layout = queue.layout
        """Where the outcomes and the blobs of the items are kept."""
        self.check_runner = check_runner
        self.index = SmartIndex(queue.layout)
        self.capacity = Capacity(queue, leases, self.index, check_runner.terms.limit)
        self._copies = Copies(queue.layout)

    async def admit(self, tr: Transaction, new: Incoming, terms: EnqueueTerms, now_us: int) -> Outcome:
        """Compare an incoming item with the items that its type sees, and do what they decide.

        A failed call has written nothing.
        """
        rank = self._rank(new.message, terms.headers)
        stored = envelope(new.payload, terms.headers)
        asked_to_enter = started(self._ask_to_enter(tr))
        scan = self._scan(tr, new)
        asked_for_last = started(last_of(tr, self._layout)) if self.check_runner.wants_last else None
        asked_for_numbers = started(self._copies.all_numbers(tr))
        ahead = self.capacity.ahead(tr, new)
        await check_encodes(tr, self._queue.home)  # before it decodes what another codec wrote
        going = Going()
        last = None if asked_for_last is None else await asked_for_last
        answers, asked = await self._ask(tr, scan, new, going, now_us, last)
        by, decision = answers.by, answers.decision
        if by is not None and decision in _DELETING:
            going.delete(by.standing)
        numbers = await asked_for_numbers
        rewritten = entering = None
        has_room = wanted = decision not in _LEAVING_OUT
        if wanted:
            entering = _Entering(new, terms.headers, rank, stored, self._notes(new, terms, now_us, numbers))
            has_room = await self.capacity.make(tr, new, going, now_us, ahead)
            if not has_room:
                going.spare()
                entering = None
        elif by is not None and answers.type is not None and answers.payload is not None:
            replacement = self._replacement(answers.type, answers.payload, by, now_us)
            if answers.terms == "incoming" and (rank := self._rank(replacement.message, terms.headers)) != by.rank:
                # One item leaves, and one of the same type and key enters. That is within every limit.
                decision = Decision.queue_and_delete
                going.delete(by.standing)
                stored = envelope(replacement.payload, terms.headers)
                entering = _Entering(
                    replacement, terms.headers, rank, stored, self._notes(replacement, terms, now_us, numbers)
                )
            else:
                rewritten = self._rewritten(
                    by, replacement, terms if answers.terms == "incoming" else None, now_us, numbers
                )
        take_index = None if entering is None else await asked_to_enter
        # From here on it writes. Only a read of the database can fail.
        position = None
        if entering is not None and take_index is not None:
            position = Position(take_index(), new_random(), rank=entering.rank)
        moves = self._moves(tr, now_us)
        self._remove(moves, going)
        if rewritten is not None:
            self._rewrite(tr, moves, rewritten)
        if position is not None and entering is not None:
            self._append(tr, moves, position, entering)
        await moves.settle()
        moves.finish()
        return Outcome(
            decision=Decision.queue if decision is Decision.dont_care else decision,
            by=self._position(by),
            position=position,
            rewritten=None if rewritten is None else self._position(by),
            deleted=tuple(position_of(self._layout, item.packed) for item in going.deleted),
            expired=tuple(position_of(self._layout, item.packed) for item in going.expired),
            full=wanted and not has_room,
            asked=asked,
            items_read=scan.items,
            bytes_read=scan.size_bytes,
            terms=None if answers.payload is None else answers.terms,
        )

    async def read_ahead(self, tr: Transaction, batch: Sequence[Incoming]) -> None:
        """Read together what several messages are going to read.

        A cluster's client answers a read that a transaction has made before by itself, with the transaction's own
        writes in the answer. So each message finds there what it needs, and what those before it have done. These are
        snapshot reads: each message still declares what it depends on. It reads the rest itself: more than 1,000 items
        of an index, large payloads, and what makes room in a full queue.

        *Cost:* two rounds of parallel reads.
        """
        spans, most = self.capacity.spans(batch), self.check_runner.terms.max_items + 1
        spans |= {span: most for new in batch for span in self.index.spans(new.type, new.key) or ()}
        entries = begun_entries(tr, spans)
        others: list[Steps[object]] = [
            started(check_encodes(tr, self._queue.home)),
            started(self._copies.all_numbers(tr)),
            *self.capacity.counted(tr),
        ]
        if self.check_runner.wants_last:
            others.append(started(last_of(tr, self._layout)))
        found: set[bytes] = set()
        for span, read in entries:
            found.update(span.packed(row.key) for row in await read)
        await locate(tr.snapshot, self._layout, sorted(found)[:WINDOW])
        for other in others:
            await other

    # --- what the sessions of a queue do in another way

    def _ask_to_enter(self, tr: Transaction) -> Steps[Callable[[], int]]:
        return ask_to_enter(tr, self._layout, 1, self._queue.order_name, entry="smart")

    def _rank(self, message: Message, headers: Mapping[str, object] | None) -> int | None:
        return self._queue.rank(message, headers)

    def _scan(self, tr: Transaction, new: Incoming) -> Scan:
        return Scan(tr, self._queue, self.index, new.type, new.key, self.check_runner.terms.bounds)

    def _moves(self, tr: Transaction, now_us: int) -> Transitions:
        return Transitions(tr, self._layout, now_us)

    def _address(self, packed: bytes) -> bytes:
        """Return how an item is named where its outcome is kept."""
        return packed

    # --- parts of `admit`

    async def _ask(
        self, tr: Transaction, scan: Scan, new: Incoming, going: Going, now_us: int, last: Standing | None
    ) -> tuple[Answers, int]:
        asked = 0
        try:
            while True:
                window = await scan.next_window()
                answers = self.check_runner.window(new, window, now_us, None if last is None else last.packed)
                if last is not None:
                    depend_on_last(tr, self._layout, last, answers.told_last)
                going.expire(found.standing for found in answers.expired)
                asked += answers.asked
                if answers.by is not None or not window:
                    break
        except FdbQueueError:
            # A caller may catch this error and write something else. That write depends on the items seen here.
            scan.decided(None)
            if last is not None:
                depend_on_last(tr, self._layout, last, [True])
            raise
        scan.decided(answers.by)
        return answers, asked

    def _notes(self, new: Incoming, terms: EnqueueTerms, now_us: int, numbers: list[int]) -> Notes:
        beside = (self.index.part(new.type.name, new.key), *self._told(new, now_us, numbers))
        _check_size(new.type, beside)
        return Notes(
            enqueued_at_us=now_us,
            visible_at_us=terms.visible_at_us,
            ttl_at_us=_ends_at_us(new, terms, now_us),
            beside=beside,
        )

    def _told(self, new: Incoming, now_us: int, numbers: list[int]) -> tuple[bytes, ...]:
        """Return the parts of the notes that name an item's keys for monitors and recipients."""
        deadline_us = new.given.deadline.at_us(now_us)
        return (*deadline_parts(self._layout, deadline_us), *recipient_parts(self._layout, numbers))

    def _remove(self, moves: Transitions, going: Going) -> None:
        for counter, items in (("expired", going.expired), ("deleted", going.deleted)):
            for item in items:
                moves.leave(item.state, item.packed, notes_of(item.stored))
                moves.vanish(item.packed, item.stored, counter)

    def _append(self, tr: Transaction, moves: Transitions, position: Position, entering: _Entering) -> None:
        chunks = chunks_of(entering.new.payload)
        append_item(tr, self._layout, position, entering.stored, chunks, entering.notes, moves)
        self._wake_monitors(tr, entering.notes)

    def _replacement(self, own: MessageType, payload: bytes, by: FoundItem, now_us: int) -> Incoming:
        """Return the new message of an item, with the results of its type's functions."""
        message = self._queue.codec.decode(payload)
        whose = f"what the item {self._position(by)} was to become; nothing was written"
        return Incoming(message, own, self.check_runner.functions.of(own, message, now_us, whose=whose), payload)

    def _rewritten(
        self, by: FoundItem, replacement: Incoming, terms: EnqueueTerms | None, now_us: int, numbers: list[int]
    ) -> Rewritten:
        """Return an item with a new message: its times restart, and its recipients must fetch it again.

        Args:
            terms: the incoming item's terms, if the item gets them; None: it keeps its own.
        """
        was = by.opened.notes
        index = self._layout.part_of(self._layout.smart)
        told = self._told(replacement, now_us, numbers)
        beside = (*(part for part in was.beside if is_within(part, index)), *told)
        _check_size(replacement.type, beside)
        headers, visible_at_us = by.opened.headers, was.visible_at_us
        ttl_at_us = was.ttl_at_us if replacement.type.expires is None else replacement.given.expires.at_us(now_us)
        if terms is not None:
            headers, visible_at_us = terms.headers or {}, terms.visible_at_us
            ttl_at_us = _ends_at_us(replacement, terms, now_us)
        notes = replace(was, visible_at_us=visible_at_us, ttl_at_us=ttl_at_us, beside=beside)
        moves = visible_at_us != was.visible_at_us
        return Rewritten(by, replacement.payload, envelope(replacement.payload, headers), notes, told, moves)

    def _rewrite(self, tr: Transaction, moves: Transitions, new: Rewritten) -> None:
        """Store a new message for an item, under the item's own key."""
        was, packed = new.by.opened.notes, new.by.packed
        if has_parts(new.by.stored):
            clear_parts(tr, self._layout, packed, new.by.stored, self._home)
        if new.moves:
            moves.leave(new.by.state, packed, was)
            enter = moves.enter_delayed if new.notes.visible_at_us else moves.enter_available
            enter(packed, new.stored, new.notes)
        else:
            moves.rewrite(place_of(self._layout, new.by.state), packed, new.stored, was, new.notes)
        self.write_beside(tr, new)
        write_chunks(tr, self._layout, position_of(self._layout, packed), chunks_of(new.payload))

    async def rewritten(self, tr: Transaction, by: FoundItem, new: Incoming, now_us: int) -> Rewritten:
        """Return an item with a new message, and otherwise its own terms. It writes nothing."""
        numbers = await self._copies.all_numbers(tr)
        return self._rewritten(by, new, None, now_us, numbers)

    def write_beside(self, tr: Transaction, new: Rewritten) -> None:
        """Write the dependent keys of an item with a new message, and its pending outcome."""
        was, packed = new.by.opened.notes, new.by.packed
        for part in was.beside:
            if part not in new.notes.beside:
                tr.clear(self._layout.prefix + part + packed)
        copies, version = self._layout.part_of(self._layout.copies), new_random()
        for part in new.told:
            # An unchanged deadline may have been reported already, and must not be reported twice.
            if part not in was.beside or not is_deadline(self._layout, part):
                # A copy's version distinguishes confirmations of the former message from those of this one.
                tr.set(self._layout.prefix + part + packed, version if is_within(part, copies) else b"")
        if any(is_within(part, copies) for part in new.told):
            tr.add(self._layout.resent_key, _ONE)
        OutcomeRecord.begin(tr, self._home, self._address(packed), new.notes)
        self._wake_monitors(tr, new.notes)

    def _wake_monitors(self, tr: Transaction, notes: Notes) -> None:
        """Wake the monitors if there is a deadline. The atomic add changes the key without a conflict."""
        if any(is_deadline(self._layout, part) for part in notes.beside):
            tr.add(self._layout.alarm_key, _ONE)

    def _position(self, found: FoundItem | None) -> Position | None:
        return None if found is None else position_of(self._layout, found.packed)


def _ends_at_us(new: Incoming, terms: EnqueueTerms, now_us: int) -> int:
    """Return the time at which a message expires, by its type or its terms, whichever is first; 0: never."""
    ends = [at_us for at_us in (new.given.expires.at_us(now_us), terms.ttl_us and now_us + terms.ttl_us) if at_us]
    return min(ends, default=0)


def _check_size(own: MessageType, beside: tuple[bytes, ...]) -> None:
    size_bytes = sum(map(len, beside))
    if size_bytes > DEPENDENT_NAMES_BYTES:
        raise ItemTooLarge(
            f"The key of the new {own.name!r} and its other dependent keys have {size_bytes:,} bytes,"
            f" over the limit of {DEPENDENT_NAMES_BYTES:,}. Use a shorter key, such as a hash of it."
        )


# Enqueues many messages in few transactions, each exactly once; each is also compared with those before it.

BATCH_MESSAGES = 100
"""How many share a transaction: each reads the writes of those before it, so they run one after the other."""
BATCH_BYTES = 1_000_000

Admit: TypeAlias = Callable[[Transaction, Incoming], Steps[Outcome]]


class _OneFails(Exception):
    """One of the messages of a batch fails."""


@dataclass(slots=True)
class SmartBatches:
    """Enqueues the messages of one call.

    If one message fails, its batch is not written. The batch is split until each message is tried in its own
    transaction. So the messages before the failing one are enqueued, and each message waits for room separately.
    """

    queue: Queue
    incoming: Callable[[Message], Incoming]
    """Prepares a message."""
    admit: Admit
    """Compares and enqueues it in a transaction."""
    ahead: Callable[[Transaction, Sequence[Incoming]], Steps[None]]
    """Reads together what several messages need."""
    alone: Callable[..., Steps[Outcome]]
    """Does so in its own transaction, ``alone(new=…)``; waits for room if the limit says so."""
    taken: int = 0
    """How many messages were read from the input."""
    tried: int = 0
    """How many messages the last transaction had."""

    async def enqueue(self, tr: Transaction | Database, messages: Iterable[Message]) -> list[Outcome]:
        """Enqueue all messages, in the given transaction or in a few.

        Raises:
            BulkInterrupted: given a database, one failed after others were enqueued.
        """
        if is_database(tr):
            return await self._in_batches(cast(Database, tr), messages)
        return await self._together(cast(Transaction, tr), [self.incoming(message) for message in messages])

    async def _together(self, tr: Transaction, batch: list[Incoming]) -> list[Outcome]:
        if len(batch) > 1 and not has_turns(tr):
            await self.ahead(tr, batch)
        return [await self.admit(tr, new) for new in batch]

    async def _in_batches(self, db: Database, messages: Iterable[Message]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        try:
            halving = Halving(self._cut(messages))
            for batch in halving:
                await self._batch(db, batch, outcomes, halving)
        except Exception as error:
            if not outcomes:
                raise
            raise self._interrupted(outcomes, error) from error
        return outcomes

    async def _batch(
        self, db: Database, batch: list[Incoming], outcomes: list[Outcome], halving: Halving[Incoming]
    ) -> None:
        async def body(tr: Transaction) -> list[Outcome]:
            try:
                return await self._together(tr, batch)
            except FDBError:
                raise
            except Exception as error:
                raise _OneFails from error  # a transaction with this message only raises its error

        self.tried = len(batch)
        if len(batch) == 1:
            outcomes.append(await self.alone(new=batch[0]))
            return
        try:
            outcomes += await self.queue.transact(db, body, on_retry=halving.note)
        except _OneFails:
            halving.halve()
        except FDBError as error:
            halving.halve(error)

    def _cut(self, messages: Iterable[Message]) -> Iterator[list[Incoming]]:
        batch: list[Incoming] = []
        size_bytes = 0
        for message in messages:
            self.taken += 1
            try:
                new = self.incoming(message)
            except Exception:
                if batch:
                    yield batch  # enqueue the messages before the failing one
                raise
            if batch and (len(batch) >= BATCH_MESSAGES or size_bytes + len(new.payload) > BATCH_BYTES):
                yield batch
                batch, size_bytes = [], 0
            batch.append(new)
            size_bytes += len(new.payload)
        if batch:
            yield batch

    def _interrupted(self, outcomes: list[Outcome], error: Exception) -> BulkInterrupted:
        done = len(outcomes)
        positions = [outcome.position for outcome in outcomes if outcome.position is not None]
        ends = (positions[0], positions[-1]) if positions else (None, None)
        known = done + self.tried if leaves_in_doubt(error) else done
        return BulkInterrupted(
            f"The enqueue into {self.queue!r} stopped after {done:,} messages were dealt with: {error} Go on with the"
            " next one, or leave it out.",
            report=BulkReport(len(positions), 0, *ends),
            missing=[(known, self.taken)] if known < self.taken else [],
            unknown=[(done, known)] if done < known else [],
        )


# Change messages of a smart queue by their positions: the index, deadlines and copies change with them.


class SmartEditing(Editing):
    """Changes of one smart queue's messages.

    A new message has the type and the relation key of the old one. No queued item is asked about it, as when an item's
    own check replaces its message.
    """

    def __init__(self, queue: Queue, now_us: Callable[[], int], admitting: Admitting) -> None:
        super().__init__(queue, now_us)
        self._admitting = admitting

    async def revalued(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, now_us: int
    ) -> tuple[bytes, Notes, Rewritten]:
        """Return the message to store, the item's notes with it, and its new dependent keys.

        Raises:
            CodecError: the message has no registered type, or does not fit it. CheckFailed: a function of its type is
                at fault.
            ValueError: it has another type or key than the item.
        """
        new = self._admitting.check_runner.incoming(change.value, now_us)
        if self._admitting.index.part(new.type.name, new.key) not in opened.notes.beside:
            raise ValueError(
                f"The item {self._position(one.packed).text} of {self.queue!r} is not a {new.type.name!r} with the key"
                f" {new.key!r}. An update keeps type and key. Nothing was written. Cancel the item, and enqueue the new"
                " message."
            )
        found = FoundItem(one.packed, one.state, one.stored, opened, b"")
        rewritten = await self._admitting.rewritten(tr, found, new, now_us)
        return new.payload, rewritten.notes, rewritten

    def write_beside(self, tr: Transaction, plan: EditPlan) -> None:
        """Write the deadlines and copies of a new message."""
        self._admitting.write_beside(tr, plan.more)
