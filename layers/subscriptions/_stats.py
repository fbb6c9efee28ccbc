"""Stats of subscriptions: their terms, and the items that their consumers hold."""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.engine.steps import finished, value_of
from fdbqueue.lowlevel import Layout, Shown, Steps, Transaction, rows, started
from fdbqueue.stored.own_rows import own_rows

from ._records import SubscriptionRecord, read_registration

_AFTER = b"\x00"  # appended to a key: the next key in sort order


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionStats(Shown):
    """The terms of one subscription, and the items that its consumers hold."""

    name: str
    selector: str | None
    """Its condition, "" for none; None: a function."""
    suspended: bool
    credit: int | None
    """How many items its consumers may hold at once; None: no limit."""
    credit_bytes: int | None
    """How many bytes they may hold at once; None: no limit."""
    held: int
    """How many items they hold."""
    held_bytes: int
    """How many bytes they hold."""
    exclusive: bool
    """Whether a process owns it now."""
    browser: bool = False
    """Whether it is a browser, which takes nothing (`Subscriptions.follow`)."""


async def read_page(
    tr: Transaction, layout: Layout, now_us: int, *, after: str | None, limit: int
) -> list[SubscriptionStats]:
    """Read the stats of up to `limit` subscriptions by name, 0 for all, beginning after the name `after`."""
    span = layout.subscriptions.range()
    begin = span.start if after is None else layout.subscriptions.pack((after,)) + _AFTER
    found = {}
    page = await rows(tr.snapshot, begin, span.stop, limit=limit)
    for (name,), row in own_rows(layout, "subscriptions", page):
        found[name] = read_registration(layout, name, row.value)
    return await _with_held(tr, layout, now_us, found)


async def read_one(tr: Transaction, layout: Layout, now_us: int, name: str) -> SubscriptionStats | None:
    """Read the stats of one subscription; None if it is not registered."""
    stored = tr.snapshot.get(layout.subscriptions.pack((name,)))
    held = started(_held(tr, layout, name, name))
    value = await value_of(stored)
    if not value.present():
        return None
    [stats] = await _with_held(tr, layout, now_us, {name: read_registration(layout, name, bytes(value))}, held)
    return stats


async def count_registrations(tr: Transaction, layout: Layout, *, limit: int) -> int:
    """Count the subscriptions, up to `limit`."""
    span = layout.subscriptions.range()
    return len(await rows(tr.snapshot, span.start, span.stop, limit=limit))


Held = dict[str, tuple[int, int]]
"""For each subscription: how many items, and how many bytes, its consumers hold."""


async def _with_held(
    tr: Transaction,
    layout: Layout,
    now_us: int,
    found: dict[str, SubscriptionRecord],
    held: Steps[Held] | None = None,
) -> list[SubscriptionStats]:
    if held is None:
        names = list(found)
        held = _held(tr, layout, names[0], names[-1]) if names else finished({})
    held_by = await held
    stats = []
    for name, one in found.items():
        items, size_bytes = held_by.get(name, (0, 0))
        exclusive = bool(one.owner) and one.owned_until_us > now_us
        stats.append(
            SubscriptionStats(
                name,
                one.selector,
                one.suspended,
                one.credit,
                one.credit_bytes,
                items,
                size_bytes,
                exclusive,
                bool(one.browser),
            )
        )
    return stats


async def _held(tr: Transaction, layout: Layout, first: str, last: str) -> Held:
    """Read the items that consumers hold, for all subscriptions from a first to a last name, in one range read."""
    held: Held = {}
    found = await rows(tr.snapshot, layout.held[first].range().start, layout.held[last].range().stop)
    for (name, _), row in own_rows(layout, "held", found):
        items, size_bytes = held.get(name, (0, 0))
        held[name] = items + 1, size_bytes + int.from_bytes(row.value, "little")
    return held
