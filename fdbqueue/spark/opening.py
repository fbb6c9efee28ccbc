"""Opens what must be there: the database of a look, a stream or a claim, and its queue. A mistyped name is an error."""

from __future__ import annotations

from functools import partial

import fdbqueue
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.engine.url import has_database, parse
from fdbqueue.errors import OtherCodec, StorageError, UnknownQueue
from fdbqueue.spark.options import CODECS
from fdbqueue.stored.catalogue import codec_of, fits
from fdbqueue.stored.known import RAW
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import refuse_renamed
from fdbqueue.verbs.queues import is_there, nearest


def check_database(url: str) -> None:
    """Refuse a folder without a database, which an opening would make.

    Raises:
        StorageError: there is none. UrlError: the URL is not valid.
    """
    scheme, path, _ = parse(url)
    if scheme == "file" and path and not has_database(path):
        raise StorageError(
            f"{path}: there is no database. Only a load of a queue makes one; correct the url, or open it first by"
            " fdbqueue.open."
        )


def existing(url: str) -> Database:
    """Open a database that is there.

    Raises:
        StorageError: there is none. UrlError: the URL is not valid.
    """
    check_database(url)
    return fdbqueue.open(url)


def check_queue(db: Database, layout: Layout) -> None:
    """Refuse a name that no queue has.

    Raises:
        UnknownQueue: it is not registered, and has no key. QueueRenamed: it has another name now.
    """
    if run(attempts(db, partial(_is_there, layout=layout))):
        return
    near = run(nearest(db, layout))
    told = f"There is no queue {layout.describe()}. {near}".rstrip()
    raise UnknownQueue(f"{told} fdbqueue.queues(db) lists all. Queue.register makes one that is empty.")


def check_reads(db: Database, layout: Layout, codec: str) -> bool:
    """Refuse to show values by a codec that is not that of the queue's items. Return whether the queue is registered.

    Raises:
        OtherCodec: the queue is registered with another codec, and this one is not ``bytes``.
    """
    stored = run(attempts(db, partial(_record, layout=layout)))
    if not stored:
        return False
    registered = codec_of(layout, stored)
    if codec == RAW or fits(codec, registered):
        return True
    remedy = f"Set codec={registered}. The codec bytes" if registered in CODECS else "Set codec=bytes, which"
    raise OtherCodec(
        f"The queue {layout.describe()} is registered with the codec {registered!r}, and the option codec is"
        f" {codec!r}. Nothing was taken. {remedy} shows the items as they are stored."
    )


async def _record(tr: Transaction, layout: Layout) -> bytes:
    stored = await value_of(tr.snapshot.get(layout.catalogue_key))
    return bytes(stored) if stored.present() else b""


async def _is_there(tr: Transaction, layout: Layout) -> bool:
    stopped = await value_of(tr.snapshot.get(layout.paused_key))
    if stopped.present():
        refuse_renamed(bytes(stopped))
    return await is_there(tr, layout)
