"""A run of the demo: prepare, load, drain, check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import fdbqueue
from fdbqueue.cli.demo import results
from fdbqueue.cli.demo.check import verdict
from fdbqueue.cli.demo.children import Child, running, watch
from fdbqueue.cli.demo.flights import Flights, prepare
from fdbqueue.cli.demo.java import why_no_spark
from fdbqueue.cli.demo.screen import progress_of, table_of

LOADERS = {"spark": "Spark", "plain": "the plain bulk call"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for."""

    url: str
    folder: Path
    rows: int | None
    consumers: int
    batch: int
    use_spark: bool
    fresh: bool


def run(settings: Settings, console: Console) -> bool:
    """Run the demo; return whether every flight came out exactly once.

    Raises:
        DemoError: a process failed by itself.
    """
    flights = prepare(settings.folder, settings.rows)
    with fdbqueue.open(settings.url) as db:
        loader = _begin(settings, db, flights, console)
        stages = []
        if not results.is_loaded(db):
            stages.append(_load(settings, db, flights, loader, console))
        stages.append(_drain(settings, db, flights, console))
        console.print(table_of(stages))
        found = verdict(db, flights)
        console.print(found.text, style="bold green" if found.exact else "bold red", highlight=False)
        if found.exact:
            results.set_checked(db)
        return found.exact


def _begin(settings: Settings, db: Any, flights: Flights, console: Console) -> str:
    missing = why_no_spark() if settings.use_spark else None
    loader = "spark" if settings.use_spark and missing is None else "plain"
    console.print(f"{flights.count:,} flights, {flights.path.stat().st_size / 1e6:,.1f} MB, through {settings.url}")
    if missing is not None:
        console.print(f"Without Spark, since {missing}", highlight=False, markup=False)
    taken_up = results.begin(db, flights, loader, settings.fresh)
    if taken_up is None:
        return loader
    console.print("Taking up the run that did not finish.")
    if taken_up != loader and not results.is_loaded(db):
        # Half of the flights are known by Spark's marks, or by the plain load's: only the same one can go on.
        console.print(f"It was loading through {LOADERS[taken_up]}, which goes on.")
    return taken_up


def _load(settings: Settings, db: Any, flights: Flights, loader: str, console: Console) -> results.Stage:
    arguments = [settings.url, str(flights.path)]
    arguments += [flights.job, str(settings.folder)] if loader == "spark" else [str(settings.batch)]
    child = Child(results.LOADER, f"load_{loader}", arguments, settings.folder)
    return _stage(db, f"load through {LOADERS[loader]}", [child], flights.count, "enqueued", console)


def _drain(settings: Settings, db: Any, flights: Flights, console: Console) -> results.Stage:
    names = [f"consumer {number}" for number in range(1, settings.consumers + 1)]
    children = [Child(name, "consumer", [settings.url, name, str(settings.batch)], settings.folder) for name in names]
    return _stage(db, f"drain by {len(names)} processes", children, flights.count, "dequeued", console)


def _stage(db: Any, name: str, children: list[Child], total: int, counter: str, console: Console) -> results.Stage:
    queue = results.the_queue()

    def done() -> int:
        count: int = getattr(queue.stats(db), counter)
        return count

    pids = " ".join(str(child.pid) for child in children)
    console.print(f"{name.capitalize()}; kill -9 one of {pids}, and it goes on", highlight=False)
    done_before, before, started = done(), _sum_of(db, children), time.monotonic()
    with running(children), progress_of(name, total, console) as advance:
        watch(children, lambda: advance(done()))
    seconds = time.monotonic() - started
    after = _sum_of(db, children)
    return results.Stage(
        name,
        items=done() - done_before,
        seconds=seconds,
        transactions=after.transactions - before.transactions,
        conflicts=after.conflicts - before.conflicts,
        retries=after.retries - before.retries,
        restarts=sum(child.restarts for child in children),
    )


def _sum_of(db: Any, children: list[Child]) -> results.Tally:
    names = {child.name for child in children}
    return sum((tally for who, tally in results.tallies(db).items() if who in names), results.Tally())
