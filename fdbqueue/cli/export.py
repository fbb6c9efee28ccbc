"""``fdbqueue export`` and ``fdbqueue import``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from fdbqueue.cli.errors import noted
from fdbqueue.cli.opening import opened, opened_queue
from fdbqueue.cli.options import Codec, CodecName, QueueName, Url, place, queue_of
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.cli.where import Where
from fdbqueue.transfer import export_items, import_items
from fdbqueue.transfer.files import SourceFile

_AGAIN = "Run the same command again, and it goes on where it was."


def export(
    queue: QueueName,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The file: .jsonl for JSON lines, or .parquet.")],
    where: Where = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out items that can't be read, and print their positions.")
    ] = False,
    url: Url = None,
    codec: Codec = CodecName.json,
) -> None:
    """Write the items of all states into a file, and leave them in the queue.

    The file has their positions, states, attempts, times and headers. It appears when it is whole. If the command is
    interrupted, run it again: it goes on. `fdbqueue import` restores the items. With the codec bytes, JSON lines show
    values as they are stored; the file names the queue's codec all the same.

    Example: fdbqueue export orders --to orders.parquet --where "color = 'red'"
    """
    source = queue_of(queue, codec)
    with opened_queue(url, source) as db, noted(_AGAIN), _pyarrow():
        on_bad: Literal["fail", "skip"] = "skip" if skip_bad else "fail"
        report = export_items(db, source, to, where=where, on_bad=on_bad)
    for left_out in report.skipped:
        typer.echo(f"The item {place(left_out)} can't be read, and was left out.", err=True)
    skipped = {"skipped": len(report.skipped)} if skip_bad else {}
    tell(items=report.items, digest=report.digest, resumed=report.resumed, **skipped)


def import_(
    queue: QueueName,
    source: Annotated[Path, typer.Option("--from", metavar="FILE", help="The file that an export wrote.")],
    without_marks: Annotated[
        bool,
        typer.Option("--without-marks", help="Restore items of groups, or with completions, as plain items."),
    ] = False,
    url: Url = None,
) -> None:
    """Restore the items of a file that `fdbqueue export` wrote, each exactly once.

    Items keep their positions if the queue is empty; otherwise they go behind its last item. Delayed items and dead
    letters stay what they are. Items that were leased become available, with their attempts. If the command is
    interrupted, run it again: it goes on. A file that is in already is not imported again.

    Example: fdbqueue import orders --from orders.parquet
    """
    with _pyarrow():
        named = SourceFile(source).header.codec
        if named not in list(CodecName):
            raise typer.BadParameter(
                f"its items have the codec {named!r} of a program: import it there", param_hint="--from"
            )
        with opened(url, create=True) as db, noted(_AGAIN):
            report = import_items(db, queue_of(queue, CodecName(named)), source, without_marks=without_marks)
    tell(items=report.items, digest=report.digest, enqueued=report.enqueued, kept_positions=report.kept_positions)


import_.__name__ = "import"  # the command's name, which a function can't have


def tell(**figures: object) -> None:
    """Print the figures of a report as a line of JSON."""
    write_lines([encode_json(figures).encode() + b"\n"])


@contextmanager
def _pyarrow() -> Iterator[None]:
    """Turn a missing pyarrow into wrong usage."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise typer.BadParameter(str(error)) from error
