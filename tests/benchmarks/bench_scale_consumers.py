"""How the rate of taking items out holds with more and more consumers at one head."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from tests.benchmarks.contenders import Line
from tests.benchmarks.harness import SIZE, Entrant, Sample, heading, say, sweep
from tests.benchmarks.side_by_side import groups

ITEM = b"x" * 100
CONSUMERS = {"quick": (1, 8), "full": (1, 2, 4, 8, 16, 32, 64, 128, 256)}.get(SIZE, (1, 4, 16, 64, 256))
SECONDS = {"quick": 0.2, "full": 3.0}.get(SIZE, 0.7)
FIRST_FILL = 5_000
AHEAD = 4
"""How many times the items that were taken at best so far are put in for the next round."""


def main() -> None:
    heading("More consumers")
    say(
        "Each consumer takes one item of 100 B after another, and a call returns when that is committed to disk."
        " Consumers are threads over up to four processes; persist-queue's are threads of one, as it asks for."
    )
    with groups(staged=True) as found:
        for group in found:
            most: dict[str, float] = defaultdict(lambda: FIRST_FILL / AHEAD)
            sweep(
                f"Consumers that each take one item after another, {group.name}",
                "consumers",
                CONSUMERS,
                [Entrant(line.stand.name, partial(consume, line, most)) for line in group.lines],
            )


def consume(line: Line, most: dict[str, float], consumers: int) -> Sample:
    """Fill the queue with more than can be taken, and let consumers take."""
    line.here.fill(int(AHEAD * most[line.stand.name]), ITEM)
    sample = line.consume(consumers, SECONDS)
    line.here.clear()
    most[line.stand.name] = max(most[line.stand.name], sample.items)
    return sample
