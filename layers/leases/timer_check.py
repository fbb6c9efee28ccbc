"""Check that every item with an end time has its timer, and every timer its item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fdbqueue.lowlevel import (
    DELAY,
    DROP,
    GO,
    GRANT,
    GROUP,
    HOLD,
    LEASE,
    SWEEP,
    TTL,
    Database,
    FormatError,
    Layout,
    Notes,
    Transaction,
    has_notes,
    items_of_all_places,
    notes_of,
    pages,
)

from ._group_check import check_groups
from .outcome_check import OutcomeCheck, Tracked, tracked_items


def check_timers(
    tr: Transaction | Database, layout: Layout, counted: int, tracked: Iterable[Tracked] | None = None
) -> list[str]:
    """Return the problems, a sentence each; those of outcomes, which have timers too, included.

    Args:
        counted: how many outcomes are kept, by the queue's counter.
        tracked: the items with a completion or a group; None: those of this queue.

    *Cost:* reads all items twice, all timers and outcomes; memory for the keys of timers.
    """
    items = list(tracked_items(tr, layout) if tracked is None else tracked)
    outcomes = OutcomeCheck(tr, layout, items)
    wanted = set(_wanted(tr, layout)) | outcomes.timers
    span = layout.timers.range()
    surplus = []
    for page in pages(tr, span.start, span.stop):
        for row in page:
            if row.key in wanted:
                wanted.remove(row.key)
            elif not _may_be_left(layout, row.key):
                surplus.append(row.key)
    return (
        [f"The timer {_told(layout, key)} is missing." for key in sorted(wanted)]
        + [f"The timer {_told(layout, key)} belongs to no item." for key in surplus]
        + outcomes.problems(counted)
        + check_groups(tr, layout, items)
    )


def _may_be_left(layout: Layout, key: bytes) -> bool:
    """Return whether a timer is a follow-up's, a grant's or a group's. It may be left over until the next consumer."""
    try:
        return layout.timer_of(key)[2] in (GO, DROP, GRANT, GROUP, HOLD, SWEEP)
    except FormatError:
        return False


def _wanted(tr: Transaction | Database, layout: Layout) -> Iterator[bytes]:
    for packed, state, row in items_of_all_places(tr, layout):
        try:
            notes = notes_of(row.value) if row.value and has_notes(row.value) else Notes()
        except FormatError:
            continue  # the queue's own check reports it
        if state == "leased":
            yield layout.timer_key(notes.expires_at_us, packed, LEASE)
        if state == "delayed":
            yield layout.timer_key(notes.visible_at_us, packed, DELAY)
        if state in ("available", "delayed") and notes.ttl_at_us:
            yield layout.timer_key(notes.ttl_at_us, packed, TTL)


def _told(layout: Layout, key: bytes) -> str:
    try:
        at_us, position, kind = layout.timer_of(key)
    except FormatError:
        return f"{key!r}"
    return f"of the {kind} of {position} at {at_us / 1e6:.6f}"
