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
        "Each consumer takes one item of 100 B after another, and a call returns when that is committed to disk. All"
        " queues of a table are driven in the same way, have the same durability, and begin each round with as many"
        f" items: {AHEAD} times what any of them gave out in a round so far. N consumers over {PROCESSES} processes are"
        f" N / {PROCESSES} threads in each; fewer than {PROCESSES} are a process each. persist-queue takes part only"
        " where all queues are driven by the threads of one process: two processes get the same item from it."
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
