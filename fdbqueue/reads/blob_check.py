"""Checks blobs: each belongs to one item or one upload, is complete, and is counted."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.reads.browse import pages
from fdbqueue.stored.counters import read_counts
from fdbqueue.stored.items import Blob
from fdbqueue.stored.layout import Layout

Read = Callable[[Callable[[Transaction], Steps[Any]]], Any]
"""Runs a body in the caller's transaction, or in a new one."""


@dataclass(slots=True)
class _Pieces:
    size_bytes: int = 0
    crc32: int = 0


def check_blobs(
    tr: Transaction | Database,
    layout: Layout,
    items: dict[Position, Blob],
    read: Read,
    *,
    unsettled: Callable[[], bool],
) -> list[str]:
    """Return the problems of a queue's blobs.

    Args:
        items: the blobs of all items, in any state.
        read: runs a body in the caller's transaction, or in a new one.
        unsettled: called at the end; returns whether items came or went since the first read.
    """
    found: dict[bytes, _Pieces] = {}
    span = layout.blobs.range()
    for page in pages(tr, span.start, span.stop):
        for row in page:
            pieces = found.setdefault(layout.blobs.unpack(row.key)[0], _Pieces())
            pieces.size_bytes += len(row.value)
            pieces.crc32 = zlib.crc32(row.value, pieces.crc32)
    counts = read(partial(read_counts, layout=layout))
    wanted = {blob.id for blob in items.values()}
    # An upload that ended or was swept during the check has taken its pieces along, so this looks again.
    strays = [blob for blob in found.keys() - wanted if read(partial(_is_stray, layout=layout, blob=blob))]
    if unsettled():
        return []
    problems = [
        f"The blob of {position} has {there.size_bytes:,} of its {blob.size_bytes:,} bytes, or other ones."
        for position, blob in items.items()
        if (there := found.get(blob.id, _Pieces())) != _Pieces(blob.size_bytes, blob.crc32)
    ]
    problems += [f"The blob {blob.hex()} belongs to no item and no upload." for blob in strays]
    recount = {"blobs": len(items), "blob_bytes": sum(blob.size_bytes for blob in items.values())}
    return problems + [
        f"The counter {name!r} is {counts.get(name, 0):,}, but a recount gives {number:,}."
        for name, number in recount.items()
        if counts.get(name, 0) != number
    ]


def _is_stray(tr: Transaction, layout: Layout, blob: bytes) -> Steps[bool]:
    upload = tr.snapshot.get(layout.uploads.pack((blob,)))
    pieces = yield from rows(tr.snapshot, *layout.blob_range(blob), limit=1)
    return bool(pieces) and not (yield upload).present()
