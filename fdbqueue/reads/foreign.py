"""Foreign keys: keys below a queue's name that the library did not write, or that a newer version wrote.

One rule: a key below the queue's name is foreign if the table of keys does not have it (`is_own` in
`fdbqueue/stored/layout.py`). Keys of a queue whose name is below this one are passed by, and so are keys that a user's
layer names in its `CheckPart`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import below, is_within, within
from fdbqueue.reads.browse import pages
from fdbqueue.reads.registry import check_parts
from fdbqueue.stored.layout import CATALOGUE, FAMILIES, Layout, is_own

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
    layers = [of(layout).key() for part in check_parts.added() for _, of in part.leaves_out]
    layers += [of(layout).key() for part in check_parts.added() for of in part.owns]
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
