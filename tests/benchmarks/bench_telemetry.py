"""What telemetry costs a program that has OpenTelemetry's API and no SDK: CPU time of calls, with and without it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from fdbqueue.observe import instrument, uninstrument
from tests.benchmarks.call_cpu import Calls
from tests.benchmarks.harness import SIZE, heading, say

CALLS = 50 if SIZE == "quick" else 200
"""Few calls a turn, so that what else the machine does meets both turns."""
ROUNDS = 2 if SIZE == "quick" else 300
VERBS = ("enqueue", "lease", "ack")
WANTED = 1.03


def main() -> None:
    heading("What telemetry costs without an SDK")
    say(
        f"\nCPU time of {CALLS} calls in memory:, in turns, {ROUNDS} times: the ratio of each pair, and their median.\n"
    )
    say("| verb | CPU of a call | instrumented / plain, median | quartiles | wanted |")
    say("|---|---:|---:|---:|---:|")
    calls = Calls("memory:", CALLS)
    for verb in VERBS:
        pairs = list(_pairs(calls, verb))
        low, middle, high = statistics.quantiles((told / plain for plain, told in pairs), n=4)
        seconds = statistics.median(plain for plain, _ in pairs) / CALLS
        say(f"| {verb} | {seconds * 1e6:.0f} µs | {middle:.3f} | {low:.3f} to {high:.3f} | <= {WANTED} |")


def _pairs(calls: Calls, verb: str) -> Iterator[tuple[float, float]]:
    """Yield the seconds of the plain calls and of the instrumented ones, after a first pair that warms up."""
    for number in range(ROUNDS + 1):
        took = {}
        for told in (False, True) if number % 2 else (True, False):
            if told:
                instrument()
            try:
                took[told] = calls.took(verb)
            finally:
                uninstrument()
        if number:
            yield took[False], took[True]


if __name__ == "__main__":
    main()
