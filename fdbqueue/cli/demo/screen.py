"""What the demo shows while it runs and when it is done."""

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
    """What a stage of this run did."""

    name: str
    items: int
    seconds: float
    transactions: int
    """0 if nobody counted; of a load by Spark, all of its job's, those of an earlier run that was killed too."""
    conflicts: int
    retries: int
    restarts: int
    """How often a process was killed and started again."""


class Rate(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress_of(name: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; yield the function that moves it to a number of items."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def table_of(stages: Sequence[Stage]) -> Table:
    """Return what each stage of this run did, as a table."""
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
