"""Benchmarks: contestants that take turns in one run, and a table of ratios between them.

Machines are noisy, so no figure stands alone: every contestant runs in every round, and what counts is the median over
the rounds of the ratio to the first one, the bound or the peer.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from tests.benchmarks import page
from tests.benchmarks.machine import described
from tests.benchmarks.samples import Figures, Sample, figures, for_seconds, in_threads, in_turn, quantile

__all__ = [
    "ROUNDS",
    "SIZE",
    "Contestant",
    "Entrant",
    "Sample",
    "cluster_url",
    "cluster_url_if_any",
    "compare",
    "for_seconds",
    "heading",
    "in_threads",
    "in_turn",
    "quantile",
    "say",
    "seed",
    "sweep",
]

SIZE = os.environ.get("FDBQUEUE_BENCH_SIZE", "normal")
"""``quick`` to see whether it runs, ``normal``, or ``full``."""
ROUNDS = int(os.environ.get("FDBQUEUE_BENCH_ROUNDS", {"quick": "1", "full": "9"}.get(SIZE, "5")))
SWEEP_ROUNDS = min(ROUNDS, {"full": 5}.get(SIZE, 3))


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way of doing the same work."""

    name: str
    run: Callable[[], Sample]
    wanted: float | None = None
    """The ratio to the first contestant that is to be reached."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way of doing the same work at every point of an axis."""

    name: str
    run: Callable[[int], Sample]


def compare(
    question: str, contestants: Sequence[Contestant], *, rounds: int = ROUNDS, by_cpu: bool = False
) -> dict[str, float]:
    """Let `contestants` take turns, print their table, and return the median ratios to the first one, by name.

    Args:
        question: what is asked.
        contestants: the first one is the bound or the peer.
        rounds: how often each has its turn.
        by_cpu: whether the table also has the ratios of the CPU time of an item, which other work disturbs less.
    """
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            samples[contestant.name].append(contestant.run())
    first = [sample.rate for sample in samples[contestants[0].name]]
    ratios = {
        name: statistics.median(sample.rate / bound for sample, bound in zip(taken, first, strict=True))
        for name, taken in samples.items()
    }
    found = [
        figures(contestant.name, samples[contestant.name], ratio=ratios[contestant.name], wanted=contestant.wanted)
        for contestant in contestants
    ]
    by_cpu_too = {name: _cpu_ratio(samples[contestants[0].name], taken) for name, taken in samples.items()}
    say(f"\n### {question}\n")
    page.chart(question, found)
    _table(found, cpu_ratios=by_cpu_too if by_cpu else None)
    return ratios


def _cpu_ratio(first: Sequence[Sample], taken: Sequence[Sample]) -> float:
    """Return the median ratio of the items that a second of CPU does to those of the first contestant."""
    return statistics.median(
        (bound.cpu_seconds or 1) / bound.items * sample.items / (sample.cpu_seconds or 1)
        for sample, bound in zip(taken, first, strict=True)
    )


def sweep(
    question: str,
    axis: str,
    points: Sequence[int],
    entrants: Sequence[Entrant],
    *,
    more: Callable[[Sequence[Figures]], Sequence[tuple[str, Sequence[str]]]] | None = None,
) -> list[Figures]:
    """Let `entrants` take turns at each of `points`, and return all figures. The chart has all, the table the ends.

    Args:
        question: what is asked.
        axis: what the points count.
        points: in order; every entrant is at one of them, in all rounds, before any is at the next one.
        entrants: who takes part.
        more: further columns of the table, each with a cell for each row.
    """
    samples: dict[tuple[str, int], list[Sample]] = {}
    for point in points:
        for _ in range(SWEEP_ROUNDS):
            for entrant in entrants:
                samples.setdefault((entrant.name, point), []).append(entrant.run(point))
    found = [figures(entrant.name, samples[entrant.name, point], at=point) for entrant in entrants for point in points]
    columns, shown = more(found) if more else (), _ends(points)
    say(f"\n### {question}\n")
    page.chart(question, found, axis)
    at_ends = [row.at in shown for row in found]
    _table(
        list(compress(found, at_ends)), axis, more=[(name, list(compress(cells, at_ends))) for name, cells in columns]
    )
    return found


def _ends(points: Sequence[int]) -> set[int]:
    """Return the first and the last point, and the middle one of an odd number."""
    return {points[0], points[-1], *([points[len(points) // 2]] if len(points) % 2 else [])}


def _table(
    found: Sequence[Figures],
    axis: str | None = None,
    *,
    cpu_ratios: Mapping[str, float] | None = None,
    more: Sequence[tuple[str, Sequence[str]]] = (),
) -> None:
    """Print a table: one row per contestant and point; what is empty or 0 in all rows has no column."""
    none = [""] * len(found)
    columns: list[tuple[str, Iterable[str]]] = [
        ("contestant", (row.name for row in found)),
        *([(axis, (f"{row.at:,.0f}" for row in found))] if axis else []),
        ("items/s, median", (f"{row.rate:,.0f}" for row in found)),
        ("lowest", (f"{row.lowest:,.0f}" for row in found)),
        ("call median", (_time(row.call) for row in found)),
        ("call P99", (_time(row.slow_call) for row in found)),
        (
            "conflicts/item",
            ([f"{row.conflicts:.4f}" for row in found] if any(row.conflicts for row in found) else none),
        ),
        ("CPU/item", (_time(row.cpu) for row in found)),
        ("the server's", (_time(row.server_cpu) for row in found)),
        *more,
    ]
    if axis is None:
        columns.append(("ratio", ("" if row.ratio is None else f"{row.ratio:.2f}" for row in found)))
        if cpu_ratios is not None:
            columns.append(("ratio by CPU", (f"{cpu_ratios[row.name]:.2f}" for row in found)))
        columns.append(("wanted", ("" if row.wanted is None else f">= {row.wanted:.2f}" for row in found)))
    filled = [(title, list(cells)) for title, cells in columns]
    filled = [(title, cells) for title, cells in filled if title == "ratio" or any(cells)]
    say("| " + " | ".join(title for title, _ in filled) + " |")
    say("|---|" + "---:|" * (len(filled) - 1))
    for row in zip(*(cells for _, cells in filled), strict=True):
        say("| " + " | ".join(row) + " |")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.0f} µs" if seconds >= 1e-5 else f"{seconds * 1e6:.1f} µs"


def cluster_url() -> str | None:
    """Return the URL of the cluster to measure; None, said out loud, if there is none."""
    url = cluster_url_if_any()
    if url is None:
        say("\nSkipped: the cluster's half, since FDB_CLUSTER_FILE names none.")
    return url


def cluster_url_if_any() -> str | None:
    """Return the URL of the cluster to measure; None if there is none."""
    cluster_file = os.environ.get("FDBQUEUE_TEST_CLUSTER_FILE") or os.environ.get("FDB_CLUSTER_FILE")
    return f"fdb:{cluster_file}" if cluster_file else None


def seed() -> int:
    """Return what random choices of benchmarks begin with."""
    return int(os.environ.get("FDBQUEUE_BENCH_SEED", "1"))


def heading(title: str) -> None:
    """Print a benchmark's title, and, where they don't stand on top of a page, the machine and the versions."""
    say(f"\n## {title}\n")
    if not page.is_open():
        say(f"{described()}; {ROUNDS} rounds.")


def say(text: str) -> None:
    """Print a line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
