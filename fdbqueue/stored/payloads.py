"""The keys beside an item: the chunks of its payload are read, and removed together with its blob."""

from __future__ import annotations

from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import rows
from fdbqueue.errors import FormatError
from fdbqueue.stored.counters import count
from fdbqueue.stored.items import Blob, Envelope, blob_of, is_chunked, join_chunks
from fdbqueue.stored.layout import Layout


async def read_payload(tr: Transaction, layout: Layout, packed: bytes, opened: Envelope) -> bytes:
    """Return the payload of an item whose stored value was parsed; read its chunks, if it has some, by snapshot.

    Raises:
        FormatError: the chunks are damaged, or gone.
    """
    if opened.chunked is None:
        return opened.payload
    chunks = await rows(tr.snapshot, *layout.chunk_range_of(packed))
    return join_chunks(opened.chunked, [chunk.value for chunk in chunks])


def clear_parts(tr: Transaction, layout: Layout, packed: bytes, stored: bytes, home: Layout | None = None) -> None:
    """Clear the keys of an item's chunks and of its blob.

    Args:
        packed: the item's packed position.
        stored: the item's stored value: `fdbqueue.stored.items.has_parts` is true for it, or it can't be read.
        home: the layout of its blob; None: the same as that of its other keys.

    *Conflicts:* none. The item's own key decides about conflicts. *Cost:* one range clear each, whatever their size.
    """
    chunked = is_chunked(stored)
    try:
        blob = blob_of(stored)
    except FormatError:
        # Nothing says whether it has chunks, nor which blob: a check reports the keys of that.
        chunked, blob = True, None
    if chunked:
        tr.clear_range(*layout.chunk_range_of(packed))
    if blob is not None:
        clear_blob(tr, home or layout, blob)


def clear_blob(tr: Transaction, layout: Layout, blob: Blob) -> None:
    """Clear the keys of a blob, and count it out. The item's own key decides about conflicts."""
    tr.clear_range(*layout.blob_range(blob.id))
    count(tr, layout, blobs=-1, blob_bytes=-blob.size_bytes)
