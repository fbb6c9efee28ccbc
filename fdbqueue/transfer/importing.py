"""Restore the items of a file into a queue, exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from fdbqueue.base.arguments import path_of
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.errors import FormatError, TransferError
from fdbqueue.moves.admission import Admission, give_up_to
from fdbqueue.moves.moves import Moves, raise_high_water_mark
from fdbqueue.stored.items import chunks_of
from fdbqueue.stored.layout import Layout, new_random
from fdbqueue.stored.places import has_items
from fdbqueue.transfer.files import SourceFile
from fdbqueue.transfer.marks import REMEDY, check_is_queue, refuse_layers
from fdbqueue.transfer.records import FileHeader, FileRecord
from fdbqueue.verbs.queue import Queue
from fdbqueue.writes.appending import append_item

BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result of an import."""

    items: int
    """The number of items in the file. Each is in the queue once, by this call and those before it."""
    digest: str
    """The digest of the file's items."""
    kept_positions: bool
    """Whether the items have the positions of the file. They have if the queue was empty when the import began."""
    enqueued: int
    """How many items this call wrote. The rest was written by an earlier import of the same file."""
    seconds: float
    """The time of this call."""


class Progress(msgspec.Struct, frozen=True):
    """How far an import into a queue is, under ``("import", id)``."""

    done: int = 0
    """How many items of the file are in the queue."""
    keep: bool = True
    """Whether they keep their positions."""


_decode_progress = msgspec.msgpack.Decoder(Progress).decode


def import_items(
    db: Database, queue: Queue, path: str | os.PathLike[str], *, without_marks: bool = False
) -> ImportReport:
    """Restore the items of a file that `export_items` wrote, each exactly once.

    If the queue is empty, the items keep their positions. Otherwise they are appended under new ones, in the order of
    the file. Delayed items keep their times. Dead letters stay dead. Items that were leased, or that a stream had,
    become available, and keep their attempts. An import that was interrupted resumes if it is repeated. An import of a
    file that is in already writes nothing. The queue remembers the file by its digest until it is cleared.

    Args:
        db: a database.
        queue: the queue, with the codec that the file names.
        path: the file.
        without_marks: restore items of groups, with completions or follow-ups as plain items. Otherwise they are
            refused.

    Raises:
        TransferError: the file is damaged, of another codec or order, or has items with marks. No key was touched.
        OrderError: the queue's items have another order; nothing was written.
        QueueFull: the queue has a quota, and no room. Repeat the call when there is.
        StreamError, ChecksBypassed: the queue has items in sessions, or is smart; nothing was written.

    *Conflicts:* with another import of the same file. *Cost:* the file is read twice, the first time to check it; a
    transaction for 500 items.
    """
    began = time.monotonic()
    only_database(db, "import_items", "An import of any size does not fit into one transaction.")
    check_is_queue(queue, "import_items")
    source = SourceFile(path_of(path, "an export's file"))
    header = source.header
    if header.codec != queue.codec.name:
        raise TransferError(
            f"{path}: its items have the codec {header.codec!r}, and {queue!r} has another. Name the codec of the file."
        )
    if queue.order_name not in (None, header.order) and source.footer.items:
        raise TransferError(
            f"{path}: its items have the order {header.order!r}, and {queue!r} has another. Leave the order out."
        )
    digest = source.checked()
    if not without_marks:
        _refuse_marks(source)
    run(attempts(db, partial(refuse_layers, layout=queue.layout, what="an import")))
    name = f"{digest.hex} {digest.items}"
    progress = run(attempts(db, partial(_progress, layout=queue.layout, name=name))) or Progress()
    at = enqueued = 0
    for batch in _batches(source.records()):
        if progress.done < at + len(batch):
            body = partial(_write, queue=queue, name=name, header=header, batch=batch, at=at)
            progress, wrote = run(queue.transact(db, body))
            enqueued += wrote
        at += len(batch)
    return ImportReport(digest.items, digest.hex, progress.keep, enqueued, time.monotonic() - began)


def progress_key(layout: Layout, name: str) -> bytes:
    """Return the key that says how far an import, or a copy, into a queue is."""
    key: bytes = layout.imports.pack((name,))
    return key


async def _progress(tr: Transaction, *, layout: Layout, name: str) -> Progress | None:
    value = await value_of(tr.get(progress_key(layout, name)))
    if not value.present():
        return None
    try:
        return _decode_progress(bytes(value))
    except msgspec.DecodeError as error:
        raise FormatError(f"The record of an import into {layout.describe()} is damaged: {error}.") from error


async def _write(
    tr: Transaction, *, queue: Queue, name: str, header: FileHeader, batch: list[FileRecord], at: int
) -> tuple[Progress, int]:
    """Write the items of a batch that are not in yet. Return how far the import is, and how many were written."""
    layout = queue.layout
    # A plain read: of two imports of one file that write the same items, one fails and sees that they are in.
    progress = await _progress(tr, layout=layout, name=name)
    if progress is None:
        if at:
            raise TransferError(
                f"{layout.describe()} was cleared while the file was imported: {at:,} of its items had been written."
                " Import it again."
            )
        progress = Progress(keep=not await has_items(tr, layout))
    new = batch[progress.done - at :]
    if not new:
        return progress, 0
    order = header.order
    if progress.keep:
        await Admission(tr, layout, order, composed=True).steps(len(new))
        positions = [Position.parse(record.position) for record in new]
        last = max(header.last_index, *(position.index for position in positions))
        if order is None:
            raise_high_water_mark(tr, layout, last)
        else:
            give_up_to(tr, layout, last, order)
    else:
        index = await queue.next_index(tr, len(new), order=order)
        random = new_random()
        old = [Position.parse(record.position) for record in new]
        positions = [Position(index + number, random, rank=one.rank) for number, one in enumerate(old)]
    moves = Moves(tr, layout)
    for record, position in zip(new, positions, strict=True):
        append_item(tr, layout, position, record.stored(), chunks_of(record.payload), record.notes(), moves)
    moves.finish()
    progress = Progress(at + len(batch), progress.keep)
    tr.set(progress_key(layout, name), msgspec.msgpack.encode(progress))
    return progress, len(new)


def _refuse_marks(source: SourceFile) -> None:
    for record in source.records():
        if record.marks:
            raise TransferError(
                f"{source.path}: the item {record.position} has {', '.join(record.marks)}, which an import can't"
                f" restore. {REMEDY[record.marks[0]]}, and export again. Or restore such items as plain ones:"
                " without_marks=True."
            )


def _batches(records: Iterator[FileRecord]) -> Iterator[list[FileRecord]]:
    batch: list[FileRecord] = []
    size = 0
    for record in records:
        if batch and (len(batch) >= BATCH_ITEMS or size + len(record.payload) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.payload)
    if batch:
        yield batch
