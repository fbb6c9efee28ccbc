"""Opens the database of a command, and finds the queue that it names.

A queue's name is a text, or its key tuple as JSON.

No command makes a database or a queue by a mistyped name. `enqueue` and `import` make what they need; others do if they
are told to by --create. No opening waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any

import typer

from fdbqueue.cli.errors import ENGINE, refused, tell
from fdbqueue.cli.helptext import in_shell
from fdbqueue.engine import open
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import beginning, within
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.engine.url import has_database, parse
from fdbqueue.errors import FormatError, StorageError, UnknownQueue, UrlError
from fdbqueue.observe.troubles import troubles_of
from fdbqueue.reads.trouble import Trouble
from fdbqueue.stored.catalogue import About, about_if_readable
from fdbqueue.stored.layout import CATALOGUE, Layout, Name
from fdbqueue.stored.looks import check_decodes, refuse_others_keys
from fdbqueue.stored.names import FORMS, queue_named, queue_text
from fdbqueue.stored.settings import check_renamed
from fdbqueue.verbs.queue import Queue
from fdbqueue.verbs.queues import is_there, nearest

PATIENCE_SECONDS = 30.0
"""How long one transaction may take, including its retries, before the command gives up."""
_REMEDY = "Give file:PATH, or fdb: or fdb:CLUSTER_FILE."


class CodecName(StrEnum):
    """The library's own codecs."""

    json = "json"
    msgpack = "msgpack"
    tuple = "tuple"
    str = "str"
    bytes = "bytes"


def named(text: str, hint: str = "QUEUE") -> Name:
    """Return the name of a queue from its text: the text itself, or a tuple as JSON.

    >>> named("orders"), named('["shop", "orders"]')
    ('orders', ('shop', 'orders'))
    """
    with refused(hint):
        return queue_named(text)


def name_below(text: str | None, hint: str) -> Name | None:
    """Return the name that an option gives, if it does."""
    return None if text is None else named(text, hint)


def queue_of(name: str, codec: CodecName | None = None) -> Queue:
    """Return the queue that the arguments name. Without a codec it shows values as bytes, and registers nothing."""
    queue: Queue = Queue(named(name), codec=(codec or CodecName.bytes).value)
    if codec is None:
        queue.layout.known.registration = None
    return queue


@contextmanager
def opened(
    url: str | None, *, create: bool = False, patience: float = PATIENCE_SECONDS, names_queue: bool = False
) -> Iterator[Database]:
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
    name: str,
    codec: CodecName | None = None,
    *,
    create: bool = False,
    renamed: bool = False,
    decodes: bool = True,
    patience: float = PATIENCE_SECONDS,
) -> Iterator[tuple[Database, Queue]]:
    """Open the database that `url` names, and the queue in it.

    Args:
        url: as on the command line.
        name, codec: as `queue_of`.
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
    queue = queue_of(name, codec)
    with opened(url, create=create, patience=patience, names_queue=True) as db:
        run(queue.read(db, partial(check_known, layout=queue.layout, create=create, renamed=renamed)))
        if decodes:
            run(check_decodes(db, queue.layout))
        yield db, queue


async def check_known(tr: Transaction, layout: Layout, *, create: bool = False, renamed: bool = False) -> None:
    """Check that a queue is there.

    Raises:
        UnknownQueue: it neither is registered nor has a key.
        QueueRenamed: it has another name now.
    """
    if not renamed:
        await check_renamed(tr.snapshot, layout)
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
    tell(
        f"Error: {folder}: another process has held its lock for {PATIENCE_SECONDS:g} s, and may be stopped."
        f" `fuser -v {folder}/data.mdb` says which have it open."
    )
    os._exit(ENGINE)


COMPLETION_SECONDS = 2.0
"""How long the shell waits for names."""
MOST_NAMES = 10_000
"""How many names it looks at."""


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the registered names that begin with the typed text; none if the database can't be read."""
    url = ctx.params.get("url") or os.environ.get("FDBQUEUE_URL")
    if url is None:
        return []
    with suppress(Exception), opened(url, patience=COMPLETION_SECONDS) as db:
        names = run(attempts(db, partial(_names, begins=incomplete)))
        return [name for name in names if name.startswith(incomplete)]
    return []


async def _names(tr: Transaction, begins: str) -> list[str]:
    """Return registered names. Of those that are plain text, only names that begin so: their keys do, too."""
    span = beginning(begins, CATALOGUE) if begins and begins[0] not in FORMS else within(CATALOGUE)
    found = await rows(tr.snapshot, *span, limit=MOST_NAMES)
    return [queue_text(row.key[len(CATALOGUE) :]) for row in found]


def registered_codec(layout: Layout, url: str | None) -> str:
    """Return the name of the codec that a queue is registered with; "" if it is not, or if there is no database."""
    try:
        with opened(url) as db:
            return registration(db, layout).codec
    except (StorageError, UrlError):
        return ""  # the command opens it, too: it makes the folder, or reports the error


def registration(db: Database, layout: Layout) -> About:
    """Return what a queue's record says; an empty one if there is none that can be read."""
    stored = run(attempts(db, lambda tr: value_of(tr.snapshot.get(layout.catalogue_key))))
    return (about_if_readable(layout, bytes(stored)) if stored.present() else None) or About("")


def store_policy(db: Database, queue: Queue) -> None:
    """Store the policy that layers of a queue were given, as far as the queue has none, also if no item is there."""
    run(queue.read(db, partial(refuse_others_keys, layout=queue.layout)))


def tell_if_paused(db: Database, queue: Queue) -> None:
    """Say on standard error that a queue is paused, where a command found no more items to take."""
    if (pause := queue.paused(db)) is not None:
        tell(in_shell(f"The queue {queue.layout.describe()} is paused {pause.text}. Queue.resume ends that."))


@contextmanager
def beside_troubles(db: Database, queue: Queue) -> Iterator[None]:
    """Say on standard error what the troubles of a queue are, if its page or its numbers can't be read."""
    try:
        yield
    except FormatError as error:
        said = str(error)
        _tell_those(db, queue, lambda one: said not in one.text)
        raise


def tell_troubles(db: Database, queue: Queue, *kinds: str) -> None:
    """Say on standard error what the troubles of these kinds are, where a command found no more items to take."""
    _tell_those(db, queue, lambda one: one.kind in kinds)


def _tell_those(db: Database, queue: Queue, wanted: Callable[[Trouble], bool]) -> None:
    for one in filter(wanted, run(attempts(db, partial(troubles_of, layout=queue.layout)))):
        tell(f"{in_shell(one.text)}{one.told_since} Next: `{one.command}`.")
