"""Check blobs: each belongs to one item or one upload, is complete, and is counted."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from fdbqueue import Position
from fdbqueue.lowlevel import (
    Database,
    FormatError,
    ItemCheck,
    KeyValue,
    Layout,
    Notes,
    Transaction,
    has_parts,
    pages,
    parse,
    read_counts,
    rows,
    value_of,
)
from fdbqueue.reads.check import read_in
from fdbqueue.stored.items import Blob
from fdbqueue.stored.settings import RenamePart


@dataclass(slots=True)
class _Pieces:
    size_bytes: int = 0
    crc32: int = 0


class BlobCheck(ItemCheck):
    """Compares the blobs of a queue with its items, in any state. Every check of a queue has this part.

    Args:
        tr: a transaction, or a database.
        layout: the layout where the blobs are.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._layout = layout
        self._items: dict[Position, Blob] = {}

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the blob that an item has."""
        if not has_parts(row.value):
            return
        with suppress(FormatError):  # the check itself reports it
            blob = parse(row.value).blob
            if blob is not None:
                place = self._layout.available
                self._items[place.position(place.key(packed))] = blob

    def problems(self) -> list[str]:
        """Return the problems, a sentence each."""
        layout, items, read = self._layout, self._items, partial(read_in, self._tr)
        found: dict[bytes, _Pieces] = {}
        span = layout.blobs.range()
        for page in pages(self._tr, span.start, span.stop):
            own = list(layout.own_rows("blobs", page))
            if len(own) < len(page):
                self.foreign = [*self.foreign, *({row.key for row in page} - {row.key for _, row in own})]
            for (id, _), row in own:
                pieces = found.setdefault(id, _Pieces())
                pieces.size_bytes += len(row.value)
                pieces.crc32 = zlib.crc32(row.value, pieces.crc32)
        wanted = {blob.id for blob in items.values()}
        strays = [blob for blob in found.keys() - wanted if read(partial(_is_stray, layout=layout, blob=blob))]
        problems = [
            f"The blob of {position} has {there.size_bytes:,} of its {blob.size_bytes:,} bytes, or other ones."
            for position, blob in items.items()
            if (there := found.get(blob.id, _Pieces())) != _Pieces(blob.size_bytes, blob.crc32)
        ]
        problems += [f"The blob {blob.hex()} belongs to no item and no upload." for blob in strays]
        recount = {"blobs": len(items), "blob_bytes": sum(blob.size_bytes for blob in items.values())}
        with suppress(FormatError):  # a counter that can't be read: the check itself reports it
            counts = read(partial(read_counts, layout=layout))
            problems += [
                f"The counter {name!r} is {counts.get(name, 0):,}, but a recount gives {number:,}."
                for name, number in recount.items()
                if counts.get(name, 0) != number
            ]
        return problems


async def _is_stray(tr: Transaction, layout: Layout, blob: bytes) -> bool:
    upload = tr.snapshot.get(layout.uploads.pack((blob,)))
    pieces = await rows(tr.snapshot, *layout.blob_range(blob), limit=1)
    return bool(pieces) and not (await value_of(upload)).present()


RENAME_PART = RenamePart("an upload of a blob", lambda layout: layout.uploads, "Wait until it has ended.")
"""What a rename knows of blobs."""
