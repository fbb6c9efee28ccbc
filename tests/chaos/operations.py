"""Operations: by this number a run's length is told. Numbers of runs with different seeds may be summed."""

from __future__ import annotations

from tests.chaos.replay import Step
from tests.chaos.sessionreplay import SessionStep

MEANS = (
    "An operation is one transaction's effect on one item: the item comes, is leased or taken out, or its lease is "
    "extended or ends. So are what an operator or a timer does to an item, and the begin of a session's lease."
)


def operations(step: Step) -> int:
    """Return how many operations a record has."""
    count = sum(before != after for _, before, after in step.moves)
    if isinstance(step, SessionStep):
        count += sum(before != after for before, after in step.items.values())
        # The end of a session's lease is told by its item.
        for before, after in step.pointers.values():
            count += after is not None and after.token not in (b"", before.token if before is not None else b"")
    return count
