"""Opening the database of a command: only one that is there, but to put something in; and never waiting for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from fdbqueue.cli.errors import ENGINE
from fdbqueue.engine import open
from fdbqueue.engine.url import parse
from fdbqueue.errors import StorageError

PATIENCE_SECONDS = 30.0
"""How long one transaction may take, its retries too, before the command gives up."""


@contextmanager
def opened(url: str | None, *, create: bool = False, patience: float = PATIENCE_SECONDS) -> Iterator[Any]:
    """Open the database that `url` names, for as long as the command needs it.

    Args:
        url: as on the command line.
        create: whether a folder that is not there is made; else a mistyped path would look like an empty queue.
        patience: how many seconds each transaction may take. A cluster that is gone fails none by itself.

    Raises:
        StorageError: there is no such folder.
    """
    scheme, path, _ = parse(url) if url else ("", "", {})
    if scheme == "file" and path and not create and not os.path.exists(path):
        raise StorageError(f"{path}: there is no such folder. `fdbqueue enqueue` makes one.")
    with _waiting_for(path):
        db = open(url)
    with db:
        db.options.set_transaction_timeout(round(patience * 1000))
        try:
            yield db
        finally:
            db.options.set_transaction_timeout(0)  # the binding has one database for all of a process


@contextmanager
def _waiting_for(folder: str) -> Iterator[None]:
    """End the process if a folder can't be opened: who waits for another's lock on it hears of nothing else."""
    timer = threading.Timer(PATIENCE_SECONDS, _give_up, (folder,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(folder: str) -> None:
    typer.echo(
        f"Error: {folder}: another process has held its lock for {PATIENCE_SECONDS:g} s, and may be stopped."
        f" `fuser -v {folder}/data.mdb` says which have it open.",
        err=True,
    )
    os._exit(ENGINE)
