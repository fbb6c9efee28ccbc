"""Credit: how much of its grant a subscription has left. There is no counter: it is what its consumers do not have.

(docs/adr/0067)
"""

from __future__ import annotations

from dataclasses import dataclass

from fdbqueue.lowlevel import Layout, Steps, Transaction, rows

from ._records import Registration


@dataclass(frozen=True, slots=True)
class Credit:
    """How many more items, and bytes, a subscription may deliver; None: any number."""

    items: int | None
    size_bytes: int | None


NO_LIMIT = Credit(None, None)


def credit_left(tr: Transaction, layout: Layout, name: str, registration: Registration) -> Steps[Credit]:
    """Return what a subscription's consumers may still get.

    By snapshot: who takes for this subscription at the same time conflicts anyway, and what comes back at the same
    time only makes more of it.
    """
    if registration.credit is None and registration.credit_bytes is None:
        return NO_LIMIT
    span = layout.held[name].range()
    held = yield from rows(tr.snapshot, span.start, span.stop)
    items, size_bytes = registration.credit, registration.credit_bytes
    held_bytes = sum(int.from_bytes(row.value, "little") for row in held)
    return Credit(
        None if items is None else max(0, items - len(held)),
        None if size_bytes is None else max(0, size_bytes - held_bytes),
    )
