"""How the rate holds when more and more items wait in the queue."""

from __future__ import annotations

from functools import partial

from tests.benchmarks.contenders import CallQueue
from tests.benchmarks.harness import SIZE, Entrant, Sample, heading, say, sweep
from tests.benchmarks.side_by_side import groups

ITEM = b"x" * 100
LENGTHS = {"quick": (1_000, 4_000)}.get(SIZE, (1_000, 10_000, 100_000, 1_000_000))
SECONDS = {"quick": 0.1, "full": 2.0}.get(SIZE, 0.5)


def main() -> None:
    heading("Longer queues")
    say(
        "One thread enqueues an item of 100 B and then dequeues one, repeatedly. Each of the two is a transaction that"
        " is committed to disk. The axis is the number of other items in the queue. A call is an enqueue and a dequeue"
        " together."
    )
    with groups(staged=False) as found:
        for group in found:
            lengths: dict[str, int] = {line.stand.name: 0 for line in group.lines}
            sweep(
                f"One item in and one out of a queue with so many items, {group.name}",
                "items in the queue",
                LENGTHS,
                [Entrant(line.stand.name, partial(pass_through, line, lengths)) for line in group.lines],
            )


def pass_through(line: CallQueue, lengths: dict[str, int], length: int) -> Sample:
    """Make the queue that long, if it is not, and measure."""
    line.here.fill(length - lengths[line.stand.name], ITEM)
    lengths[line.stand.name] = length
    return line.pass_through(ITEM, SECONDS)
