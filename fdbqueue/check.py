"""`check`: reads everything that a queue owns and says what does not fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdbqueue.browse import pages
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import FormatError
from fdbqueue.items import Chunked, parse
from fdbqueue.layout import Layout, Position
from fdbqueue.stats import Stats, read_stats


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found."""

    items: int
    """Items that were read."""
    problems: tuple[str, ...]
    """What does not fit together, a sentence each; empty if all is well."""
    counted: bool
    """Whether the counters could be compared: not when items came or went while a long check ran."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check_queue(tr: Transaction | Database, layout: Layout) -> CheckReport:
    """Check keys, envelopes, chunks and counters of one queue."""
    before = _stats(tr, layout)
    problems: list[str] = []
    large: dict[Position, Chunked] = {}
    items = 0
    for page in pages(tr, layout.begin, layout.end):
        for row in page:
            items += 1
            problem = _check_item(layout, row.key, row.value, large)
            if problem:
                problems.append(problem)
    unsettled = _stats(tr, layout) != before
    problems += _check_chunks(tr, layout, large, unsettled)
    if not unsettled and before.available != items:
        problems.append(f"The counters say that {before.available:,} items are available, but there are {items:,}.")
    return CheckReport(items, tuple(problems), counted=not unsettled)


def _stats(tr: Transaction | Database, layout: Layout) -> Stats:
    if is_database(tr):
        db: Any = tr
        return run(attempts(db, lambda tr: read_stats(tr, layout)))
    own: Any = tr
    return run(read_stats(own, layout))


def _check_item(layout: Layout, key: bytes, value: bytes, large: dict[Position, Chunked]) -> str | None:
    position = layout.position_of(key)
    if layout.item_key(position) != key:
        return f"The key {key!r} stands among the items, but is no (index, random) tuple."
    try:
        chunked = parse(value).chunked
    except FormatError as error:
        return f"The item {position} can't be read. {error}"
    if chunked is not None:
        large[position] = chunked
    return None


def _check_chunks(
    tr: Transaction | Database, layout: Layout, large: dict[Position, Chunked], unsettled: bool
) -> list[str]:
    sizes: dict[Position, int] = {}
    span = layout.chunks.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            index, random, _ = layout.chunks.unpack(row.key)
            position = Position(index, random)
            sizes[position] = sizes.get(position, 0) + len(row.value)
    problems = [
        f"The item {position} has {sizes.get(position, 0):,} of its {chunked.size_bytes:,} bytes in chunks."
        for position, chunked in large.items()
        if sizes.get(position, 0) != chunked.size_bytes and not unsettled
    ]
    problems += [
        f"Chunks of {position} belong to no item." for position in sizes.keys() - large.keys() if not unsettled
    ]
    return problems
