"""Opens the database of a command. Only an enqueue creates it, and no opening waits for ever."""

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
"""How long one transaction may take, including its retries, before the command gives up."""


@contextmanager
def opened(url: str | None, *, create: bool = False, patience: float = PATIENCE_SECONDS) -> Iterator[Any]:
    """Open the database that `url` names, while the command needs it.

    Args:
        url: as on the command line.
        create: whether to make a missing folder. Otherwise a mistyped path would look like an empty queue.
        patience: how many seconds each transaction may take. Without a limit, calls to a lost cluster wait for ever.

    Raises:
        StorageError: there is no such folder.
    """
    scheme, path, _ = parse(url) if url else ("", "", {})
    if scheme == "file" and path and not create and not os.path.exists(path):
        raise StorageError(f"{path}: the folder does not exist. `fdbqueue enqueue` creates it.")
    with _waiting_for(path):
        db = open(url)
    with db:
        db.options.set_transaction_timeout(round(patience * 1000))
        try:
            yield db
        finally:
            db.options.set_transaction_timeout(0)  # a process has only one database per binding


@contextmanager
def _waiting_for(folder: str) -> Iterator[None]:
    """End the process if a folder can't be opened in time. A wait for another process's lock ignores all signals."""
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
