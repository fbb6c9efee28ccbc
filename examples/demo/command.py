"""The options of the demo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples.demo.stages import Settings, run
from fdbqueue.cli.errors import EMPTY

DEFAULT_FOLDER = Path(".demo")


def demo(
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="file:PATH, or fdb: for a cluster.", show_default="file:.demo/queue"),
    ] = None,
    queue: Annotated[str, typer.Option(help="The queue's name. A queue of that name is cleared first.")] = (
        "fdbqueue-demo"
    ),
    folder: Annotated[Path, typer.Option(help="The folder of the unpacked flights and the logs.")] = DEFAULT_FOLDER,
    rows: Annotated[int | None, typer.Option(min=1, help="Use only this many.", show_default="all 336,776")] = None,
    consumers: Annotated[int, typer.Option(min=1, help="Number of processes that drain the queue.")] = 4,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Number of flights per transaction.", show_default="500, and Spark's own choice"),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Load by Spark if it can run here.")] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again, even if a run did not finish.")] = False,
) -> None:
    """Run a year of flights through a queue, by Spark and several processes, and check that each came out once.

    Kill any of the processes with -9, or all of them. The demo restarts a killed process. If you kill the demo itself,
    run it again: it continues. The demo ignores FDBQUEUE_URL and uses its own folder.
    """
    where = url or f"file:{folder / 'queue'}"
    if where.startswith("memory:"):
        raise typer.BadParameter("several processes share the demo's queue, so it can't be memory:", param_hint="--url")
    settings = Settings(where, queue, folder, rows, consumers, batch, spark, fresh)
    if not run(settings, Console(width=None if os.isatty(1) else 120)):
        raise typer.Exit(EMPTY)
