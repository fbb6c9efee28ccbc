"""`check`: reads everything that a queue owns and reports inconsistencies."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar, cast

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import Shown
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.blocking import check_cancelled
from fdbqueue.engine.steps import Steps, run
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import FormatError
from fdbqueue.moves.admission import read_high_water_mark
from fdbqueue.reads.browse import pages
from fdbqueue.reads.order_check import OrderCheck
from fdbqueue.reads.registry import ItemCheck, MakesCheck, content_parts
from fdbqueue.stored.claimed import chunks_to_clear, claimed_places
from fdbqueue.stored.counters import Stats, read_level_counts, read_own_stats, read_stats
from fdbqueue.stored.items import NO_NOTES, Chunked, Notes, has_notes, notes_of, parse
from fdbqueue.stored.layout import Layout, Place, pack
from fdbqueue.stored.states import ALL_STATES, CLAIMED, STATES

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
    """Whether the counters could be compared. They can't if items came or went while a long check ran."""
    looked_at: tuple[str, ...] = field(default=LOOKED_AT, repr=False)
    """What was compared."""
    not_looked_at: tuple[str, ...] = field(default=(), repr=False)
    """What the queue has beside that, as far as `fdbqueue.check` has noticed."""

    @property
    def ok(self) -> bool:
        """Whether the check found no problem."""
        return not self.problems


def check_queue(
    tr: Transaction | Database,
    layout: Layout,
    *parts: MakesCheck,
    order: OrderCheck | None = None,
    with_contents: bool = True,
) -> CheckReport:
    """Check keys, envelopes, chunks and counters of one queue, for items in every state.

    Args:
        parts: what layers compare. They see the items in the same pass.
        order: checks the items' order; None: as of every queue.
        with_contents: whether to check what items have beside themselves, such as blobs. Items of sessions have it
            elsewhere, and the caller checks it.

    *Cost:* reads the whole queue once, a page at a time; once more if a part finds something in a database.
    """
    before = read_in(tr, partial(read_own_stats, layout=layout))
    problems: list[str] = []
    twice: list[str] = []
    order = order or OrderCheck()
    large: dict[Position, Chunked] = {}
    found = dict.fromkeys(map(str, ALL_STATES), 0)
    previous = b""

    def changed() -> bool:
        return read_in(tr, partial(read_stats, layout=layout)) != before

    made = [make() for make in parts]
    contents = contents_of(tr, layout, changed) if with_contents else []
    for packed, name, row in _shown_to([*made, *contents], items_of_all_places(tr, layout)):
        found[name] += 1
        place = Place(row.key[: -len(packed)])
        problem = _check_item(place, row, large)
        if problem:
            problems.append(problem)
        if packed == previous:
            twice.append(f"The item {place.position(row.key)} stands in two places; one of them is {name!r}.")
        previous = packed
        order.see(place.position(row.key), name)

    unsettled = changed()
    problems += _check_chunks(tr, layout, large, unsettled)
    problems += [problem for part in contents for problem in part.problems()]
    if not unsettled:
        mark = read_in(tr, partial(read_high_water_mark, layout=layout))
        levels = read_in(tr, partial(read_level_counts, layout=layout))
        problems += twice + _check_counts(before, found) + order.problems(mark, levels)
    problems += _of_parts(tr, layout, parts, made)
    counted = not unsettled and all(part.counted for part in made)
    return CheckReport(sum(found.values()) + sum(part.items for part in made), tuple(problems), counted)


def contents_of(tr: Transaction | Database, layout: Layout, changed: Callable[[], bool]) -> list[ItemCheck]:
    """Begin the check of what items have beside themselves.

    Args:
        layout: where they have it.
        changed: returns whether items came or went since the check began.
    """
    return [make(tr, layout, changed) for make in content_parts.all().values()]


def _of_parts(
    tr: Transaction | Database, layout: Layout, parts: Sequence[MakesCheck], made: Sequence[ItemCheck]
) -> Iterator[str]:
    """Yield what parts have found; in a database, what they find twice."""
    told = {make: problems for make, part in zip(parts, made, strict=True) if (problems := part.problems())}
    if told and is_database(tr):
        again = [make() for make in told]
        for _ in _shown_to(again, items_of_all_places(tr, layout)):
            pass
        for (make, problems), part in zip(told.items(), again, strict=True):
            there = set(part.problems())
            told[make] = [problem for problem in problems if problem in there]
    for problems in told.values():
        yield from problems


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


def items_of_all_places(tr: Transaction | Database, layout: Layout) -> Iterator[tuple[bytes, str, KeyValue]]:
    """Yield the packed position, state and row of all items in the order of their positions, a page at a time."""

    def items_in(name: str, place: Place) -> Iterator[tuple[bytes, str, KeyValue]]:
        for page in pages(tr, place.begin, place.end):
            for row in page:
                yield place.packed(row.key), name, row

    batches = read_in(tr, partial(claimed_places, layout=layout))
    places = [(name, getattr(layout, name)) for name in STATES] + [(CLAIMED, batch.place) for batch in batches]
    return heapq.merge(*(items_in(name, place) for name, place in places), key=itemgetter(0))


def read_in(tr: Transaction | Database, body: Callable[[Transaction], Steps[T]]) -> T:
    """Return what a body reads in the caller's transaction, or in a new one of a database. It blocks the thread."""
    check_cancelled()
    return run(attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))


def _check_item(place: Place, row: KeyValue, large: dict[Position, Chunked]) -> str | None:
    position = place.position(row.key)
    if place.key(pack(position)) != row.key:
        return f"The key {row.key!r} stands among the items, but is no position."
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
    tr: Transaction | Database, layout: Layout, large: dict[Position, Chunked], unsettled: bool
) -> list[str]:
    sizes: dict[Position, int] = {}
    span = layout.chunks.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            position = layout.chunk_of(row.key)
            sizes[position] = sizes.get(position, 0) + len(row.value)
    problems = [
        f"The item {position} has {sizes.get(position, 0):,} of its {chunked.size_bytes:,} bytes in chunks."
        for position, chunked in large.items()
        if sizes.get(position, 0) != chunked.size_bytes and not unsettled
    ]
    going = read_in(tr, partial(chunks_to_clear, layout=layout))
    problems += [
        f"Chunks of {position} belong to no item." for position in sizes.keys() - large.keys() - going if not unsettled
    ]
    return problems
