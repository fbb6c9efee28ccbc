"""Rename a queue: move all its keys under another name, in one transaction if they fit.

Challenge: a rename copies, since all keys of a queue begin with its name. Meanwhile other processes use the queue.

Protocol:

1. Mark the old and the new name (`stored/settings.py`). From now on enqueues and takes of both are refused.
2. If the keys do not fit into one transaction, move items without a lease in batches. A batch moves all keys of its
   items together, so a call that finds an item finds it whole, under one of the names.
3. Wait until no transaction can be open that began before the marks. An enqueue reads by snapshot, so it does not
   conflict with the rename. Such an enqueue may still commit under the old name.
4. Move all the rest in one transaction, which also opens the new name. Holders of leases can act until then, and
   conflict with this transaction if they do so at the same time.

An interrupted rename goes on when it is repeated: each step finds what the ones before it have left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from fdbqueue.arrow.stored import Range, StoredLook
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Elements, Subspace, behind, below, is_within, within
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.engine.verb import verb
from fdbqueue.engine.waiting import pause
from fdbqueue.errors import FormatError, TransferError, UnknownQueue
from fdbqueue.stored.catalogue import path_of, refuse_nested
from fdbqueue.stored.counters import count, read_stats
from fdbqueue.stored.items import NO_NOTES, Notes, has_notes, is_chunked, notes_of, size_of
from fdbqueue.stored.layout import CATALOGUE, Layout, Name, name_of
from fdbqueue.stored.looks import keep_out, made_exclusive, wall_us
from fdbqueue.stored.names import name_text
from fdbqueue.stored.places import STATES
from fdbqueue.stored.positions import TAKEN, Place
from fdbqueue.stored.settings import (
    SMART,
    Mark,
    heads_of,
    keys_of_marks,
    own_items,
    pack_mark,
    read_mark,
    refusal,
    rename_parts,
)
from fdbqueue.stored.shapes import Due
from fdbqueue.verbs.queues import nearest

LONGEST_SECONDS = 6.0
"""A transaction that is older than this can't commit any more. The limit is 5 seconds; clocks may differ a little."""
LAST_BYTES = 2_000_000
"""About the most bytes of keys and values that the last transaction moves."""
BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000
FIRST_ROWS = 100
MOST_ROWS = 5_000
RESTING = ("dead", "delayed", "available")
"""The states whose items move in batches."""


@dataclass(frozen=True, slots=True)
class RenameReport:
    """The result of a rename."""

    name: Elements | bytes
    """The key tuple of the new name; its prefix, if that is no tuple."""
    items: int
    """The number of items that the queue has, in all states."""
    seconds: float
    """The time of this call."""


class _Names:
    """Holds the verb."""

    def __repr__(self) -> str:
        return "fdbqueue"

    @verb
    async def rename(self, db: Database, old: Name, new: Name) -> RenameReport:
        """Move a queue under another name, with its items in all states, leases, records and counters.

        Positions stay. During the call, enqueues and takes of both names raise `QueueRenamed`; afterwards, those of the
        old name. Holders of leases can act until the last step. Then their leases are valid under the new name only. An
        interrupted call goes on when it is repeated. The old name stays closed until that queue is cleared.

        Args:
            db: a database.
            old: the queue's name, a key tuple, or a `Subspace`.
            new: the new name. Nothing may be there, except for the marks of a former rename.

        Raises:
            UnknownQueue: there is no queue of the old name. The message proposes the nearest name.
            QueueRenamed: it has another new name already.
            TransferError: there is a queue of the new name. Or this one has sessions, streams, groups, an upload, or
                items with completions or follow-ups. Or one of the names is that of a directory, or inside the other
                one. Nothing was changed.
            TransferError: the other keys do not fit into the last transaction. The rename is unfinished: wait until
                consumers have ended their leases, and repeat the call.
            NestedQueue: the new name lies within that of another queue, or around it. Nothing was changed.
            SubscriptionError: it has an exclusive subscription. Nothing was changed.

        *Conflicts:* with every call that changes the queue at the same time. *Cost:* it waits for 6 seconds. It reads
        all keys of the queue, and writes them again; a large queue takes a transaction for 500 items.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     position = Queue("orders", codec="str").enqueue(db, "a cup")
        ...     report = fdbqueue.rename(db, "orders", "sales")
        ...     (report.items, Queue.open(db, "sales").get(db, position).value)
        (1, 'a cup')
        """
        began = time.monotonic()
        only_database(db, "rename", "A rename waits for the transactions of others, and may take several.")
        work = _Rename(db, *(Layout(_plain(name)) for name in (old, new)))
        if not await work.is_done():
            await work.begin()
            marked = time.monotonic()
            made_exclusive()  # this process looks again before it takes an item
            if not await attempts(db, work.fits):
                await work.move_resting()
            await pause(max(0.0, LONGEST_SECONDS - (time.monotonic() - marked)))
            await attempts(db, work.finish)
            made_exclusive()
        stats = await attempts(db, partial(read_stats, layout=work.target))
        items = stats.available + stats.leased + stats.delayed + stats.dead + stats.claimed
        return RenameReport(name_of(work.target.prefix), items, time.monotonic() - began)


rename = _Names().rename


def _plain(name: Name) -> Name:
    """Refuse a directory."""
    if path_of(name):
        raise TransferError(
            f"{'/'.join(path_of(name))} is a directory, whose keys do not begin with its name. Rename it by the"
            " directory layer: directory.move_to(db, new_path)."
        )
    return name


class _Rename:
    """A rename under way."""

    def __init__(self, db: Database, source: Layout, target: Layout) -> None:
        self._db = db
        self._source = source
        self.target = target
        if is_within(source.prefix, target.prefix) or is_within(target.prefix, source.prefix):
            raise TransferError(
                f"{source.describe()} and {target.describe()} are one queue, or one is inside the other. Give a name"
                " that is outside."
            )

    async def is_done(self) -> bool:
        """Return whether a former call has finished it."""
        mark = await attempts(self._db, partial(read_mark, layout=self._source))
        return mark is not None and mark.done and self._is_own(mark)

    def _is_own(self, mark: Mark) -> bool:
        return (mark.old, mark.new) == (self._source.prefix, self.target.prefix)

    async def begin(self) -> None:
        """Mark both names; or find the marks of a former call."""
        if await attempts(self._db, self._check):
            await self._refuse_marks()
        await attempts(self._db, self._begin)

    async def _check(self, tr: Transaction) -> bool:
        """Refuse what can't be renamed. Return whether the rename is new."""
        source, target = self._source, self.target
        ours, theirs = await read_mark(tr, source), await read_mark(tr, target)
        if ours is not None and ours.old == source.prefix:
            if not self._is_own(ours):
                raise refusal(ours)
            return False
        if theirs is not None and not theirs.done:
            if not self._is_own(theirs):
                raise refusal(theirs)
            return False  # the source was cleared meanwhile
        if ours is not None:
            raise refusal(ours)  # a rename to this name is unfinished
        registered = (await value_of(tr.get(source.catalogue_key))).present()
        if not registered and not await _has_keys(tr, source):
            near = await nearest(tr, source)
            raise UnknownQueue(f"There is no queue {source.describe()}. {near}".rstrip())
        await refuse_nested(tr, target)
        if (await value_of(tr.get(target.catalogue_key))).present() or await _has_keys(tr, target):
            raise TransferError(
                f"There is a queue {target.describe()} already. Nothing was changed. Give another name, or clear that"
                " queue, also if it is empty."
            )
        await keep_out(tr, Layout(source.space))
        inside = await rows(tr, *below(source.catalogue_key), limit=1)
        if inside:
            named = name_text(name_of(inside[0].key[len(CATALOGUE) :]))
            raise TransferError(f"The queue {named} is inside {source.describe()}. Rename or clear that one first.")
        for what, space, remedy in _refused(source):
            if await rows(tr, *within(space.key()), limit=1):
                raise TransferError(f"{source.describe()} has {what}. Nothing was changed. {remedy}")
        kind = await value_of(tr.get(source.type_key))
        if kind.present() and bytes(kind) == SMART and not await self.fits(tr):
            raise TransferError(
                f"{source.describe()} is smart, and too large to be renamed in one transaction: at most"
                f" {LAST_BYTES:,} bytes. Nothing was changed. Repeat the call when consumers have taken items."
            )
        return True

    async def _refuse_marks(self) -> None:
        """Refuse items that another queue, or a waiting caller, knows by this name."""
        look = StoredLook(self._db, self._source, Range(None, None), STATES, payloads=False)
        while (page := await look.next()) is not None:
            for at, value in enumerate(page.values):
                notes = _notes(value)
                if notes is not None and (notes.is_tracked or notes.held):
                    position = self._source.available.position(self._source.prefix + page.packed(at)).text
                    raise TransferError(
                        f"The item {position} of {self._source.describe()} has a completion, follow-ups or a group, or"
                        " follows another item. These know the queue by its name. Nothing was changed. Wait until"
                        " its consumer has ended it, or cancel it."
                    )

    async def _begin(self, tr: Transaction) -> None:
        mark: Mark | None
        if await self._check(tr):
            kind, paused = (
                await value_of(tr.get(self._source.type_key)),
                await value_of(tr.get(self._source.paused_key)),
            )
            mark = Mark(
                self._source.prefix,
                self.target.prefix,
                wall_us(),
                type=bytes(kind) if kind.present() else b"",
                paused=bytes(paused) if paused.present() else b"",
            )
        else:
            mark = await read_mark(tr, self._source) or await read_mark(tr, self.target)
            if mark is None or mark.done:
                return  # another call has finished it
        for layout in (self._source, self.target):
            for key in keys_of_marks(layout):
                tr.set(key, pack_mark(mark))
            span = layout.waiting.range()
            tr.clear_range(span.start, span.stop)  # consumers that wait look again

    async def fits(self, tr: Transaction) -> bool:
        """Return whether all that is under the old name fits into one transaction."""
        return await _all_rows(tr.snapshot, self._source) is not None

    async def move_resting(self) -> None:
        """Move the items without a lease, in batches."""
        for state in RESTING:
            place: Place = getattr(self._source, state)
            begin = place.begin
            while begin < place.end:
                begin = await attempts(self._db, partial(self._move, state=state, begin=begin))

    async def _move(self, tr: Transaction, *, state: str, begin: bytes) -> bytes:
        """Move the next items of a state. Return where to go on."""
        source, target = self._source, self.target
        if not await self._is_open(tr):
            return behind(source.prefix)
        place, other = getattr(source, state), getattr(target, state)
        found = fitting(await rows(tr.snapshot, begin, place.end, limit=BATCH_ITEMS), BATCH_BYTES)
        if not found:
            return behind(source.prefix)
        tr.add_read_conflict_range(begin, found[-1].key + b"\x00")
        for row in found:
            notes, packed = _notes(row.value), place.packed(row.key)
            if notes is None or notes.beside:
                continue  # left for the last transaction
            tr.set(other.key(packed), row.value)
            tr.clear_range(row.key, row.key + TAKEN)
            if is_chunked(row.value):
                await self._move_range(tr, *source.chunk_range_of(packed))
            for at_us, kind in _timers(state, notes):
                tr.set(target.timer_key(at_us, packed, kind), b"")
                tr.clear(source.timer_key(at_us, packed, kind))
        after: bytes = found[-1].key + b"\x00"
        return after

    async def _is_open(self, tr: Transaction) -> bool:
        """Return whether the rename is unfinished. A plain read: of two calls at once, one sees what the other did.

        Raises:
            TransferError: one of the names was cleared meanwhile.
        """
        ours, theirs = await read_mark(tr, self._source), await read_mark(tr, self.target)
        if ours is not None and ours.done and self._is_own(ours):
            return False
        if ours is None or theirs is None or not self._is_own(ours) or not self._is_own(theirs):
            raise TransferError(
                f"{self._source.describe()} or {self.target.describe()} was cleared while it was renamed. Repeat the"
                " call to rename the rest."
            )
        return True

    async def _move_range(self, tr: Transaction, begin: bytes, end: bytes) -> None:
        for row in await rows(tr, begin, end):
            tr.set(self.target.prefix + row.key[len(self._source.prefix) :], row.value)
        tr.clear_range(begin, end)

    async def finish(self, tr: Transaction) -> None:
        """Move all that is left, and open the new name.

        Raises:
            TransferError: it does not fit into one transaction.
        """
        source, target = self._source, self.target
        mark = await read_mark(tr, source)
        if mark is None or not await self._is_open(tr):
            return
        found = await _all_rows(tr, source)
        if found is None:
            raise TransferError(
                f"More than {LAST_BYTES:,} bytes of {source.describe()} are left for the last transaction of its rename"
                f" to {target.describe()}: leased items, or records of layers. The rename is unfinished. Repeat"
                " the call when consumers have ended their leases."
            )
        counters = source.counts.key(), source.level_counts.key()
        changes = [part.moved for part in rename_parts.all().values() if part.moved is not None]
        for row in found:
            key = target.prefix + row.key[len(source.prefix) :]
            if any(is_within(row.key, prefix) for prefix in counters):
                tr.add(key, row.value)  # holders may have acked items under the new name
            elif row.key == source.high_water_mark_key:
                tr.byte_max(key, row.value)
            else:
                value = row.value
                for moved in changes:
                    value = moved(row.key, value, source, target)
                tr.set(key, value)
        for begin, end in [*_own_spans(source), *_waiting_spans(source)]:
            tr.clear_range(begin, end)
        for key in keys_of_marks(source):
            tr.set(key, pack_mark(replace(mark, done=True)))
        for key in keys_of_marks(target):
            tr.clear(key)
        if mark.type:
            tr.set(target.type_key, mark.type)
        if mark.paused:
            for head in heads_of(target):
                tr.set(head.paused_key, mark.paused)
        record = await value_of(tr.get(source.catalogue_key))
        if record.present():
            tr.set(target.catalogue_key, bytes(record))
            tr.clear(source.catalogue_key)
        for head in heads_of(target):
            count(tr, head, returned=1)  # consumers that wait there watch this counter


def _refused(layout: Layout) -> Iterator[tuple[str, Subspace, str]]:
    """Yield what can't be renamed: in words, where it is, and the remedy."""
    for apart in own_items.all().values():
        yield apart.what, apart.records(layout), apart.ends
    for part in rename_parts.all().values():
        if part.stays is not None:
            yield part.what, part.stays(layout), part.remedy.format(queue=layout.describe())


async def _has_keys(tr: Transaction, layout: Layout) -> bool:
    for begin, end in _own_spans(layout):
        if await rows(tr, begin, end, limit=1):
            return True
    return False


def _waiting_spans(layout: Layout) -> list[tuple[bytes, bytes]]:
    """Return the keys of processes that wait for items. They look again when the rename wakes them."""
    return [within(keys(layout).key()) for part in rename_parts.all().values() for keys in part.waits]


def _own_spans(layout: Layout) -> Iterator[tuple[bytes, bytes]]:
    """Yield the ranges of all keys of a queue except marks, commit markers, and what waiting processes have written.

    A commit marker stays: the process that wrote it may still ask for it, under the name that it knows.
    """
    begin, end = layout.whole_range()
    single = [(key, key + b"\x00") for key in keys_of_marks(layout)]
    for first, last in sorted([*single, within(layout.markers.key()), *_waiting_spans(layout)]):
        yield begin, first
        begin = last
    yield begin, end


async def _all_rows(tr: Any, layout: Layout) -> list[KeyValue] | None:
    """Return all rows of a queue; None if they do not fit into one transaction."""
    found: list[KeyValue] = []
    size, wanted = 0, FIRST_ROWS
    for first, end in _own_spans(layout):
        begin = first
        while begin < end:
            page = await rows(tr, begin, end, limit=wanted)
            found += page
            size += sum(len(row.key) + len(row.value) for row in page)
            if size > LAST_BYTES:
                return None
            if len(page) < wanted:
                break
            begin = page[-1].key + b"\x00"
            wanted = max(1, min(MOST_ROWS, (LAST_BYTES - size) * len(found) // size + 1))
    return found


def _notes(value: bytes) -> Notes | None:
    """Return an item's notes; None if they can't be read."""
    try:
        return notes_of(value) if has_notes(value) else NO_NOTES
    except FormatError:
        return None


def _timers(state: str, notes: Notes) -> Iterator[tuple[int, str]]:
    """Yield the times and kinds of the timers of an item without a lease."""
    if state == "delayed":
        yield notes.visible_at_us, Due.DELAY
    if state != "dead" and notes.ttl_at_us:
        yield notes.ttl_at_us, Due.TTL


def fitting(found: Sequence[KeyValue], size_bytes: int) -> Sequence[KeyValue]:
    """Return the first rows of items, about as many as have so many bytes with their chunks; at least one."""
    size = 0
    for at, row in enumerate(found):
        if at and size + size_of(row.value) > size_bytes:
            return found[:at]
        size += size_of(row.value)
    return found
