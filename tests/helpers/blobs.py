"""Shared helpers for tests of blobs: small pieces, so that little data needs many transactions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers.blobs import Blobs, reader, writer

PIECE_BYTES = 10
BATCH_BYTES = 40


def small_pieces(patch: pytest.MonkeyPatch) -> None:
    """Cut blobs into pieces of 10 bytes, and write and read 4 pieces in a transaction."""
    for module in (writer, reader):
        patch.setattr(module, "CHUNK_BYTES", PIECE_BYTES)
    patch.setattr(writer, "BATCH_BYTES", BATCH_BYTES)
    patch.setattr(reader, "WINDOW_PIECES", BATCH_BYTES // PIECE_BYTES)
    patch.setattr(reader, "WINDOW_BYTES", BATCH_BYTES)


def data_of(size: int, seed: int = 0) -> bytes:
    """Return data that differ from those of every other seed, and in every piece."""
    return random.Random(f"{seed}/{size}").randbytes(size)


def write(blobs: Blobs, db: Any, *args: Any, **kwargs: Any) -> Any:
    """Write an item's data, the first of `args`, and return its position."""
    data, *value = args
    with blobs.write(db, *value, **kwargs) as out:
        out.write(data)
    return out.position


def kept_keys(db: Any, queue: Queue) -> list[bytes]:
    """Return the keys of blobs and uploads that a queue has."""
    layout = queue.layout
    found = []
    for span in (layout.blobs.range(), layout.uploads.range(), layout.uploads_until.range()):
        found += [row.key for row in db.get_range(span.start, span.stop)]
    return found
