"""Write all items of a queue into a file, and restore the items of a file into a queue, exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from fdbqueue.arrow.stored import Range, StoredLook
from fdbqueue.base.arguments import path_of
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.errors import FormatError, TransferError
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.layers.subscriptions.selectors import ItemTest
from fdbqueue.moves.admission import Admission, give_up_to
from fdbqueue.moves.moves import Moves, raise_high_water_mark
from fdbqueue.stored.catalogue import codec_of
from fdbqueue.stored.items import chunks_of
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import check_codec
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.order import MAX_INDEX
from fdbqueue.stored.places import ALL_STATES, has_items
from fdbqueue.stored.positions import new_random, pack
from fdbqueue.stored.settings import read_high_water_mark
from fdbqueue.transfer.files import Parts, SourceFile, format_of
from fdbqueue.transfer.records import (
    FORMAT,
    REMEDY,
    FileHeader,
    FileRecord,
    check_is_queue,
    records_of,
    refuse_layers,
    to_line,
)
from fdbqueue.verbs.queue import Queue
from fdbqueue.writes.appending import append_item

PART_ITEMS = 20_000
PART_BYTES = 32_000_000


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export."""

    path: Path
    """The file."""
    items: int
    """The number of its items."""
    digest: str
    """A digest of all its items, which does not depend on their order."""
    resumed: bool
    """Whether it continued an export that was interrupted."""
    skipped: tuple[Position, ...]
    """The items that this call left out, since they can't be read."""
    seconds: float
    """The time of this call."""


def export_items(
    db: Database,
    queue: Queue,
    path: str | os.PathLike[str],
    *,
    where: str | None = None,
    on_bad: Literal["fail", "skip"] = "fail",
) -> ExportReport:
    """Write the items of all states into a file, with positions, attempts, times, headers and marks. It takes nothing.

    An item that stays in the queue is in the file once. An item that comes or goes meanwhile is in it or not. The file
    appears when it is whole. An export that was interrupted resumes if it is repeated. It does not read the items of
    its parts again, so they may have gone from the queue since.

    Args:
        db: a database.
        queue: the queue, with its codec. With the codec "bytes" the file has the values as they are stored.
        path: the file: ``.jsonl`` for JSON lines, ``.parquet`` for Parquet, which needs pyarrow.
        where: only items whose headers fit this condition, in the language of `fdbqueue.layers.Selector`; None: all.
        on_bad: "skip" leaves out items that can't be read, since they are damaged or of a newer version.

    Raises:
        OtherCodec: the queue is registered with another codec.
        FormatError: an item can't be read, and `on_bad` is "fail". The message names it.
        TransferError: the file exists already, or can't be written; the path has another ending; an item has a blob;
            or the interrupted export there is of another queue or condition.
        SelectorError: `where` is no condition.
        StreamError, ChecksBypassed: the queue has items in sessions, or is smart.

    *Conflicts:* none, it reads by snapshot. *Cost:* a read for each state and page; memory for a part of 32 MB.

    >>> import fdbqueue, tempfile
    >>> from fdbqueue import Queue
    >>> from fdbqueue.transfer import export_items, import_items
    >>> orders = Queue("orders", codec="json")
    >>> with fdbqueue.open("memory:") as db, tempfile.TemporaryDirectory() as folder:
    ...     report = orders.enqueue_many(db, [{"sku": "teapot"}, {"sku": "cup"}])
    ...     exported = export_items(db, orders, f"{folder}/orders.jsonl")
    ...     orders.clear(db)
    ...     imported = import_items(db, orders, f"{folder}/orders.jsonl")
    ...     [item.value for item in orders.browse(db)], exported.digest == imported.digest
    ([{'sku': 'teapot'}, {'sku': 'cup'}], True)
    """
    began = time.monotonic()
    only_database(db, "export_items", "Use Queue.to_arrow to look at the items in a transaction.")
    check_is_queue(queue, "export_items")
    if where is not None and not isinstance(where, str):
        raise TypeError(f"where is a condition as text, as \"color = 'red'\", not {where!r}.")
    if on_bad not in ("fail", "skip"):
        raise ValueError(f"on_bad is 'fail', or 'skip' to leave out items that can't be read, not {on_bad!r}.")
    wanted = None if where is None else ItemTest(queue.layout, Selector(where))
    codec = run(attempts(db, partial(_codec, queue=queue)))
    file = path_of(path, "an export's file")
    format, parts = format_of(file, "an export"), Parts(file)
    layout, header = queue.layout, parts.header
    if header is not None and (header.queue, header.codec) != (queue_text(layout.prefix), codec):
        raise TransferError(
            f"{parts.folder}: an export of {header.queue} with the codec {header.codec!r} was begun there, and not one"
            f" of {queue!r}. Finish that one, remove the folder, or give another path."
        )
    if header is not None and header.where != (where or ""):
        raise TransferError(
            f"{parts.folder}: an export of {f'items where {header.where}' if header.where else 'all items'} was begun"
            f" there, and not one of {f'items where {where}' if where else 'all items'}. Finish that one, remove the"
            " folder, or give another path."
        )
    resumed = header is not None
    if file.exists():
        if not resumed:
            raise TransferError(f"{file}: exists already. Remove it, or give another path.")
        footer = SourceFile(file).footer  # the export was interrupted when the file was whole
        parts.remove()
        return ExportReport(file, footer.items, footer.digest, resumed, (), time.monotonic() - began)
    if header is None:
        header = run(attempts(db, partial(_header, queue=queue, codec=codec, where=where or "")))
        parts.begin(header)
    last = parts.last()
    begin = None if last is None else pack(Position.parse(last.position)) + b"\x00"
    look = StoredLook(db, layout, Range(begin, None), ALL_STATES, payloads=True)
    lines: list[bytes] = []
    skipped: list[Position] = []
    size = 0
    while (page := run(look.next())) is not None:
        records = records_of(page, layout, wanted, skipped if on_bad == "skip" else None)
        new = [to_line(record, queue.codec.name) for record in records]
        lines += new
        size += sum(map(len, new))
        if len(lines) >= PART_ITEMS or size >= PART_BYTES:
            parts.add(lines)
            lines, size = [], 0
    if lines:
        parts.add(lines)
    footer = parts.finish(header, format)
    return ExportReport(file, footer.items, footer.digest, resumed, tuple(skipped), time.monotonic() - began)


async def _codec(tr: Transaction, *, queue: Queue) -> str:
    """Return the codec of the queue's items."""
    stored = await value_of(tr.snapshot.get(queue.layout.catalogue_key))
    if not stored.present():
        return queue.codec.name
    check_codec(queue.layout, bytes(stored), queue.codec.name, "decode")
    return codec_of(queue.layout, bytes(stored)) or queue.codec.name


async def _header(tr: Transaction, *, queue: Queue, codec: str, where: str) -> FileHeader:
    layout = queue.layout
    await refuse_layers(tr, layout, "an export")
    mark = await read_high_water_mark(tr, layout)
    last = mark.index if mark.index <= MAX_INDEX else 0  # a damaged mark; the items' own indices are enough
    return FileHeader(FORMAT, queue_text(layout.prefix), codec, mark.order, last, where)


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
    progress = run(attempts(db, partial(progress_of, layout=queue.layout, name=name))) or Progress()
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


async def progress_of(tr: Transaction, *, layout: Layout, name: str) -> Progress | None:
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
    progress = await progress_of(tr, layout=layout, name=name)
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
