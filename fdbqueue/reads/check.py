"""`check`: reads everything that a queue owns and reports inconsistencies."""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar, cast

from fdbqueue.base import reprs
from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.blocking import check_cancelled
from fdbqueue.engine.errors import FDBError, adopt_binding
from fdbqueue.engine.keys import below, is_within, within
from fdbqueue.engine.steps import Steps, run, value_of, wait_in_thread
from fdbqueue.engine.transactional import attempts, connected, is_database
from fdbqueue.errors import FormatError
from fdbqueue.reads.browse import pages
from fdbqueue.reads.queue_rows import ItemCheck, MakesCheck, check_parts, content_parts
from fdbqueue.stored.catalogue import NESTED_REMEDY, About, nested_told, nested_with, read_about
from fdbqueue.stored.counters import COUNTED_RANKS, Stats, read_level_counts, read_own_stats
from fdbqueue.stored.items import NO_NOTES, Chunked, Notes, has_notes, notes_of, parse
from fdbqueue.stored.key_table import FAMILIES, is_own
from fdbqueue.stored.layout import CATALOGUE, Layout
from fdbqueue.stored.places import ALL_STATES, CLAIMED, STATES, chunks_to_clear, claimed_places
from fdbqueue.stored.positions import Place, is_packed
from fdbqueue.stored.settings import (
    HighWaterMark,
    own_items,
    read_high_water_mark,
    read_pause,
    read_terms,
    rename_parts,
)

# Checks that a queue has one order, that its high-water mark is right, and that its levels are counted correctly.


class OrderCheck:
    """The positions of a queue's items, as far as they matter for its order."""

    __slots__ = ("_last", "_levels", "_plain", "_ranked")

    def __init__(self) -> None:
        self._plain = 0
        self._ranked = 0
        self._last = 0
        self._levels: Counter[int] = Counter()

    def see(self, position: Position, state: str) -> None:
        """Note an item's position and state."""
        if position.rank is None:
            self._plain += 1
        else:
            self._ranked += 1
            self._last = max(self._last, position.index)
            if state == "available" and position.rank < COUNTED_RANKS:
                self._levels[position.rank] += 1

    def problems(self, mark: HighWaterMark, counted: Mapping[int, int]) -> list[str]:
        """Return the inconsistencies, one sentence each, given the high-water mark and the counters of the levels."""
        found = []
        if self._plain and mark.order is not None:
            found.append(
                f"The queue has the order {mark.order!r}, but {reprs.counted(self._plain, 'item')} without a rank."
            )
        if self._ranked and mark.order is None:
            found.append(
                f"The queue is first in, first out, but {reprs.counted(self._ranked, 'item has', 'items have')} a rank."
            )
        if self._last > mark.index:
            found.append(f"The high-water mark is {mark.index}, but there is an item with index {self._last}.")
        for rank in sorted({*self._levels, *counted}):
            there, said = self._levels[rank], counted.get(rank, 0)
            if there != said:
                found.append(f"The counters say that {said:,} items of rank {rank} are available, not {there:,}.")
        return found


class NoOrderCheck(OrderCheck):
    """Checks no order, for layers that give ranks to the items of a queue of their own and keep no mark of them."""

    def problems(self, mark: HighWaterMark, counted: Mapping[int, int]) -> list[str]:
        """Return nothing."""
        return []


# A database that is read in many transactions, and says whether a range of its keys changed meanwhile.

SPAN_S = 1.0
"""How long one transaction watches before the next one does. It lives for five seconds."""
CHECKS = b"\xfdfdbqueue/check/"


class WatchedRange:
    """Makes transactions, and watches a range of keys from its own creation on.

    The engine itself watches, so no change is overlooked that another change undoes. A transaction begins before the
    reads, conflicts with every write to the range, and commits after them. The next one begins before that commit. They
    write nothing. A transaction without writes checks no conflicts, so each declares to write a key that is not there.

    Args:
        db: the database.
        begin, end: the range.
    """

    def __init__(self, db: Database, begin: bytes, end: bytes) -> None:
        self._db = db
        self._range = begin, end
        self._changed = False
        self._watch = self._begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def create_transaction(self) -> Transaction:
        """Return a new transaction. It may wait for the commit of the last watch."""
        if time.monotonic() - self._since > SPAN_S:
            self._hand_over()
        return self._db.create_transaction()

    def changed(self) -> bool:
        """Return whether the range changed up to now; also True if that is not known."""
        self._hand_over()
        return self._changed

    def _begin(self) -> Transaction:
        self._since = time.monotonic()
        tr = self._db.create_transaction()
        wait_in_thread(tr.get_read_version())
        tr.add_read_conflict_range(*self._range)
        tr.add_write_conflict_key(CHECKS + os.urandom(8))
        return tr

    def _hand_over(self) -> None:
        if self._changed:
            return
        try:
            before, self._watch = self._watch, self._begin()
            wait_in_thread(before.commit())
        except FDBError:
            self._changed = True  # a conflict, or an unknown outcome


# Foreign keys: keys below a queue's name that the library did not write, or that a newer version wrote.
#
# One rule: a key below the queue's name is foreign if the table of keys does not have it (`is_own` in
# `fdbqueue/stored/key_table.py`). Keys of a queue whose name is below this one are passed by, and so are keys that a
# user's
# layer names in its `CheckPart`.

SHOWN_KEYS = 100
"""The most foreign keys that a report names."""


def foreign_keys(tr: Transaction | Database, layout: Layout, *, bulk: bool = True) -> Iterator[bytes]:
    """Yield the foreign keys of a queue and of its sessions, a page at a time.

    Args:
        bulk: whether to look among items, chunks and blobs, too. A check that reads these tells foreign keys itself.

    *Conflicts:* as `pages`. *Cost:* reads all keys of the queue. Without `bulk` it skips items, chunks and blobs: those
    of a session when a page of them was read.
    """
    begin, last = within(layout.prefix)
    line = Layout.at(layout.prefix + FAMILIES["line"].packed)
    passed = passed_by(tr, layout) + ([] if bulk else [*_bulk(layout), _blobs(layout), _blobs(line)])
    for until, behind in [*sorted(passed), (last, last)]:
        while begin < until:
            begin = yield from _between(tr, layout, begin, until, bulk=bulk)
        begin = max(begin, behind)


def _between(
    tr: Transaction | Database, layout: Layout, begin: bytes, end: bytes, *, bulk: bool
) -> Generator[bytes, None, bytes]:
    """Yield the foreign keys between two keys, and return where to go on: behind the items of a session, or at the end.

    Keys among these items are not yielded.
    """
    for page in pages(tr, begin, end):
        for row in page:
            if not is_own(row.key[len(layout.prefix) :]) and (bulk or not _end_of_items(layout, row.key)):
                yield row.key
        if not bulk and (behind := _end_of_items(layout, page[-1].key)):
            return behind
    return end


def passed_by(tr: Transaction | Database, layout: Layout) -> list[tuple[bytes, bytes]]:
    """Return the begins and ends of the keys below a queue's name that are of another queue, or of a user's layer."""
    begin, end = below(layout.catalogue_key)
    queues = [row.key[len(CATALOGUE) :] for page in pages(tr, begin, end) for row in page]
    spaces = [of for part in check_parts.added() for of in (*part.owns, *(one for _, one in part.leaves_out))]
    spaces += [of for apart in own_items.added() for of in (apart.items, apart.records)]
    spaces += [moving.stays for moving in rename_parts.added() if moving.stays is not None]
    layers = [of(layout).key() for of in spaces]
    layers += [head.prefix for apart in own_items.added() for head in apart.heads(layout)]
    return [within(prefix) for prefix in (*queues, *layers)]


def told(layout: Layout, key: bytes) -> str:
    """Return what is wrong with a foreign key."""
    return f"The key {key!r} is among those of {layout.describe()}, and fdbqueue did not write it."


def told_all(layout: Layout, keys: Sequence[bytes]) -> list[str]:
    """Return a sentence for each of the first foreign keys, and one for the others."""
    more = [f"{len(keys) - SHOWN_KEYS:,} more keys are not the library's."] if len(keys) > SHOWN_KEYS else []
    return [told(layout, key) for key in keys[:SHOWN_KEYS]] + more


def _end_of_items(layout: Layout, key: bytes) -> bytes:
    """Return the end of the items, or of the chunks, of a session or a line that a key is among; b"" if it is none."""
    for name in ("items", "line", "lines"):
        begin = layout.prefix + FAMILIES[name].packed
        if is_within(key, begin):
            for shape in FAMILIES[name].shapes:
                parts = shape.parts(key[len(begin) :])
                if parts is not None and shape.is_nested:
                    nested = Layout.at(key[: len(key) - len(parts[-1])])
                    return next((end for begin, end in _bulk(nested) if begin <= key < end), b"")
    return b""


def _bulk(layout: Layout) -> list[tuple[bytes, bytes]]:
    """Return the begins and ends of the items and chunks of a queue, in all places that have many."""
    places = (layout.available, layout.leased, layout.delayed, layout.dead)
    chunks = layout.chunks.range()
    return [*((place.begin, place.end) for place in places), (chunks.start, chunks.stop)]


def _blobs(layout: Layout) -> tuple[bytes, bytes]:
    blobs = layout.blobs.range()
    return blobs.start, blobs.stop


T = TypeVar("T")

LOOKED_AT = ("items", "order", "chunks", "counters")
"""What every check compares."""


@dataclass(frozen=True, slots=True)
class CheckReport(Shown):
    """The findings of a check."""

    items: int
    """Items that were read."""
    problems: tuple[str, ...]
    """The inconsistencies, one sentence each; empty if there are none."""
    counted: bool
    """Whether all was compared at one time. It can't be if a queue changed that is too long for one transaction."""
    looked_at: tuple[str, ...] = field(default=LOOKED_AT, repr=False)
    """What was compared."""
    not_looked_at: tuple[str, ...] = field(default=(), repr=False)
    """What the queue has beside that, as far as `fdbqueue.check` has noticed."""
    foreign: tuple[bytes, ...] = field(default=(), repr=False)
    """Keys that the library did not write: the first ones. `problems` names them, too."""
    removed: int = field(default=0, repr=False)
    """How many foreign keys the check has removed."""
    unsure: tuple[str, ...] = field(default=(), repr=False)
    """What looked wrong in a long queue that changed while it was read: problems only if a check finds them at rest."""

    @property
    def ok(self) -> bool:
        """Whether the check found no problem."""
        return not self.problems


def checked(
    tr: Transaction | Database, layout: Layout, check: Callable[[Transaction | Database], CheckReport]
) -> CheckReport:
    """Run a check so that no change meanwhile looks like a problem.

    Given a database, it reads in one transaction, which sees one version. If the queue is too long for that, it reads a
    page at a time, and watches whether anything changed.

    Args:
        tr: a transaction, or a database.
        layout: the queue's layout. All that is read belongs to it.
        check: reads and compares. What it compares with other keys is in its `CheckReport.unsure`.
    """
    check = partial(_with_names, check=check, layout=layout)
    if not is_database(tr):
        return _sure(check(tr))
    db = cast(Database, tr)
    run(connected(db))
    adopt_binding()
    alone = db.create_transaction()
    alone.options.set_read_your_writes_disable()  # else the client keeps all that it reads
    with suppress(FDBError):  # too old; or anything that the transactions of pages meet too
        return _sure(check(alone))
    watched = WatchedRange(db, *layout.whole_range())
    report = check(cast(Database, watched))
    return replace(report, counted=False) if watched.changed() else _sure(report)


def _with_names(
    tr: Transaction | Database, *, check: Callable[[Transaction | Database], CheckReport], layout: Layout
) -> CheckReport:
    """Run a check, and look for queues whose names lie within this one's, or around it."""
    report = check(tr)
    found = read_in(tr, partial(nested_with, layout=layout))
    told = [f"{nested_told(layout.prefix, other)} {NESTED_REMEDY}" for other in found]
    return replace(report, problems=(*told, *report.problems))


def _sure(report: CheckReport) -> CheckReport:
    return replace(report, problems=(*report.problems, *report.unsure), unsure=())


def check_queue(
    tr: Transaction | Database,
    layout: Layout,
    *parts: MakesCheck,
    order: OrderCheck | None = None,
    with_contents: bool = True,
    is_whole: bool = True,
) -> CheckReport:
    """Check keys, envelopes, chunks and counters of one queue, for items in every state. Call it by `checked`.

    Args:
        parts: what layers compare. They see the items in the same pass.
        order: checks the items' order; None: as of every queue.
        with_contents: whether to check what items have beside themselves, such as blobs. Items of sessions have it
            elsewhere, and the caller checks it.
        is_whole: whether to look at the pause, the quota and the registration, and for foreign keys beside items,
            chunks and blobs, and to name all in `problems`. The check of a queue does so for its sessions, too.

    *Cost:* reads the whole queue once, a page at a time.
    """
    problems: list[str] = []
    for read in (read_pause, read_terms, _registered) if is_whole else ():
        _readable(partial(read_in, tr, partial(read, layout=layout)), problems)
    stats = _readable(lambda: read_in(tr, partial(read_own_stats, layout=layout)), problems)
    unsure: list[str] = []
    order = order or OrderCheck()
    large: dict[Position, Chunked] = {}
    found = dict.fromkeys(map(str, ALL_STATES), 0)
    previous = b""
    made = [make() for make in parts]
    contents = contents_of(tr, layout) if with_contents else []
    among: list[bytes] = []
    for packed, name, row in _shown_to([*made, *contents], items_of_all_places(tr, layout, among.append)):
        found[name] += 1
        place = Place(row.key[: -len(packed)])
        problem = _check_item(place.position(row.key), row, large)
        if problem:
            problems.append(problem)
        if packed == previous:
            unsure.append(f"The item {place.position(row.key)} stands in two places; one of them is {name!r}.")
        previous = packed
        order.see(place.position(row.key), name)

    unsure += _check_chunks(tr, layout, large, among)
    mark = read_in(tr, partial(read_high_water_mark, layout=layout))
    levels = _readable(lambda: read_in(tr, partial(read_level_counts, layout=layout)), problems)
    unsure += [] if stats is None else _check_counts(stats, found)
    unsure += [] if levels is None else order.problems(mark, levels)
    for part in [*contents, *made]:
        unsure += _readable(part.problems, problems) or []
    items = sum(found.values()) + sum(part.items for part in made)
    among += [key for part in (*contents, *made) for key in part.foreign]
    if is_whole:
        passed = passed_by(tr, layout) if among else []
        among = [key for key in among if not any(begin <= key < end for begin, end in passed)]
        among += foreign_keys(tr, layout, bulk=False)
        problems += told_all(layout, among)
        del among[SHOWN_KEYS:]
    counted = all(part.counted for part in made)
    return CheckReport(items, tuple(problems), counted, foreign=tuple(among), unsure=tuple(unsure))


def contents_of(tr: Transaction | Database, layout: Layout) -> list[ItemCheck]:
    """Begin the check of what items have beside themselves. `layout` says where they have it."""
    return [make(tr, layout) for make in content_parts.all().values()]


def _shown_to(
    parts: Sequence[ItemCheck], items: Iterator[tuple[bytes, str, KeyValue]]
) -> Iterator[tuple[bytes, str, KeyValue]]:
    """Yield items, and show them to parts of a check."""
    for packed, state, row in items:
        yield packed, state, row
        notes: Notes | None = NO_NOTES
        if has_notes(row.value):
            try:
                notes = notes_of(row.value)
            except FormatError:
                notes = None
        for part in parts:
            part.see(packed, state, row, notes)


def items_of_all_places(
    tr: Transaction | Database, layout: Layout, pass_by: Callable[[bytes], object] = bytes
) -> Iterator[tuple[bytes, str, KeyValue]]:
    """Yield the packed position, state and row of all items in the order of their positions, a page at a time.

    Args:
        pass_by: called with each foreign key among them.
    """

    def items_in(name: str, place: Place) -> Iterator[tuple[bytes, str, KeyValue]]:
        for page in pages(tr, place.begin, place.end):
            for row in page:
                packed = place.packed(row.key)
                if is_packed(packed):
                    yield packed, name, row
                else:
                    pass_by(row.key)

    batches = read_in(tr, partial(claimed_places, layout=layout))
    places = [(name, getattr(layout, name)) for name in STATES] + [(CLAIMED, batch.place) for batch in batches]
    return heapq.merge(*(items_in(name, place) for name, place in places), key=itemgetter(0))


def read_in(tr: Transaction | Database, body: Callable[[Transaction], Steps[T]]) -> T:
    """Return what a body reads in the caller's transaction, or in a new one of a database. It blocks the thread."""
    check_cancelled()
    return run(attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))


async def _registered(tr: Transaction, layout: Layout) -> About | None:
    value = await value_of(tr.snapshot.get(layout.catalogue_key))
    return read_about(layout, bytes(value))[1] if value.present() else None


def _readable(read: Callable[[], T], problems: list[str]) -> T | None:
    """Return what a call reads; None if something can't be read, such as a counter, which is added to the problems."""
    try:
        return read()
    except FormatError as error:
        if str(error) not in problems:
            problems.append(str(error))
        return None


def _check_item(position: Position, row: KeyValue, large: dict[Position, Chunked]) -> str | None:
    try:
        opened = parse(row.value)
    except FormatError as error:
        return f"The item {position} can't be read. {error}"
    if opened.chunked is not None:
        large[position] = opened.chunked
    return None


def _check_counts(stats: Stats, found: dict[str, int]) -> list[str]:
    counted = {name: getattr(stats, name) for name in found}
    return [
        f"The counters say that {counted[name]:,} items are {name}, but there are {there:,}."
        for name, there in found.items()
        if counted[name] != there
    ]


def _check_chunks(
    tr: Transaction | Database, layout: Layout, large: dict[Position, Chunked], foreign: list[bytes]
) -> list[str]:
    sizes: dict[Position, int] = {}
    span = layout.chunks.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            position = layout.chunk_of(row.key)
            if position is None:
                foreign.append(row.key)
                continue
            sizes[position] = sizes.get(position, 0) + len(row.value)
    problems = [
        f"The item {position} has {sizes.get(position, 0):,} of its {chunked.size_bytes:,} bytes in chunks."
        for position, chunked in large.items()
        if sizes.get(position, 0) != chunked.size_bytes
    ]
    going = read_in(tr, partial(chunks_to_clear, layout=layout))
    return problems + [f"Chunks of {position} belong to no item." for position in sizes.keys() - large.keys() - going]
