"""The demo's display while it runs and at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Stage:
    """The results of one stage of this run."""

    name: str
    items: int
    seconds: float
    transactions: int
    """0 if the loader did not count them. Spark counts all transactions of its job, also those of a killed run
    before."""
    conflicts: int
    retries: int
    restarts: int
    """How many times a process was killed and started again."""


class Rate(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress_of(name: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal. Yield the function that moves it to a number of items."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def table_of(stages: Sequence[Stage]) -> Table:
    """Return the results of each stage of this run as a table."""
    table = Table(show_edge=False)
    for heading in ("", "items", "seconds", "items/s", "transactions", "conflicts", "retries", "restarts"):
        table.add_column(heading, justify="right" if heading else "left")
    for stage in stages:
        rate = stage.items / stage.seconds if stage.seconds else 0.0
        table.add_row(
            stage.name,
            f"{stage.items:,}",
            f"{stage.seconds:,.1f}",
            f"{rate:,.0f}",
            *(f"{n:,}" if stage.transactions else "-" for n in (stage.transactions, stage.conflicts, stage.retries)),
            f"{stage.restarts:,}",
        )
    return table
