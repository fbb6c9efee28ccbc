"""``fdbqueue check --file``: which queues a damaged file has harmed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.engine.embedded.store.disk.layout import DATA
from fdbqueue.engine.embedded.store.disk.pages import Damage, check_pages
from fdbqueue.engine.keys import below
from fdbqueue.stored.layout import CATALOGUE
from fdbqueue.stored.names import queue_text

ALL = "a part that all queues use"
UNREGISTERED = "keys of no queue that is registered"


def check_file(folder: Path, *, as_json: bool) -> None:
    """Print what is damaged in the data file of a folder, and end the command with 1 if anything is."""
    queues: list[bytes] = []

    def see(key: bytes) -> None:
        prefix = key.removeprefix(CATALOGUE)
        if prefix != key:
            queues.append(prefix)

    report = check_pages(os.path.abspath(folder.expanduser()), see)
    told = [(damage, harmed(damage, queues)) for damage in report.damages]
    if wants_table(as_json):
        console = Console(highlight=False)
        for damage, names in told:
            what = f"page {damage.page} of {damage.database.decode(errors='replace')}: {damage.what}."
            console.print(f"[red]✗[/red] {escape(what)} Affected: {escape(', '.join(names))}.")
        if not told:
            console.print(f"[green]✓[/green] {counted(report.pages, 'page')}, {counted(report.rows, 'key')}, all well")
            if report.checked is False:
                console.print(
                    "This folder's rows have no checksums: a value that was changed in its place is not found."
                )
        elif all(damage.is_row for damage in report.damages):
            console.print("A read of such a row raises an error. Restore a backup.")
        else:
            console.print("Do not open this folder: a damaged page ends the process that reads it. Restore a backup.")
    else:
        damages = [
            {"page": damage.page, "database": damage.database.decode(errors="replace"), "what": damage.what}
            | {"begin": damage.begin.hex(), "end": None if damage.end is None else damage.end.hex(), "affected": names}
            for damage, names in told
        ]
        answer = {"folder": str(folder), "ok": not told, "pages": report.pages, "keys": report.rows}
        answer |= {"checksums": report.checked, "damaged": damages}
        write_lines([msgspec.json.encode(answer) + b"\n"])
    if told:
        raise typer.Exit(errors.EMPTY)


def harmed(damage: Damage, queues: list[bytes]) -> list[str]:
    """Return the names of the queues, among the registered ones, that may have keys in a damaged page."""
    if damage.database != DATA:
        return [ALL]
    names = []
    for prefix in queues:
        end = below(prefix)[1]
        if end > damage.begin and (damage.end is None or prefix < damage.end):
            names.append(queue_text(prefix))
    if damage.end is None or damage.end > CATALOGUE:
        names.append("the list of queues")
    return names or [UNREGISTERED]
