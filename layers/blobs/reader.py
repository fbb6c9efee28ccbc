"""`BlobReader`: reads the data of an item as a file, a window at a time."""

from __future__ import annotations

import io
import zlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from operator import index
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from fdbqueue import FormatError, LeaseLost, Position, Queue
from fdbqueue.engine.verb import BoundVerb
from fdbqueue.lowlevel import (
    Database,
    Layout,
    Named,
    Steps,
    Transaction,
    join_chunks,
    notes_of,
    pack,
    parse,
    rows,
    value_of,
    verb,
)
from fdbqueue.stored.items import CHUNK_BYTES, Blob
from fdbqueue.stored.settings import check_renamed

from ..leases import LeaseRef
from ..leases.holding import mostly_lost

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def file_verb(steps: Callable[Concatenate[S, P], Steps[T]]) -> BoundVerb[P, T]:
    """Turn a method that returns steps into a verb. Type checkers match no descriptor with a protocol."""
    return cast(BoundVerb[P, T], verb(steps))


WINDOW_PIECES = 11
WINDOW_BYTES = WINDOW_PIECES * CHUNK_BYTES
"""Bytes that one transaction reads."""


class BlobReader(Named, io.BufferedIOBase):
    """Reads the data of one item, as a binary file that can seek; `Blobs.read` returns it.

    Every verb has an awaitable form, ``await data.read.aio(65536)``. ``async for piece in data`` gives the rest in
    pieces. One call at a time.
    """

    def __init__(
        self,
        tr: Transaction | Database,
        of: Queue,
        item: LeaseRef | Position,
        home: Layout | None = None,
        stored: Callable[[Transaction], Steps[tuple[Layout, bytes]]] | None = None,
    ) -> None:
        self._tr = tr
        self._queue = of
        self._layout = of.layout
        self._home = home or of.layout
        self._stored = stored or self._plain
        self._item = item
        self._position = item if isinstance(item, Position) else item.position
        self._packed = pack(self._position)
        self._blob: Blob | None = None
        self._size: int | None = None
        self._at = 0
        self._window = b""
        self._window_at = 0
        self._crc32 = self._crc_at = 0
        self._closed = False

    def __repr__(self) -> str:
        size = "not opened yet" if self._size is None else f"{self._size:,} bytes"
        return f"<BlobReader of {self._position.text} of {self._layout.describe()}: {size}>"

    def __del__(self) -> None:
        """Do nothing: there is nothing to close."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    @verb
    async def open(self) -> int:
        """Find the item, and return how many bytes it has. The other verbs do this at their first call.

        Raises:
            LeaseLost: the lease is not the item's present one.
            LookupError: given a position: there is no such item.
            FormatError: the item can't be read.

        *Conflicts:* in a transaction, with all that ends the lease. *Cost:* one read.
        """
        self._check_open()
        if self._size is None:
            self._blob, payload = await self._queue.read(self._tr, self._find)
            if self._blob is None:
                self._size, self._window = len(payload), payload
            else:
                self._size = self._blob.size_bytes
        return self._size

    @file_verb
    async def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        """Return the next `size` bytes, fewer only at the end; None or -1: all that follow.

        Raises:
            LeaseLost: the item was acked or given back, or another consumer has it.
            LookupError: given a position: the item is gone.
            FormatError: the stored bytes are damaged. A blob's checksum is compared if it was read from its begin to
                its end.

        *Conflicts:* as `open`. *Cost:* twelve reads in parallel for each 990,000 bytes.
        """
        size = -1 if size is None else index(size)
        rest = max(0, await self.open.steps() - self._at)
        wanted = rest if size < 0 else min(size, rest)
        parts = []
        while wanted:
            part = await self._next(wanted)
            parts.append(part)
            wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @file_verb
    async def read1(self, size: int = -1) -> bytes:
        """Return the next bytes of one transaction, at most `size`; b"" at the end. Errors and *Cost:* as `read`."""
        size = index(size)
        rest = max(0, await self.open.steps() - self._at)
        wanted = rest if size < 0 else min(size, rest)
        return await self._next(wanted) if wanted else b""

    @file_verb
    async def peek(self, size: int = 0) -> bytes:
        """Return some of the next bytes without moving on; b"" at the end. Errors and *Cost:* as `read`."""
        at = self._at
        found = await self.read1.steps()
        self._at = at
        return found

    @file_verb
    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, and return it. `whence` is as for files: from the begin, from here, from the end.

        Raises:
            ValueError: the place is in front of the begin, or `whence` is unknown.
        """
        self._check_open()
        offset = index(offset)
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"whence is 0, 1 or 2, as for files, not {whence!r}.")
        start = 0 if whence == io.SEEK_SET else self._at
        if whence == io.SEEK_END:
            start = await self.open.steps()
        if start + offset < 0:
            raise ValueError(f"The place {start + offset} is in front of the first byte.")
        self._at = start + offset
        return self._at

    def close(self) -> None:
        """Forget the data in memory. The lease stays."""
        self._closed = True
        self._window = b""

    def __enter__(self) -> BlobReader:
        self._check_open()
        return self

    async def __aenter__(self) -> BlobReader:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read1.aio():
            yield piece

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self!r} is closed. Blobs.read opens the item again.")

    async def _next(self, wanted: int) -> bytes:
        """Return up to `wanted` of the next bytes, from the window in memory or the next one."""
        at = self._at - self._window_at
        if not 0 <= at < len(self._window):
            await self._load()
            at = self._at - self._window_at
        part = self._window[at : at + wanted]
        self._at += len(part)
        return part

    async def _load(self) -> None:
        blob = self._blob
        if blob is None:
            raise FormatError(f"{self!r} ended too early.")
        first = self._at // CHUNK_BYTES
        window = await self._queue.read(self._tr, partial(self._read, blob=blob, first=first))
        begin = first * CHUNK_BYTES
        if len(window) != min(WINDOW_BYTES, blob.size_bytes - begin):
            raise self._damaged(f"{len(window):,} bytes were found from {begin:,} on")
        if begin == self._crc_at:
            self._crc_at += len(window)
            self._crc32 = zlib.crc32(window, self._crc32)
            if self._crc_at == blob.size_bytes and self._crc32 != blob.crc32:
                raise self._damaged("their checksum is another one")
        self._window, self._window_at = window, begin

    async def _read(self, tr: Transaction, blob: Blob, first: int) -> bytes:
        # By snapshot: a blob's pieces never change, and go only together with the item's key. One by one: a cluster
        # answers a range read of pieces with one piece after the other.
        last = min(first + WINDOW_PIECES, -(-blob.size_bytes // CHUNK_BYTES))
        keys = [self._home.blob_key(blob.id, number) for number in range(first, last)]
        reads = [tr.snapshot.get(key) for key in keys]
        _, stored = await self._stored(tr)
        found = []
        for read in reads:
            value = await value_of(read)
            found.append(bytes(value) if value.present() else b"")
        if self._queue.layout.read_item(self._packed, stored, parse).blob != blob:
            raise LookupError(
                f"The item {self._position.text} of {self._queue!r} has other data by now: a smart queue replaced it."
                " Read it again."
            )
        return b"".join(found)

    async def _find(self, tr: Transaction) -> tuple[Blob | None, bytes]:
        layout, stored = await self._stored(tr)
        opened = self._queue.layout.read_item(self._packed, stored, parse)
        if opened.blob is not None or opened.chunked is None:
            return opened.blob, opened.payload
        chunks = await rows(tr.snapshot, *layout.chunk_range_of(self._packed))
        return None, join_chunks(opened.chunked, [chunk.value for chunk in chunks])

    async def _plain(self, tr: Transaction) -> tuple[Layout, bytes]:
        """Read the layout of an item that is in no session, and its stored value.

        In a caller's transaction that conflicts with all that ends the lease.
        """
        if isinstance(self._item, Position):
            layout = self._layout
            places = (layout.available, layout.leased, layout.delayed, layout.dead)
            reads: list[Any] = [tr.get(place.key(self._packed)) for place in places]
            for read in reads:
                value = await value_of(read)
                if value.present():
                    return layout, bytes(value)
            await check_renamed(tr.snapshot, layout)
            raise LookupError(f"There is no item {self._position.text} in {self._queue!r} any more.")
        value = await value_of(tr.get(self._layout.leased.key(self._packed)))
        notes = self._layout.read_item(self._packed, bytes(value), notes_of) if value.present() else None
        if notes is None or notes.token != self._item.token:
            raise LeaseLost(
                f"The lease of {self._position} of {self._queue!r} is lost: {mostly_lost(self._position)}. Undo its"
                " work, and extend leases whose work takes longer.",
                lost=[self._position],
            )
        return self._layout, bytes(value)

    def _damaged(self, what: str) -> FormatError:
        size = 0 if self._blob is None else self._blob.size_bytes
        return FormatError(
            f"The {size:,} bytes of the item {self._position.text} of {self._queue!r} are damaged: {what}."
        )
