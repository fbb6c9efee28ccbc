"""The end of the demo: checks whether every flight came out exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.demo.flights import Flights
from examples.demo.results import LOADER, Results, Tally


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the check."""

    exact: bool
    text: str


def verdict(db: Any, results: Results, flights: Flights) -> Verdict:
    """Compare the consumers' items with the file, and the queue with its counters."""
    tallies = results.tallies(db)
    taken = sum((tally for who, tally in tallies.items() if who != LOADER), Tally())
    report = results.queue.check(db)
    wrong = list(report.problems)
    if taken.items != flights.count:
        wrong.append(f"{taken.items:,} flights came out, of {flights.count:,}.")
    if taken.digest != flights.digest:
        wrong.append(
            f"The flights that came out are not those of the file: {taken.digest:#x}, not {flights.digest:#x}."
        )
    if report.items:
        wrong.append(f"{report.items:,} flights are still in the queue.")
    if wrong:
        return Verdict(False, "\n".join(f"✗ {sentence}" for sentence in wrong))
    return Verdict(
        True, f"✓ Every flight came out exactly once: {taken.items:,} of {flights.count:,}, digest {taken.digest:#x}"
    )
