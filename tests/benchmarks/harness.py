"""Benchmarks: contestants that take turns in one run, and a table of ratios between them.

Machines are noisy, so no figure stands alone: every contestant runs in every round, and what counts is the median over
the rounds of the ratio to the first one, the bound or the peer.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata

ROUNDS = int(os.environ.get("FDBQUEUE_BENCH_ROUNDS", "5"))


@dataclass(slots=True)
class Sample:
    """What one round of one contestant did."""

    items: int
    seconds: float
    latencies: list[float] = field(default_factory=list)
    """Seconds of single calls, where calls are what is measured."""
    conflicts: int = 0

    @property
    def rate(self) -> float:
        return self.items / self.seconds


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way of doing the same work."""

    name: str
    run: Callable[[], Sample]
    wanted: float | None = None
    """The ratio to the first contestant that is to be reached."""


def compare(question: str, contestants: Sequence[Contestant], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Let `contestants` take turns, print their table, and return the median ratios to the first one, by name."""
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            samples[contestant.name].append(contestant.run())
    first = [sample.rate for sample in samples[contestants[0].name]]
    ratios = {
        name: statistics.median(sample.rate / bound for sample, bound in zip(taken, first, strict=True))
        for name, taken in samples.items()
    }
    say(f"\n### {question}\n")
    say("| contestant | items/s, median | lowest | call median | call P99 | conflicts/item | ratio | wanted |")
    say("|---|---:|---:|---:|---:|---:|---:|---:|")
    for contestant in contestants:
        say(_row(contestant, samples[contestant.name], ratios[contestant.name]))
    return ratios


def _row(contestant: Contestant, samples: list[Sample], ratio: float) -> str:
    rates = [sample.rate for sample in samples]
    latencies = [latency for sample in samples for latency in sample.latencies]
    conflicts = sum(sample.conflicts for sample in samples) / max(1, sum(sample.items for sample in samples))
    return (
        f"| {contestant.name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} | {_time(quantile(latencies, 0.5))}"
        f" | {_time(quantile(latencies, 0.99))} | {conflicts:.4f} | {ratio:.2f}"
        f" | {'' if contestant.wanted is None else f'>= {contestant.wanted:.2f}'} |"
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of `values` lie; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def in_threads(threads: int, calls: int, call: Callable[[int], object]) -> Sample:
    """Make `calls` calls from each of `threads` threads, and time each."""

    def work(number: int) -> list[float]:
        latencies = []
        for n in range(calls):
            started = time.perf_counter()
            call(number * calls + n)
            latencies.append(time.perf_counter() - started)
        return latencies

    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        latencies = [latency for taken in pool.map(work, range(threads)) for latency in taken]
    return Sample(threads * calls, time.perf_counter() - started, latencies)


def in_turn(calls: int, call: Callable[[], object]) -> Sample:
    """Make `calls` calls one after the other in this thread, and time each."""
    latencies = []
    started = time.perf_counter()
    for _ in range(calls):
        before = time.perf_counter()
        call()
        latencies.append(time.perf_counter() - before)
    return Sample(calls, time.perf_counter() - started, latencies)


def cluster_url() -> str | None:
    """Return the URL of the cluster to measure; None, said out loud, if there is none."""
    cluster_file = os.environ.get("FDBQUEUE_TEST_CLUSTER_FILE") or os.environ.get("FDB_CLUSTER_FILE")
    if not cluster_file:
        say("\nSkipped: the cluster's half, since FDB_CLUSTER_FILE names none.")
        return None
    return f"fdb:{cluster_file}"


def seed() -> int:
    """Return what random choices of benchmarks begin with."""
    return int(os.environ.get("FDBQUEUE_BENCH_SEED", "1"))


def heading(title: str) -> None:
    """Print a benchmark's title with the machine and the versions."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("fdbqueue", "lmdb", "foundationdb", "pyspark"))
    say(f"\n## {title}\n")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    say(f"{machine}, {versions}; {ROUNDS} rounds.")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def say(text: str) -> None:
    """Print a line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
