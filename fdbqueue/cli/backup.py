"""``fdbqueue backup``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fdbqueue.cli.errors import noted
from fdbqueue.cli.export import tell
from fdbqueue.transfer import backup as back_up


def backup(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The database: file:PATH.")],
    to: Annotated[Path, typer.Argument(metavar="TO", help="The folder to make.")],
) -> None:
    """Copy an embedded folder, with everything in it, while processes use it.

    The copy is the state after one commit. It appears when it is whole. Open it as file:TO, or move it to the place of
    the old folder to restore it.

    Example: fdbqueue backup file:shop /backups/shop-monday
    """
    with noted("No backup was made."):
        report = back_up(source, to)
    tell(folder=str(report.folder), size_bytes=report.size_bytes)
