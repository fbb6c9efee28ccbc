"""Browse items in any state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from msgspec import structs

from fdbqueue import CodecError, FormatError, Item, Position, Queue, StoredItem
from fdbqueue.base.arguments import check_borders
from fdbqueue.base.deprecation import ALL, Everything, tell_of_none
from fdbqueue.lowlevel import (
    STATES,
    Browser,
    Database,
    KeyValue,
    Named,
    Notes,
    Pages,
    Place,
    State,
    Steps,
    Transaction,
    V,
    check_limit,
    is_chunked,
    new_random,
    pack,
    rows,
    started,
    stored_item,
    value_of,
    verb,
    write_chunks,
)
from fdbqueue.moves.ends import OutcomeRecord
from fdbqueue.reads.browse import BrowsePace
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.settings import check_renamed, read_high_water_mark
from fdbqueue.verbs.editing import refuse_elsewhere

from .lease import not_negative
from .transitions import Transitions, check_failure

__all__ = ["State", "StoredItem", "browse", "opened"]


T = TypeVar("T")
OnBad: TypeAlias = Literal["fail", "null"]
"""What a look does with an item that can't be read."""


def browse(
    tr: Transaction | Database,
    queue: Queue[V],
    *,
    state: State,
    after: Position | None = None,
    before: Position | None = None,
    limit: int | None = None,
    reverse: bool = False,
    duty_cycle: float = 1.0,
    on_bad: OnBad = "fail",
    wanted: Callable[[KeyValue], bool] | None = None,
) -> Browser[StoredItem[V]]:
    """Return the items of one state in the order of their positions, as `Queue.browse` returns available ones.

    Args:
        on_bad: an item that can't be read: "fail" raises its error; "null" shows it without its value, and with that
            error if it has none of its own.
        wanted: returns whether the item of a row is shown; None: all are.

    Raises:
        ValueError: there is no such state, or no such choice.
    """
    check_on_bad(on_bad)
    if state not in STATES:
        raise ValueError(f"state is one of {', '.join(map(repr, STATES))}, not {state!r}.")
    check_borders(after, before)
    place: Place = getattr(queue.layout, state)
    begin = place.begin if after is None else place.key(pack(after)) + b"\x00"
    end = place.end if before is None else place.key(pack(before))

    def look(row: KeyValue) -> Steps[StoredItem[V] | None] | None:
        if wanted is not None and not wanted(row):
            return None
        position = place.position(row.key)  # first: a foreign key has none, and nothing would await the steps
        found = _open(tr, queue, place, row, state)
        return found if on_bad == "fail" else or_unreadable(found, position, row.value, state)

    read = limit if wanted is None else None
    found = Pages(tr, begin, end, limit=read, reverse=reverse, pace=BrowsePace(duty_cycle), layout=queue.layout)
    return Browser(found, look, limit=limit)


def check_on_bad(on_bad: object) -> None:
    """Refuse what is no choice for items that can't be read.

    Raises:
        ValueError: it is neither "fail" nor "null".
    """
    if on_bad not in ("fail", "null"):
        raise ValueError(f"on_bad is 'fail' or 'null', not {on_bad!r}.")


async def or_unreadable(found: Steps[T], position: Position, stored: bytes, state: State) -> T | StoredItem[Any]:
    """Return an item; without its value if it can't be read, and with that error if it has none of its own."""
    try:
        return await found
    except (CodecError, FormatError) as error:
        notes, _ = salvaged_notes(stored)
        shown: StoredItem[Any] = stored_item(Item(position, None, {}), stored, state, notes=notes)
        return replace(shown, error=notes.error or str(error))


async def _open(
    tr: Transaction | Database, queue: Queue[V], place: Place, row: KeyValue, state: State
) -> StoredItem[V] | None:
    position = place.position(row.key)
    if not is_chunked(row.value):
        return await opened(cast(Transaction, tr), queue, place, row, state)

    async def with_chunks(tr: Transaction) -> StoredItem[V] | None:
        # Given a database, the page was read in another transaction. By now the item and its chunks may be gone, or
        # changed.
        value = await value_of(tr.snapshot.get(row.key))
        if not value.present():
            return None
        stored = bytes(value)
        return stored_item(await queue.item(tr, position, stored), stored, state)

    return await queue.read(tr, with_chunks)


async def opened(tr: Transaction, queue: Queue[V], place: Place, row: KeyValue, state: State) -> StoredItem[V]:
    """Return the stored item of a row that this transaction has read."""
    item = await queue.item(tr, place.position(row.key), row.value)
    return stored_item(item, row.value, state)


def dead_positions(position: object) -> list[Position]:
    """Return the positions that a caller names dead letters by: one, or several.

    Raises:
        TypeError: one is no Position.
    """
    alone = isinstance(position, Position | str | bytes | Mapping) or not isinstance(position, Iterable)
    places: list[Any] = [position] if alone else [*cast("Iterable[Any]", position)]
    for place in places:
        if not isinstance(place, Position):
            raise TypeError(f"A dead letter is named by its Position, as browse shows it, not by {place!r}.")
    return places


# Dead letters: items that failed too often, kept with their last error until an operator redrives or purges them.
#
# A dead letter keeps its position, so that a redrive can put it back into its place.

BATCH_ITEMS = 50
BATCH_BYTES = 1_000_000
"""About how many bytes one transaction of a redrive moves, chunks included."""

Where: TypeAlias = Literal["place", "tail"]
_Deal: TypeAlias = Callable[[Transaction, Transitions, KeyValue, Notes, bool], Steps[int]]
"""Handles one dead letter, given its notes and whether they can be read; returns about how many bytes that writes."""


class DeadLetters(Named, Generic[V]):
    """The dead letters of one queue; `Leases.dead`.

    Args:
        queue: the queue.
        now_us: the clock, in microseconds.
    """

    def __init__(self, queue: Queue[V], now_us: Callable[[], int]) -> None:
        if not isinstance(queue, Queue):
            raise TypeError(f"Dead letters are of a Queue, not of {queue!r}. Use Leases(queue).dead.")
        self._queue = queue
        self._layout = queue.layout
        self._now_us = now_us

    def __repr__(self) -> str:
        return f"DeadLetters({self._layout.describe()})"

    def browse(
        self,
        tr: Transaction | Database,
        *,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
        on_bad: OnBad = "fail",
    ) -> Browser[StoredItem[V]]:
        """Iterate over the dead letters in the order of their positions, lazily, as `Queue.browse` does.

        Args:
            on_bad: a dead letter that can't be read: "fail" raises its error; "null" shows it without its value, and
                goes on.
        """
        return browse(
            tr,
            self._queue,
            state="dead",
            after=after,
            before=before,
            limit=limit,
            reverse=reverse,
            duty_cycle=duty_cycle,
            on_bad=on_bad,
        )

    @verb
    async def bury(self, tr: Transaction | Database, position: Position, *, error: str | None = None) -> bool:
        """Make an available item a dead letter, also one that can't be read. Return False if it is not available.

        For an item that holds up the queue. The stored bytes of one that can't be read stay as they are. `redrive` puts
        it back when this version of the library can read it; `Leases.cancel` removes it for good.

        Args:
            tr: a transaction, or a database.
            position: the item's position, as `FormatError.position` and `CodecError.position` have it.
            error: why, for people who look at the dead letters; None or "": the item keeps its last error.

        *Conflicts:* with a transaction that takes or changes this item. *Cost:* one read and about three writes.

        >>> import fdbqueue
        >>> from fdbqueue.layers import Leases
        >>> with fdbqueue.open("memory:") as db:
        ...     leases = Leases(fdbqueue.Queue("orders", codec="str"))
        ...     position = leases.enqueue(db, "teapot")
        ...     leases.dead.bury(db, position, error="no such order"), leases.stats(db).dead
        (True, 1)
        """
        if not isinstance(position, Position):
            raise TypeError(f"The item to bury is named by its Position, not by {position!r}.")
        check_failure(error)
        packed = pack(position)

        async def body(tr: Transaction) -> bool:
            found = await value_of(tr.get(self._layout.available.key(packed)))
            if not found.present():
                await check_renamed(tr.snapshot, self._layout)
                await refuse_elsewhere(tr, self._layout, [packed], "skip")
                return False
            moves = Transitions(tr, self._layout, self._now_us())
            notes = await moves.read_notes({packed: bytes(found)})
            moves.bury(packed, bytes(found), notes[packed], error or None)
            await moves.settle()
            moves.finish()
            return True

        return await self._queue.transact(tr, body)

    @verb
    def redrive(
        self,
        tr: Transaction | Database,
        position: Position | Iterable[Position] | Everything = ALL,
        *,
        limit: int | None = None,
        to: Where = "place",
    ) -> Steps[int]:
        """Make dead letters available again with no attempts counted. Return how many.

        It removes their time to live, and keeps their last error for the next attempt. Unreadable dead letters stay.

        Args:
            tr: a transaction, or a database. A database uses several transactions if needed.
            position: only this one, or these, in this order; without it, all, from the first.
            limit: the maximum number.
            to: "place": their old places, before all later items; "tail": behind the last item (of the same rank, in a
                queue with an order), under new positions.

        *Conflicts:* with a transaction that redrives or purges the same ones, and with leases of items behind them.
        *Cost:* one read and about two writes each; to the tail, chunks of large ones are copied.
        """
        if to not in ("place", "tail"):
            raise ValueError(f"to must be 'place' or 'tail', not {to!r}.")
        deal = self._to_place if to == "place" else self._to_tail
        tell_of_none(position, "the position of DeadLetters.redrive")
        return self._all(tr, "redrive", deal, position, limit)

    @verb
    def purge(
        self,
        tr: Transaction | Database,
        position: Position | Iterable[Position] | Everything = ALL,
        *,
        limit: int | None = None,
        older_than: float = 0.0,
    ) -> Steps[int]:
        """Remove dead letters for good, also those that can't be read. Return how many.

        `older_than` removes a dead letter of a newer version by the time in its notes. One whose notes can't be read at
        all has no such time, and stays.

        Args:
            tr: a transaction, or a database. A database uses several transactions if needed.
            position: only this one, or these, in this order; without it, all, from the first.
            limit: the maximum number.
            older_than: only those that died at least so many seconds ago, by this object's clock.

        *Conflicts:* with a transaction that redrives or purges the same ones. *Cost:* one read and one write each.
        """
        age_us = not_negative(older_than, "older_than")
        died_until_us = self._now_us() - age_us if age_us else None
        tell_of_none(position, "the position of DeadLetters.purge")
        return self._all(tr, "purge", partial(self._purge, until_us=died_until_us), position, limit)

    async def _all(
        self,
        tr: Transaction | Database,
        verb: str,
        deal: _Deal,
        position: Position | Iterable[Position] | Everything | None,
        limit: int | None,
    ) -> int:
        check_limit(limit, "dead letters", least=0, optional=True)
        if isinstance(position, Everything | None):
            return await self._from_the_first(tr, deal, limit)
        places = dead_positions(position)
        # A position that is given twice is handled once.
        return await self._named(tr, verb, deal, list(dict.fromkeys(map(pack, places))), limit)

    async def _from_the_first(self, tr: Transaction | Database, deal: _Deal, limit: int | None) -> int:
        begin, end = self._layout.dead.begin, self._layout.dead.end
        done = 0
        while begin < end and (limit is None or done < limit):
            batch = partial(self._batch, begin=begin, end=end, limit=_most(limit, done), deal=deal)
            # An item that dies again meanwhile is before `begin`, and is not met a second time.
            dealt, begin = await self._queue.transact(tr, batch)
            done += dealt
        return done

    async def _named(
        self, tr: Transaction | Database, verb: str, deal: _Deal, places: list[bytes], limit: int | None
    ) -> int:
        done = seen = 0
        while seen < len(places) and (limit is None or done < limit):
            some = places[seen : seen + _most(limit, done)]
            batch = partial(self._batch_named, places=some, verb=verb, deal=deal)
            dealt, looked_at = await self._queue.transact(tr, batch)
            done += dealt
            seen += looked_at
        return done

    async def _batch(self, tr: Transaction, begin: bytes, end: bytes, limit: int, deal: _Deal) -> tuple[int, bytes]:
        """Handle some dead letters. Return how many, and the key from which the rest begins."""
        # By snapshot, with a conflict for each one that is handled: items that die meanwhile cause no conflict.
        moves = Transitions(tr, self._layout, self._now_us())
        asked = started(moves.ask())
        found = await rows(tr.snapshot, begin, end, limit=limit)
        await asked
        if not found:
            await check_renamed(tr.snapshot, self._layout)
        dealt, looked_at = await self._deal_with(tr, moves, found, deal)
        if looked_at < limit and looked_at == len(found):
            return dealt, end
        return dealt, found[looked_at - 1].key + b"\x00"

    async def _batch_named(self, tr: Transaction, places: list[bytes], verb: str, deal: _Deal) -> tuple[int, int]:
        """Handle the first dead letters at these places. Return how many, and how many places were read."""
        moves = Transitions(tr, self._layout, self._now_us())
        asked = started(moves.ask())
        keys = [self._layout.dead.key(packed) for packed in places]
        reads = [started(rows(tr.snapshot, key, key + b"\x00", limit=1)) for key in keys]
        await asked
        found: list[KeyValue | None] = []
        for read in reads:
            row = await read
            found.append(row[0] if row else None)
        if not any(found):
            await check_renamed(tr.snapshot, self._layout)
        missing = [packed for packed, row in zip(places, found, strict=True) if row is None]
        await refuse_elsewhere(tr, self._layout, missing, verb)
        return await self._deal_with(tr, moves, found, deal)

    async def _deal_with(
        self, tr: Transaction, moves: Transitions, found: Sequence[KeyValue | None], deal: _Deal
    ) -> tuple[int, int]:
        """Handle the number of dead letters that fits into one transaction. Return how many, and how many were read."""
        dealt = size = looked_at = 0
        for row in found:
            if size > BATCH_BYTES:
                break
            looked_at += 1
            if row is None:
                continue  # another transaction has handled it
            tr.add_read_conflict_key(row.key)
            written = await deal(tr, moves, row, *salvaged_notes(row.value))
            dealt += bool(written)
            size += written
        await moves.settle()
        moves.finish()
        return dealt, looked_at

    async def _to_place(
        self, tr: Transaction, moves: Transitions, row: KeyValue, notes: Notes, is_readable: bool
    ) -> int:
        if not is_readable:
            return 0  # left to the newer version of the library that wrote it; the check reports it
        packed = self._layout.dead.packed(row.key)
        await OutcomeRecord.reopen(tr, self._layout, packed, notes.as_new())
        moves.leave_dead(packed)
        moves.enter_available(packed, row.value, notes.as_new())
        moves.set_dependent(packed, notes)
        return len(row.value)

    async def _to_tail(
        self, tr: Transaction, moves: Transitions, row: KeyValue, notes: Notes, is_readable: bool
    ) -> int:
        if not is_readable:
            return 0
        old = self._layout.dead.position(row.key)
        # The caller need not give the queue's order. The item keeps its rank, behind all others of that rank.
        order = None if old.rank is None else (await read_high_water_mark(tr, self._layout)).order
        index = await self._queue.next_index(tr, 1, order=order, entry="any")
        position = Position(index, new_random(), rank=old.rank)
        size = len(row.value)
        if is_chunked(row.value):
            size += await self._move_chunks(tr, old, position)
        moves.leave_dead(self._layout.dead.packed(row.key))
        # A completion names the old position, and has been told that the item died.
        moves.enter_available(pack(position), row.value, structs.replace(notes.as_new(), keep_s=0))
        moves.set_dependent(pack(position), notes)
        return size

    async def _move_chunks(self, tr: Transaction, old: Position, new: Position) -> int:
        # By snapshot: chunks change only together with their item's key, which this transaction conflicts on.
        chunks = await rows(tr.snapshot, *self._layout.chunk_range(old))
        write_chunks(tr, self._layout, new, [chunk.value for chunk in chunks])
        tr.clear_range(*self._layout.chunk_range(old))
        return sum(len(chunk.value) for chunk in chunks)

    async def _purge(
        self, tr: Transaction, moves: Transitions, row: KeyValue, notes: Notes, is_readable: bool, until_us: int | None
    ) -> int:
        if until_us is not None and (notes.died_at_us > until_us or not (is_readable or notes.died_at_us)):
            return 0
        packed = self._layout.dead.packed(row.key)
        moves.leave_dead(packed)
        moves.vanish(packed, row.value, "purged", notes=notes, is_readable=is_readable)
        return len(row.key)


def _most(limit: int | None, done: int) -> int:
    return BATCH_ITEMS if limit is None else min(BATCH_ITEMS, limit - done)
