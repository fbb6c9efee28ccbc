"""Credit: how much more a subscription may deliver.

There is no counter: credit is the limit less the items that the consumers hold. (docs/adr/0067)
"""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.lowlevel import Layout, Shown, Transaction, rows

from ._records import SubscriptionRecord


@dataclass(frozen=True, slots=True, repr=False)
class Credit(Shown):
    """How many more items and bytes a subscription may deliver; None: no limit."""

    items: int | None
    size_bytes: int | None


NO_LIMIT = Credit(None, None)


async def credit_left(tr: Transaction, layout: Layout, name: str, registration: SubscriptionRecord) -> Credit:
    """Return the credit that a subscription has left.

    The read is a snapshot read. A concurrent lease of the same subscription conflicts anyway, and an item that comes
    back at the same time only adds credit.
    """
    if registration.credit is None and registration.credit_bytes is None:
        return NO_LIMIT
    span = layout.held[name].range()
    held = await rows(tr.snapshot, span.start, span.stop)
    items, size_bytes = registration.credit, registration.credit_bytes
    held_bytes = sum(int.from_bytes(row.value, "little") for row in held)
    return Credit(
        None if items is None else max(0, items - len(held)),
        None if size_bytes is None else max(0, size_bytes - held_bytes),
    )
