"""What layers do when an item ends, in the transaction that ends it. The table names the library's own layers."""

from __future__ import annotations

from functools import cache
from typing import Protocol

from fdbqueue.base.contributions import Contributions
from fdbqueue.engine.api import Transaction
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout


class EndPart(Protocol):
    """What a layer does. It only writes blindly: an end reads nothing for it, and conflicts with nothing."""

    def __call__(
        self,
        tr: Transaction,
        layout: Layout,
        packed: bytes,
        notes: Notes,
        how: str,
        *,
        result: bytes = b"",
        error: str = "",
        now_us: int | None = None,
    ) -> None:
        """Do it for one item.

        Args:
            layout: where the outcomes and groups of the item are kept.
            packed: how the item is named there.
            how: "done", "dead", "expired", "deleted" or "cancelled"; "purged" if it ended before, when it died.
            result: its encoded result, if it is done.
            error: why it ends, if it is not.
            now_us: the time in microseconds; None: the wall clock.
        """


end_parts: Contributions[EndPart] = Contributions(
    results="fdbqueue.layers.results.ends:end_outcome", groups="fdbqueue.layers.groups.ends:end_membership"
)


@cache
def parts_of_ends() -> tuple[EndPart, ...]:
    """Return what to call when an item ends that is tracked."""
    return tuple(end_parts.all().values())
