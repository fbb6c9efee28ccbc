"""How the rate of taking items out holds with more and more consumers at one head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tests.benchmarks.contenders import PROCESSES, CallQueue
from tests.benchmarks.harness import SIZE, Entrant, Sample, heading, say, sweep
from tests.benchmarks.side_by_side import groups

ITEM = b"x" * 100
CONSUMERS = {"quick": (1, 8), "full": (1, 2, 4, 8, 16, 32, 64, 128, 256)}.get(SIZE, (1, 4, 16, 64, 256))
SECONDS = {"quick": 0.2, "full": 3.0}.get(SIZE, 0.7)
FIRST_FILL = 5_000
AHEAD = 4
"""How many times the items that were taken at best so far are put in for the next round."""


@dataclass(slots=True)
class Fill:
    """How many items are put in for each of those that are compared."""

    items: int = FIRST_FILL


def main() -> None:
    heading("More consumers")
    say(
        "Each consumer takes one item of 100 B after another. A call returns when its commit is on disk. All queues of"
        " a table have the same callers, the same durability, and the same length at the start of a round. That length"
        f" is {AHEAD} times the largest number of items that any queue gave out in a round so far. N consumers over"
        f" {PROCESSES} processes are N / {PROCESSES} threads per process, or one thread per process if N is smaller"
        f" than {PROCESSES}. persist-queue takes part only with the threads of one process, because two processes get"
        " the same item from it."
    )
    with groups(staged=True) as found:
        for group in found:
            several = [line for line in group.lines if line.stand.processes >= PROCESSES]
            over(group.name, f"threads over {PROCESSES} processes", several, PROCESSES)
            if len(several) < len(group.lines):
                over(group.name, "threads of one process", group.lines, 1)


def over(group: str, setting: str, lines: Sequence[CallQueue], processes: int) -> None:
    """Drive all of a group in one setting."""
    fill = Fill()
    sweep(
        f"Consumers that each take one item after another, {group}, {setting}",
        "consumers",
        CONSUMERS,
        [Entrant(line.stand.name, partial(consume, line, fill, processes)) for line in lines],
    )


def consume(line: CallQueue, fill: Fill, processes: int, consumers: int) -> Sample:
    """Fill the queue with more than can be taken, and let consumers take."""
    line.here.fill(fill.items, ITEM)
    sample = line.consume(consumers, SECONDS, processes=processes)
    line.here.clear()
    fill.items = max(fill.items, AHEAD * sample.items)
    return sample
