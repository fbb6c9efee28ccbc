"""Foreign keys: keys among those of a queue that the library did not write, or that a newer version wrote.

A key is foreign if it begins as the keys of a family do, and its other parts are none of that family
(`fdbqueue.stored.shapes`). Keys elsewhere below the queue's name are not looked at: layers of your own have them. Keys
of a queue whose name is below this one are passed by, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import behind, below, is_within, within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.steps import rows, run
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.reads.browse import pages
from fdbqueue.stored.layout import CATALOGUE, FAMILIES, Family, Layout, is_packed
from fdbqueue.stored.own_rows import session_of

SHOWN_KEYS = 100
"""The most foreign keys that a report names."""
_BULK = ("leased", "delayed", "dead", "chunks", "blobs")
_BULK_PARTS = frozenset(FAMILIES[name].packed for name in _BULK)
"""Families that may be large. Other parts of a check read them, and report their foreign keys."""
_CLOSED = sorted(
    {one.packed: one for one in FAMILIES.values() if not any(shape.is_open for shape in one.shapes)}.values(),
    key=lambda family: family.packed,
)
"""Families whose keys are all known by their parts, in the order of their keys."""
_LINE, _LINES, _ITEMS = (fdb_tuple.pack((name,)) for name in ("line", "lines", "items"))


def foreign_keys(tr: Transaction | Database, layout: Layout, *, bulk: bool = True) -> Iterator[bytes]:
    """Yield the foreign keys of a queue, a page at a time. It does not look into the queue's sessions.

    Args:
        bulk: whether to read the items, chunks and blobs, too.

    *Conflicts:* as `pages`. *Cost:* reads all keys of the queue; without `bulk` those that are no items. Each family
    that has keys costs two round trips at least.
    """
    others = _queues_below(tr, layout)
    for family in _with_keys(tr, layout, [one for one in _CLOSED if bulk or one.packed not in _BULK_PARTS]):
        yield from _of_family(tr, layout, family, others)
    if bulk:
        for page in pages(tr, layout.begin, layout.end):
            yield from (
                row.key
                for row in page
                if not is_packed(layout.available.packed(row.key)) and not _is_in(row.key, others)
            )


def foreign_keys_of_all(tr: Transaction | Database, layout: Layout) -> Iterator[bytes]:
    """Yield the foreign keys of a queue, of its sessions and of their lines."""
    for one in (layout, *_nested(tr, layout)):
        yield from foreign_keys(tr, one)


def told(layout: Layout, key: bytes) -> str:
    """Return what is wrong with a foreign key."""
    return f"The key {key!r} is among those of {layout.describe()}, and fdbqueue did not write it."


def _with_keys(tr: Transaction | Database, layout: Layout, families: list[Family]) -> Iterator[Family]:
    """Yield those of some families that have keys, in the order of their keys.

    A session has few of the families. So one read finds the next key, and the families in front of it are skipped.
    """
    last = max(behind(layout.prefix + family.packed) for family in families)
    following = b""
    for family in families:
        begin = layout.prefix + family.packed
        if following < begin:
            following = _first(tr, begin, last) or last
        if following < behind(begin):
            yield family


def _of_family(tr: Transaction | Database, layout: Layout, family: Family, others: list[bytes]) -> Iterator[bytes]:
    prefix = layout.prefix + family.packed
    for page in pages(tr, prefix, behind(prefix)):
        for row in page:
            tail = row.key[len(prefix) :]
            if (
                family.parts(tail) is None
                and is_within(row.key, prefix)
                and not _is_other(layout, row.key, family, others)
            ):
                yield row.key


def _is_other(layout: Layout, key: bytes, family: Family, others: list[bytes]) -> bool:
    """Return whether a key is of a longer family, such as ("upload", "open"), or of another queue."""
    rest = key[len(layout.prefix) :]
    longer = (one.packed for one in FAMILIES.values() if len(one.packed) > len(family.packed))
    return _is_in(key, others) or any(is_within(rest, packed) for packed in longer)


def _is_in(key: bytes, others: list[bytes]) -> bool:
    return any(is_within(key, prefix) for prefix in others)


def _queues_below(tr: Transaction | Database, layout: Layout) -> list[bytes]:
    begin, end = below(layout.catalogue_key)
    return [row.key[len(CATALOGUE) :] for page in pages(tr, begin, end) for row in page]


def _nested(tr: Transaction | Database, layout: Layout) -> Iterator[Layout]:
    """Yield the layouts of the lines of sessions, and of the sessions' items."""
    yield Layout.at(layout.prefix + _LINE)
    for family, parts in ((_LINES, 1), (_ITEMS, 2)):
        begin, end = within(layout.prefix + family)
        while found := _first(tr, begin, end):
            own = _begin_of(found[len(layout.prefix + family) :], parts)
            begin = found + b"\x00"
            if own is not None:
                nested = Layout.at(layout.prefix + family + own)
                yield nested
                begin = behind(nested.prefix)


def _begin_of(tail: bytes, parts: int) -> bytes | None:
    """Return the packed parts that name a shard, or a session and its generation."""
    if parts == 1:
        end = tail[0] - 0x13 if tail else 0
        return tail[:end] if 1 <= end <= 9 and len(tail) > end else None
    named = session_of(tail)
    return None if named is None else named[0] + fdb_tuple.pack((named[1],))


def _first(tr: Transaction | Database, begin: bytes, end: bytes) -> bytes:
    async def body(tr: Transaction) -> bytes:
        found = await rows(tr.snapshot, begin, end, limit=1)
        return found[0].key if found else b""

    return run(attempts(tr, body) if is_database(tr) else body(tr))  # type: ignore[arg-type]
