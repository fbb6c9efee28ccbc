"""Checks that the dependent keys of items are those that their notes name. This needs no message types."""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue import FormatError
from fdbqueue.lowlevel import (
    CLAIMED,
    CODEC_ERRORS,
    Database,
    Layout,
    Subspace,
    Transaction,
    is_database,
    items_of_all_places,
    notes_of,
    pages,
    strinc,
)


def check_dependent_keys(tr: Transaction | Database, layout: Layout) -> list[str]:
    """Return one sentence for each inconsistency.

    `SmartQueue.check` also checks that an item's index entry has the right type and key.
    """
    problems = _problems(tr, layout)
    if problems and is_database(tr):
        # An item that came or went between two of its transactions looks wrong. A real problem shows again.
        again = set(_problems(tr, layout))
        problems = [problem for problem in problems if problem in again]
    return problems


def orphans(tr: Transaction | Database, layout: Layout, name: str, space: Subspace, named: set[bytes]) -> list[str]:
    """Return a sentence for each key of one kind that no item's notes name."""
    surplus = [key for key in keys_of(tr, space) if key not in named]
    return [f"The key {_told(layout, key)} of a {name} belongs to no item." for key in surplus]


def keys_of(tr: Transaction | Database, space: Subspace) -> Iterator[bytes]:
    """Yield the keys of a subspace, a page at a time."""
    begin: bytes = space.key()
    for page in pages(tr, begin, strinc(begin)):
        for row in page:
            yield row.key


def other_dependent_keys(layout: Layout) -> tuple[tuple[str, Subspace], ...]:
    """Return the names and subspaces of dependent keys other than the index."""
    return ("deadline", layout.deadlines), ("copy", layout.copies), ("unsent", layout.unsent)


def _problems(tr: Transaction | Database, layout: Layout) -> list[str]:
    named: set[bytes] = set()
    for packed, state, row in items_of_all_places(tr, layout):
        if state in ("dead", CLAIMED):
            continue
        try:
            named.update(layout.dependent_keys(notes_of(row.value).beside, packed))
        except FormatError:
            continue  # the queue's own check reports it
    entries = set(keys_of(tr, layout.smart))
    begin: bytes = layout.smart.key()
    missing = sorted(key for key in named - entries if key.startswith(begin))
    problems = [f"The smart index has no {_told(layout, key)}, which its item's notes name." for key in missing]
    for name, space in (("smart index", layout.smart), *other_dependent_keys(layout)):
        problems += orphans(tr, layout, name, space, named)
    return problems


def _told(layout: Layout, key: bytes) -> str:
    try:
        return str(layout.space.unpack(key))
    except CODEC_ERRORS:
        return repr(key)  # another program wrote it
