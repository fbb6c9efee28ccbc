"""Write all items of a queue into a file."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from fdbqueue.arrow.stored import Range, StoredLook
from fdbqueue.base.arguments import path_of
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import run, value_of
from fdbqueue.engine.transactional import attempts, only_database
from fdbqueue.errors import TransferError
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.layers.subscriptions.selectors import ItemTest
from fdbqueue.moves.admission import read_high_water_mark
from fdbqueue.stored.catalogue import codec_of
from fdbqueue.stored.layout import pack
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.order import MAX_INDEX
from fdbqueue.stored.settings import check_codec
from fdbqueue.stored.states import ALL_STATES
from fdbqueue.transfer.files import Parts, SourceFile, format_of
from fdbqueue.transfer.marks import check_is_queue, refuse_layers
from fdbqueue.transfer.records import FORMAT, FileHeader, records_of, to_line
from fdbqueue.verbs.queue import Queue

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
