"""A run of the demo: prepare, load, drain, check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import fdbqueue
from examples.demo.check import verdict
from examples.demo.children import Child, running, watch
from examples.demo.flights import prepare
from examples.demo.java import why_no_spark
from examples.demo.results import LOADER, Results, Tally
from examples.demo.screen import Stage, progress_of, table_of

BATCH = 500
SPARK_BATCH = 4_000
LOADERS = {"spark": "Spark", "plain": "the plain bulk call"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    url: str
    queue: str
    folder: Path
    rows: int | None
    consumers: int
    batch: int | None
    use_spark: bool
    fresh: bool


class Demo:
    """A run, or the rest of a killed run."""

    def __init__(self, settings: Settings, db: Any, console: Console) -> None:
        self._settings = settings
        self._db = db
        self._console = console
        self._results = Results(settings.queue)
        self._flights = prepare(settings.folder, settings.rows)

    def run(self) -> bool:
        """Load, drain and check; return whether every flight came out exactly once.

        Raises:
            DemoError: a process failed without being killed.
        """
        loader = self._begin()
        stages = [] if self._results.is_loaded(self._db) else [self._load(loader)]
        stages.append(self._drain())
        self._console.print(table_of(stages))
        found = verdict(self._db, self._results, self._flights)
        self._console.print(found.text, style="bold green" if found.exact else "bold red", highlight=False)
        if found.exact:
            self._results.set_checked(self._db)
        return found.exact

    def _begin(self) -> str:
        size_mb = self._flights.path.stat().st_size / 1e6
        self._console.print(f"{self._flights.count:,} flights, {size_mb:,.1f} MB, through {self._settings.url}")
        missing = why_no_spark() if self._settings.use_spark else None
        if missing is not None:
            self._console.print(f"Without Spark, since {missing}", highlight=False, markup=False)
        loader = "spark" if self._settings.use_spark and missing is None else "plain"
        taken_up = self._results.begin(self._db, self._flights, loader, self._settings.fresh)
        if taken_up is None:
            return loader
        # Spark's marks, or the plain load's, show which flights are in. So only the same loader can continue.
        self._console.print(f"Taking up the run that did not finish, loaded through {LOADERS[taken_up]}.")
        return taken_up

    def _load(self, loader: str) -> Stage:
        settings, flights = self._settings, self._flights
        arguments = [settings.url, settings.queue, str(flights.path)]
        if loader == "spark":
            arguments += [flights.job, str(settings.folder), str(settings.batch or SPARK_BATCH)]
        else:
            arguments.append(str(settings.batch or BATCH))
        child = Child(LOADER, f"load_{loader}", arguments, settings.folder)
        return self._stage(
            f"load through {LOADERS[loader]}" + (", its start too" if loader == "spark" else ""), [child], "enqueued"
        )

    def _drain(self) -> Stage:
        settings = self._settings
        names = [f"consumer {number}" for number in range(1, settings.consumers + 1)]
        children = [
            Child(name, "consumer", [settings.url, settings.queue, name, str(settings.batch or BATCH)], settings.folder)
            for name in names
        ]
        return self._stage(f"drain by {len(names)} processes", children, "dequeued")

    def _stage(self, name: str, children: list[Child], counter: str) -> Stage:
        def done() -> int:
            count: int = getattr(self._results.queue.stats(self._db), counter)
            return count

        pids = " ".join(str(child.pid) for child in children)
        self._console.print(f"{name[0].upper()}{name[1:]}; kill -9 one of {pids}, and it goes on", highlight=False)
        done_before, before, started = done(), self._sum_of(children), time.monotonic()
        with running(children), progress_of(name, self._flights.count, self._console) as advance:
            watch(children, lambda: advance(done()))
        seconds = time.monotonic() - started
        after = self._sum_of(children)
        return Stage(
            name,
            items=done() - done_before,
            seconds=seconds,
            transactions=after.transactions - before.transactions,
            conflicts=after.conflicts - before.conflicts,
            retries=after.retries - before.retries,
            restarts=sum(child.restarts for child in children),
        )

    def _sum_of(self, children: list[Child]) -> Tally:
        names = {child.name for child in children}
        tallies = self._results.tallies(self._db)
        return sum((tally for who, tally in tallies.items() if who in names), Tally())


def run(settings: Settings, console: Console) -> bool:
    """Run the demo; return whether every flight came out exactly once."""
    with fdbqueue.open(settings.url) as db:
        return Demo(settings, db, console).run()
