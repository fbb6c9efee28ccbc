"""Opens the database of a command, and finds the queue that it names.

No command makes a database or a queue by a mistyped name. `enqueue` and `import` make what they need; others do if they
are told to by --create. No opening waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.cli.errors import ENGINE
from fdbqueue.engine import open
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import run
from fdbqueue.engine.url import has_database, parse
from fdbqueue.errors import StorageError, UnknownQueue, UrlError
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.rename_marks import check_renamed
from fdbqueue.stored.settings import check_decodes
from fdbqueue.verbs.queue import Queue
from fdbqueue.verbs.queues import is_there, nearest

PATIENCE_SECONDS = 30.0
"""How long one transaction may take, including its retries, before the command gives up."""
_REMEDY = "Give file:PATH, or fdb: or fdb:CLUSTER_FILE."

Create = Annotated[
    bool, typer.Option("--create", help="Make the queue, and its database, if there is none of this name.")
]


@contextmanager
def opened(
    url: str | None, *, create: bool = False, patience: float = PATIENCE_SECONDS, names_queue: bool = False
) -> Iterator[Any]:
    """Open the database that `url` names, while the command needs it.

    Args:
        url: as on the command line.
        create: whether to make a missing database. Otherwise a mistyped path would look like an empty one.
        names_queue: whether the command names a queue, so that an enqueue would have made both.
        patience: how many seconds a cluster may take for its first answer, and each transaction. Without a limit, calls
            to a lost cluster wait for ever.

    Raises:
        StorageError: there is no such database.
        UrlError: it would end with the command.
    """
    scheme, path, _ = parse(url) if url else ("", "", {})
    if scheme == "memory":
        raise UrlError(f"{url!r}: a memory: database ends with the command, and its items with it. {_REMEDY}")
    if scheme == "file" and path and not create:
        _refuse_missing(path, names_queue=names_queue)
    with _waiting_for(path):
        db = open(url)
    with db:
        if scheme == "fdb":
            cluster: Any = db
            cluster.answer_s = patience
        db.options.set_transaction_timeout(round(patience * 1000))
        try:
            yield db
        finally:
            db.options.set_transaction_timeout(0)  # a process has only one database per binding


@contextmanager
def opened_queue(
    url: str | None,
    queue: Queue[Any],
    *,
    create: bool = False,
    renamed: bool = False,
    decodes: bool = True,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[Any]:
    """Open the database that `url` names, and check that the queue is there.

    Args:
        url: as on the command line.
        queue: the queue that the command names.
        create: whether the command may make the database and the queue.
        renamed: whether the command takes the old name of a queue that was renamed.
        decodes: whether the command needs the codec of the queue's items.
        patience: as `opened`.

    Raises:
        StorageError, UrlError: as `opened`.
        UnknownQueue: there is no such queue. The message proposes the nearest names.
        QueueRenamed: it has another name now.
        OtherCodec: it is registered with another codec, and this one is not bytes.
    """
    with opened(url, create=create, patience=patience, names_queue=True) as db:
        run(queue.read(db, partial(check_known, layout=queue.layout, create=create, renamed=renamed)))
        if decodes:
            run(check_decodes(db, queue.layout))
        yield db


async def check_known(tr: Transaction, layout: Layout, *, create: bool = False, renamed: bool = False) -> None:
    """Check that a queue is there.

    Raises:
        UnknownQueue: it neither is registered nor has a key.
        QueueRenamed: it has another name now.
    """
    if not renamed:
        await check_renamed(tr, layout)
    if not create and not await is_there(tr, layout):
        near = await nearest(tr, layout)
        told = (f"There is no queue {layout.describe()}.", near, "`fdbqueue queues` lists all.")
        raise UnknownQueue(" ".join(filter(None, told)))


def _refuse_missing(path: str, *, names_queue: bool) -> None:
    """Refuse a folder without a database.

    Raises:
        StorageError: there is none.
    """
    remedy = "`fdbqueue enqueue` creates one." if names_queue else "Give the path of one that is there."
    if has_database(path):
        return
    if not os.path.exists(path):
        raise StorageError(f"{path}: the folder does not exist, and so no database. {remedy}")
    if os.path.isdir(path):
        raise StorageError(f"{path}: there is no database in the folder. {remedy}")


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
