"""Look at items, cancel, change and reschedule them by their positions, in every state, in one transaction.

Every change of a leased item takes its lease away: the holder has the item as it was. The holder's next call raises
`LeaseLost`. The reason is in the item's notes, as its last error. A cancelled item has an outcome for that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from msgspec.structs import replace

from fdbqueue.base.position import Position
from fdbqueue.base.times import HELD_US, not_negative
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.keys import is_within
from fdbqueue.engine.steps import Steps, rows, started, value_of
from fdbqueue.engine.transactional import is_database
from fdbqueue.errors import ChecksBypassed, StreamError
from fdbqueue.moves.ends import OutcomeRecord, group_keys
from fdbqueue.moves.moves import Moves
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.codecs import V
from fdbqueue.stored.items import (
    Envelope,
    Notes,
    chunks_of,
    envelope,
    is_chunked,
    notes_if_readable,
    with_blob,
    with_headers,
    with_notes,
)
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import check_encodes, wall_us
from fdbqueue.stored.order import PRIORITY
from fdbqueue.stored.places import STATES, Standing, StoredItem, claimed_places, clear_blob, locate, stored_item
from fdbqueue.stored.positions import RANDOM_BYTES, pack
from fdbqueue.stored.settings import check_renamed, own_items
from fdbqueue.writes.adaptive_limit import Halving
from fdbqueue.writes.appending import write_chunks

if TYPE_CHECKING:
    from fdbqueue.verbs.queue import Queue


async def refuse_elsewhere(tr: Transaction, layout: Layout, missing: Iterable[bytes], verb: str) -> None:
    """Refuse positions that are not there among the plain items, if a layer has them: "not there" would be wrong.

    Args:
        missing: their packed positions.
        verb: the verb that was called.

    Raises:
        ValueError: one is the position of an item of a layer.

    *Conflicts:* none. *Cost:* two reads if a position has a rank, else none.
    """
    positions = [layout.available.position(layout.prefix + packed) for packed in missing]
    strange = [one for one in positions if one.rank is not None or len(one.random) > RANDOM_BYTES]
    for part in own_items.all().values() if strange else ():
        await part.refuses(tr, layout, strange, verb)


R = TypeVar("R")

BATCH_ITEMS = 50
"""Most items that one transaction of a call with a database changes."""
_TAKEN_AWAY = ("It was cancelled while ", "It was updated while ", "It was rescheduled while ")


class Unchanged:
    """The type of `UNCHANGED`."""

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
"""Given as a new value or state: keep the present one."""


@dataclass(frozen=True, slots=True)
class ItemChange:
    """What changes of items."""

    verb: str
    """"updated" or "rescheduled"."""
    value: Any = UNCHANGED
    payload: bytes = b""
    """The value, encoded."""
    headers: Mapping[str, object] | None = None
    """The new headers; None: the present ones."""
    priority: int | None = None
    delay_us: int | None = None
    at_us: int | None = None

    @property
    def has_time(self) -> bool:
        """Whether the time changes at which the item becomes available."""
        return self.delay_us is not None or self.at_us is not None

    def visible_at_us(self, now_us: int) -> int:
        """Return when the item becomes available; 0: now."""
        at_us = now_us + self.delay_us if self.delay_us is not None else self.at_us or 0
        return at_us if at_us > now_us else 0


@dataclass(slots=True)
class EditPlan:
    """How one item changes. It is made before the first write."""

    one: Standing
    opened: Envelope
    was: Notes
    notes: Notes
    stored: bytes
    """The new envelope."""
    chunks: list[bytes] | None
    """The chunks of a new value; None: the value stays."""
    packed: bytes
    """The packed position afterwards."""
    state: str
    """The state afterwards."""
    more: Any = field(default=None)
    """What a layer wants to know when it writes."""

    @property
    def moves(self) -> bool:
        """Whether the item gets another rank, and so another position."""
        return self.packed != self.one.packed


class Editing(Generic[V]):
    """Changes of one queue's items by their positions. Layers whose items have more keys override parts of it.

    Args:
        queue: the queue.
        now_us: the clock, in microseconds.
    """

    def __init__(self, queue: Queue[V], now_us: Callable[[], int] = wall_us) -> None:
        self.queue = queue
        self.now_us = now_us
        self._layout = queue.layout
        self._home = queue.layout
        """Where the outcomes and the groups of the items are kept."""

    # --- what the verbs call

    def get_all(self, tr: Transaction | Database, places: list[bytes]) -> Steps[list[StoredItem[V] | None]]:
        """Return the items at packed positions, in their order, in as many transactions as are needed."""
        self.check(places)
        return self._in_batches(self.queue.read, tr, places, self.get)

    def cancel_all(self, tr: Transaction | Database, places: list[bytes]) -> Steps[list[bool]]:
        """Remove the items at packed positions. Return for each whether it was there, False for one given again."""
        self.check(places)
        return self._in_batches(self.queue.transact, tr, places, self.cancel, again=False)

    def change_all(
        self, tr: Transaction | Database, places: list[bytes], change: ItemChange
    ) -> Steps[list[Position | None]]:
        """Change the items at packed positions. Return their positions afterwards."""
        self.check(places)
        return self._in_batches(self.queue.transact, tr, places, partial(self.change, change=change))

    async def _in_batches(
        self,
        run: Callable[..., Steps[dict[bytes, R]]],
        tr: Transaction | Database,
        places: list[bytes],
        body: Callable[[Transaction, list[bytes]], Steps[dict[bytes, R]]],
        *,
        again: R | None = None,
    ) -> list[R]:
        """Run `body` for all items in the caller's transaction. Given a database, use several transactions if needed.

        Args:
            again: the result for an item that was given before; None: the same.

        Returns:
            the result for each item. An item that is given twice is handled once.
        """
        unique = list(dict.fromkeys(places))
        results: dict[bytes, R] = {}
        if not is_database(tr):
            results = await body(cast(Transaction, tr), unique)
        else:
            halving = Halving(unique[at : at + BATCH_ITEMS] for at in range(0, len(unique), BATCH_ITEMS))
            for batch in halving:
                try:
                    results |= await run(tr, partial(_of_batch, places=batch, body=body))
                except FDBError as error:
                    halving.halve(error)
        if again is None:
            return [results[packed] for packed in places]
        return [results.pop(packed, again) for packed in places]

    # --- arguments

    @staticmethod
    def place_of(position: object, verb: str) -> bytes:
        """Return a position packed.

        Raises:
            TypeError: it is something else.
        """
        if isinstance(position, Position):
            return pack(position)
        hint = ""
        if isinstance(position, str):
            hint = " Make one of its text: Position.parse(text)."
        elif isinstance(getattr(position, "position", None), Position):
            hint = " Give its `position`."
        raise TypeError(f"{verb} takes an item's Position, as enqueue returns it, not {position!r}.{hint}")

    @staticmethod
    def places_of(positions: object, verb: str) -> list[bytes]:
        """Return positions packed.

        Raises:
            TypeError: they are no iterable of positions.
        """
        if isinstance(positions, Position | str | bytes | Mapping) or not isinstance(positions, Iterable):
            one = verb.removesuffix("_many")
            raise TypeError(
                f"{verb} takes positions, as in {verb}(db, [position]), not {positions!r}. For one item use {one}."
            )
        return [Editing.place_of(position, verb) for position in positions]

    def updated(self, value: object, headers: Mapping[str, object] | None) -> ItemChange:
        """Return the checked change of an update.

        Raises:
            ValueError: there is nothing to change. CodecError, ItemTooLarge: the value or the headers can't be stored.
        """
        if isinstance(value, Unchanged) and headers is None:
            raise ValueError("An update changes the value or the headers: give value=…, headers={…}, or both.")
        return self.changed("updated", value, headers)

    def rescheduled(self, delay: float | None, at: float | None, priority: int | None) -> ItemChange:
        """Return the checked change of a reschedule.

        Raises:
            ValueError: no term was given, or both a delay and a time; the queue has no such priority.
        """
        if delay is None and at is None and priority is None:
            raise ValueError("A reschedule changes the time or the priority: give delay=…, at=… or priority=….")
        return self.changed("rescheduled", delay=delay, at=at, priority=priority)

    async def get(self, tr: Transaction, places: list[bytes]) -> dict[bytes, StoredItem[V] | None]:
        """Return the items at packed positions."""
        found: dict[bytes, StoredItem[V] | None] = dict.fromkeys(places)
        there = await self._located(tr, places)
        for one in [*there.values(), *await self._claimed(tr, [at for at in places if at not in there])]:
            item = await self.queue.item(tr, self._position(one.packed), one.stored)
            found[one.packed] = stored_item(item, one.stored, one.state)
        await refuse_elsewhere(tr, self._layout, [at for at in places if found[at] is None], "get")
        if not any(found.values()):
            await check_renamed(tr.snapshot, self._layout)
        return found

    async def cancel(self, tr: Transaction, places: list[bytes]) -> dict[bytes, bool]:
        """Remove the items at packed positions. Return which were there."""
        there = await self._to_change(tr, places, "cancel")
        moves = Moves(tr, self._layout, self.now_us())
        found = await moves.read_notes({packed: one.stored for packed, one in there.items()})
        for packed, one in there.items():
            moves.cancel(one, found[packed])
        await moves.settle()
        moves.finish()
        return {packed: packed in there for packed in places}

    async def change(self, tr: Transaction, places: list[bytes], change: ItemChange) -> dict[bytes, Position | None]:
        """Change the items at packed positions. Return their positions afterwards."""
        moves = Moves(tr, self._layout, self.now_us())
        asking, checking = started(moves.ask()), started(self.check_codec(tr, change))
        there = await self._to_change(tr, places, change.verb.removesuffix("d"))
        await checking
        await asking
        plans = []
        for one in there.values():
            plan = await self.plan(tr, one, change, moves.now_us())
            plans.append(plan)
        after: dict[bytes, Position | None] = dict.fromkeys(places)
        for plan in plans:
            stays = await self.carry_out(tr, moves, plan)
            after[plan.one.packed] = self._position(plan.packed) if stays else None
        await moves.settle()
        moves.finish()
        return after

    def changed(
        self, verb: str, value: Any = UNCHANGED, headers: Mapping[str, object] | None = None, **terms: Any
    ) -> ItemChange:
        """Return a checked change.

        Raises:
            CodecError, ItemTooLarge, TypeError, ValueError: an argument is wrong.
        """
        payload = b"" if isinstance(value, Unchanged) else self.queue.encode(value)
        envelope(payload, headers)
        delay, at, priority = terms.get("delay"), terms.get("at"), terms.get("priority")
        if delay is not None and at is not None:
            raise ValueError("An item becomes available after a delay, or at a time; not both.")
        if priority is not None:
            self._rank_of(priority)
        delay_us = None if delay is None else not_negative(delay, "delay")
        at_us = None if at is None else not_negative(at, "at")
        return ItemChange(verb, value, payload, headers, priority, delay_us, at_us)

    async def check_codec(self, tr: Transaction, change: ItemChange) -> None:
        """Refuse a new value by another codec than that of the queue's items.

        Raises:
            OtherCodec: the queue is registered with another one.
        """
        if not isinstance(change.value, Unchanged):
            await check_encodes(tr, self.queue.home)

    # --- what layers override

    def check(self, places: list[bytes]) -> None:
        """Refuse packed positions that can't be those of items, before any key is read."""

    async def revalued(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, now_us: int
    ) -> tuple[bytes, Notes, Any]:
        """Return the payload to store for a new value, the item's notes with it, and what `write_beside` needs.

        Raises:
            ChecksBypassed: the item is in the index of a smart queue.
        """
        index = self._layout.part_of(self._layout.smart)
        if any(is_within(part, index) for part in opened.notes.beside):
            raise ChecksBypassed(
                f"The item {self._position(one.packed).text} of {self.queue!r} is in a smart queue's index, which"
                " another value may contradict. It was left as it is. Change it by"
                " fdbqueue.layers.SmartQueue(...).update."
            )
        return change.payload, opened.notes, None

    def write_beside(self, tr: Transaction, plan: EditPlan) -> None:
        """Write the dependent keys of an item with a new value, under its old position."""

    # --- finding

    async def _located(self, tr: Transaction, places: list[bytes]) -> dict[bytes, Standing]:
        """Find items. Conflict with every transaction that moves or changes one of them, or puts one there."""
        found = await locate(tr.snapshot, self._layout, sorted(places), STATES)
        there = {one.packed: one for one in found}
        for packed in places:
            for state in (there[packed].state,) if packed in there else STATES:
                tr.add_read_conflict_key(getattr(self._layout, state).key(packed))
        return {packed: there[packed] for packed in places if packed in there}

    async def _claimed(self, tr: Transaction, places: list[bytes]) -> list[Standing]:
        """Return the items that batches of streams have."""
        found: list[Standing] = []
        for batch in await claimed_places(tr, self._layout) if places else ():
            for packed in places:
                key = batch.place.key(packed)
                tr.add_read_conflict_key(key)
                row = await rows(tr.snapshot, key, key + b"\x00", limit=1)
                found += [Standing(packed, "claimed", one.value) for one in row]
        return found

    async def _to_change(self, tr: Transaction, places: list[bytes], verb: str) -> dict[bytes, Standing]:
        there = await self._located(tr, places)
        for one in await self._claimed(tr, [packed for packed in places if packed not in there]):
            raise StreamError(
                f"The item {self._position(one.packed).text} of {self.queue!r} is in a batch of a stream, which never"
                " changes. Nothing was written. Wait until the batch is acked, or release it."
            )
        if not there:
            await check_renamed(tr.snapshot, self._layout)
        await refuse_elsewhere(tr, self._layout, [packed for packed in places if packed not in there], verb)
        return there

    # --- changing

    async def plan(self, tr: Transaction, one: Standing, change: ItemChange, now_us: int) -> EditPlan:
        """Decide how an item changes. It writes nothing, so that a refused item leaves all others as they are."""
        opened = self.queue.open_envelope(self._position(one.packed), one.stored)
        was = notes = opened.notes
        stored, chunks, more = one.stored, None, None
        headers = self._headers(opened.headers, change)
        if not isinstance(change.value, Unchanged):
            payload, notes, more = await self.revalued(tr, one, opened, change, now_us)
            chunks = chunks_of(payload)
            stored = envelope(payload, headers or None)
            if opened.blob is not None and not opened.blob.is_value:
                stored = with_blob(stored, opened.blob)
        elif headers is not opened.headers:
            stored = with_headers(one.stored, headers)
        packed = await self._packed(tr, one, opened, change, headers)
        state, notes = self._after(one, notes, change, now_us)
        return EditPlan(one, opened, was, notes, stored, chunks, packed, state, more)

    def _headers(self, was: Mapping[str, object], change: ItemChange) -> Mapping[str, Any]:
        headers = was if change.headers is None else change.headers
        if change.priority is not None:
            return {**headers, PRIORITY: change.priority}
        if change.headers is not None and hasattr(self.queue.order, "rank_of") and PRIORITY in was:
            return {PRIORITY: was[PRIORITY], **headers}  # an item keeps its priority until it gets another one
        return headers

    async def _packed(
        self, tr: Transaction, one: Standing, opened: Envelope, change: ItemChange, headers: Mapping[str, object]
    ) -> bytes:
        """Return the item's packed position afterwards: with another rank, if the queue's order gives it one."""
        position = self._position(one.packed)
        if (
            position.rank is None
            or self.queue.order is None
            or (isinstance(change.value, Unchanged) and headers is opened.headers)
        ):
            return one.packed
        value = change.value
        if isinstance(value, Unchanged):
            value = (await self.queue.item(tr, position, one.stored)).value
        rank = self.queue.rank(value, headers)
        if rank == position.rank:
            return one.packed
        self.check_movable(position, cast(int, rank), opened.notes)
        return pack(Position(position.index, position.random, rank=rank))

    def check_movable(self, position: Position, rank: int, notes: Notes) -> None:
        """Refuse another rank for an item whose position is written down elsewhere.

        Raises:
            ValueError: it is.
        """
        named_by = ""
        if notes.keep_s:
            named_by = "its completion names its position"
        elif notes.held:
            named_by = "the item that it follows names its position"
        elif any(is_within(part, self._layout.part_of(self._layout.copies)) for part in notes.beside):
            named_by = "the copies of its recipients are named by its position"
        if named_by:
            raise ValueError(
                f"The item {position.text} of {self.queue!r} can't change its rank from {position.rank} to {rank}:"
                f" {named_by}. Nothing was written. Cancel it, and enqueue it again."
            )

    def _after(self, one: Standing, notes: Notes, change: ItemChange, now_us: int) -> tuple[str, Notes]:
        """Return an item's state and notes afterwards."""
        if one.state == "dead" and change.verb == "updated":
            return "dead", notes
        if one.state == "dead":
            notes = notes.as_new()
        if one.state == "leased":
            error = notes.cut_error(f"It was {change.verb} while {notes.consumer or 'a consumer'} had it.")
            notes = replace(notes, attempt=notes.attempt - 1, error=error)
        visible_at_us = notes.visible_at_us if one.state == "delayed" else 0
        if notes.held:
            if change.at_us is not None:
                raise ValueError(
                    f"The item {self._position(one.packed).text} of {self.queue!r} waits for another item, and can't"
                    " have a time `at`. Nothing was written. Give a delay, which begins after the other item."
                )
            visible_at_us = visible_at_us if change.delay_us is None else HELD_US + change.delay_us
        elif change.has_time:
            visible_at_us = change.visible_at_us(now_us)
        state = "delayed" if visible_at_us else "available"
        return state, notes.at_rest(visible_at_us=visible_at_us, held=notes.held)

    async def carry_out(self, tr: Transaction, moves: Moves, plan: EditPlan) -> bool:
        """Write a plan. Return False if the item's life was over when its lease was taken away."""
        one, layout = plan.one, self._layout
        if one.state == "dead" and plan.state != "dead":
            await OutcomeRecord.reopen(tr, self._home, self._address(one.packed), plan.notes)
            moves.leave_dead(one.packed)
        elif one.state != "dead":
            moves.leave(one.state, one.packed, plan.was)
        if one.state == "leased" and Takes.removed_if_over(moves, one.packed, one.stored, plan.notes, moves.now_us()):
            return False
        if plan.chunks is not None:
            self._replace_value(tr, plan)
        if plan.moves:
            await self._move_parts(tr, plan)
        if plan.state == "dead":
            tr.clear(layout.dead.key(one.packed))
            tr.set(layout.dead.key(plan.packed), with_notes(plan.stored, plan.notes))
        elif plan.state == "delayed":
            moves.enter_delayed(plan.packed, plan.stored, plan.notes)
        else:
            moves.enter_available(plan.packed, plan.stored, plan.notes)
        if one.state == "dead" and plan.state != "dead":
            moves.set_dependent(plan.packed, plan.notes)
        if one.state == "leased" and plan.notes.group:
            moves.returned_groups |= {plan.notes.group}
        return True

    def _replace_value(self, tr: Transaction, plan: EditPlan) -> None:
        """Replace the payload's chunks, or the blob that is the value. Another blob stays."""
        one, layout = plan.one, self._layout
        if is_chunked(one.stored):
            tr.clear_range(*layout.chunk_range_of(one.packed))
        blob = plan.opened.blob
        if blob is not None and blob.is_value:
            clear_blob(tr, self._home, blob)
        write_chunks(tr, layout, self._position(plan.packed), plan.chunks or ())
        if one.state != "dead":
            self.write_beside(tr, plan)

    async def _move_parts(self, tr: Transaction, plan: EditPlan) -> None:
        """Move what has the item's position in its key: chunks, dependent keys, its place in a group."""
        one, layout = plan.one, self._layout
        if plan.chunks is None and is_chunked(one.stored):
            chunks = await rows(tr.snapshot, *layout.chunk_range_of(one.packed))
            write_chunks(tr, layout, self._position(plan.packed), [chunk.value for chunk in chunks])
            tr.clear_range(*layout.chunk_range_of(one.packed))
        if one.state == "dead":
            return  # a dead letter has no dependent keys, and its group counts it as ended
        parts = plan.notes.beside
        old, new = layout.dependent_keys(parts, one.packed), layout.dependent_keys(parts, plan.packed)
        for was, key in zip(old, new, strict=True):
            value = await value_of(tr.get(was))
            if value.present():
                tr.clear(was)
                tr.set(key, bytes(value))
        if plan.was.group:
            members = group_keys(self._home, plan.was.group).members
            tr.clear(members + self._address(one.packed))
            tr.set(members + self._address(plan.packed), b"")

    def _address(self, packed: bytes) -> bytes:
        """Return how an item is named where its outcome and its group are kept."""
        return packed

    def _rank_of(self, priority: int) -> int:
        rank_of = getattr(self.queue.order, "rank_of", None)
        if rank_of is None:
            raise ValueError(
                f"{self.queue!r} has no levels, and so no priorities. Use a PriorityQueue, or leave priority out."
            )
        rank: int = rank_of(priority)
        return rank

    def _position(self, packed: bytes) -> Position:
        return self._layout.available.position(self._layout.prefix + packed)

    @staticmethod
    async def why_lost(tr: Transaction, layout: Layout, outcomes: Mapping[bytes, bytes]) -> dict[bytes, str]:
        """Return how calls by position took leased items away, by packed positions; items that none took are left out.

        Args:
            outcomes: the key of each item's outcome, by the item's packed position.
        """
        # All reads at once: one behind the other, those of many items take longer than a transaction may last.
        reads = [(packed, tr.snapshot.get(key)) for packed, key in outcomes.items()]
        there = started(locate(tr.snapshot, layout, sorted(outcomes), STATES))
        errors = {}
        for packed, read in reads:
            ended = await value_of(read)
            if ended.present():
                errors[packed] = OutcomeRecord.read(layout, outcomes[packed], bytes(ended)).error
        for one in await there:
            if not errors.get(one.packed, "").startswith(_TAKEN_AWAY):
                # The lease is lost, whatever became of the item.
                errors[one.packed] = notes_if_readable(one.stored).error
        return {packed: error for packed, error in errors.items() if error.startswith(_TAKEN_AWAY)}


def _of_batch(
    tr: Transaction, places: list[bytes], body: Callable[[Transaction, list[bytes]], Steps[dict[bytes, R]]]
) -> Steps[dict[bytes, R]]:
    return body(tr, places)
