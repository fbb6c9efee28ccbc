"""How the rate holds with larger and larger items."""

from __future__ import annotations

from functools import partial

from tests.benchmarks.contenders import CallQueue
from tests.benchmarks.harness import SIZE, Entrant, Sample, heading, say, sweep
from tests.benchmarks.side_by_side import groups

SIZES = {"quick": (10, 1_000)}.get(SIZE, (10, 100, 1_000, 10_000, 90_000))
SECONDS = {"quick": 0.1, "full": 2.0}.get(SIZE, 0.5)
WAITING = 10
"""Items in the queue meanwhile."""


def main() -> None:
    heading("Larger items")
    say(
        "One thread enqueues an item and then dequeues one, repeatedly. Each of the two is a transaction that is"
        f" committed to disk. There are {WAITING} other items in the queue. A call is both together."
    )
    with groups(staged=False) as found:
        for group in found:
            sweep(
                f"One item in and one out, by the item's size, {group.name}",
                "bytes of an item",
                SIZES,
                [Entrant(line.stand.name, partial(pass_through, line)) for line in group.lines],
            )


def pass_through(line: CallQueue, size: int) -> Sample:
    """Measure with items of that size."""
    value = b"x" * size
    line.here.fill(WAITING, value)
    sample = line.pass_through(value, SECONDS)
    line.here.clear()
    return sample
