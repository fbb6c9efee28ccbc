"""`BlobWriter`: writes an item's data in many transactions, and enqueues the item in the last one."""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Literal, TypeAlias

from fdbqueue import FDBError, FdbQueueError, ItemTooLarge, Position
from fdbqueue.base.reprs import pairs
from fdbqueue.engine.transactional import again
from fdbqueue.lowlevel import Database, Future, Named, Transaction, attempts, only_transaction, value_of, verb
from fdbqueue.stored.items import CHUNK_BYTES, MAX_BLOB_BYTES, Blob
from fdbqueue.writes.bulk import COMMITS_IN_FLIGHT

from ._uploads import NO_VALUE, Enqueued, Entrance, Upload, sweep_some
from .reader import file_verb

BATCH_PIECES = 11
BATCH_BYTES = BATCH_PIECES * CHUNK_BYTES
"""Bytes of one transaction: FoundationDB advises to stay under 1 MB. Data up to this size need one transaction."""

_State: TypeAlias = Literal["open", "broken", "given", "committed", "given up"]


class _SentPieces:
    __slots__ = ("commit", "number", "pieces", "tr")

    def __init__(self, number: int, pieces: list[bytes], tr: Transaction, commit: Future[None]) -> None:
        self.number = number
        self.pieces = pieces
        self.tr = tr
        self.commit = commit


class BlobWriter(Named, io.BufferedIOBase):
    """Writes the data of one new item, as a binary file; `Blobs.write` returns it.

    At the end of a ``with`` or ``async with`` block it enqueues the item. If the block raises, it gives the upload up.
    Every verb has an awaitable form, ``await out.write.aio(data)``. One call at a time.

    After a write that failed or was cancelled, the writer is unusable: call `abort`, and write the data again. `close`
    without `commit` gives the upload up.
    """

    def __init__(
        self, db: Database, entrance: Entrance, upload: Upload, value: object, terms: Mapping[str, object]
    ) -> None:
        self._db = db
        self._entrance = entrance
        self._layout = entrance.home
        self._upload = upload
        self._value = value
        self._terms = terms
        self._buffer = bytearray()
        self._begun = False
        self._pieces = 0
        self._crc32 = 0
        self._sent: deque[_SentPieces] = deque()
        self._most_in_flight: int = getattr(db, "commits_in_flight", COMMITS_IN_FLIGHT)
        self._state: _State = "open"
        self._busy = False
        self.size_bytes = 0
        """How many bytes were written."""
        self.position: Position | None = None
        """The item's position, once it is enqueued; None if a smart queue left it out."""
        self.enqueued: Enqueued = None
        """What the queue's or layer's `enqueue` returned, once the item is enqueued: a position, a smart queue's
        `Outcome`, or a `Completion`."""

    def _repr_html_(self) -> str:
        item = None if self.position is None else self.position.text
        told = {"value": self._value, "state": self._state, "size_bytes": self.size_bytes, "item": item}
        return pairs("BlobWriter", told)

    def __repr__(self) -> str:
        return f"<BlobWriter to {self._entrance.queue.layout.describe()}: {self.size_bytes:,} bytes, {self._state}>"

    def __del__(self) -> None:
        """Do nothing. Closing needs the database; a sweep removes a forgotten upload after its lease."""

    @property
    def closed(self) -> bool:
        """Whether it takes no more data."""
        return self._state not in ("open", "broken")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size_bytes

    @file_verb
    async def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Append data, and return how many bytes that were. It waits while 8 commits are under way.

        Args:
            data: bytes, or an object with a buffer.

        Raises:
            ItemTooLarge: the blob would have over 2^31 bytes; none of `data` was written.
            UploadLost: the upload's lease ended, and it was swept.
            ValueError: the writer is closed, or an earlier call failed. TypeError: `data` has no bytes, such as a text.

        *Conflicts:* none but with a sweep. *Cost:* a read and a commit for each 990,000 bytes; several are under way at
        once.
        """
        with _view(data) as given, given.cast("B") as view:
            self._check_usable("write to")
            size = len(view)
            if self.size_bytes + size > MAX_BLOB_BYTES:
                raise ItemTooLarge(
                    f"A blob has at most {MAX_BLOB_BYTES:,} bytes: {self.size_bytes:,} were written, and {size:,} more"
                    " do not fit. Cut the data into several items."
                )
            with self._one_call():
                at = 0
                while at < size:
                    if len(self._buffer) == BATCH_BYTES:
                        await self._send()
                    end = at + BATCH_BYTES - len(self._buffer)
                    self._buffer += view[at:end]
                    at = min(end, size)
                self._crc32 = zlib.crc32(view, self._crc32)
                self.size_bytes += size
                if self._begun and self._upload.is_due:
                    await self._renew()
        return size

    @verb
    async def extend(self) -> None:
        """Renew the upload's lease without data. `write` does it too; call this while the source pauses.

        Raises:
            UploadLost, ValueError: as `write`.

        *Conflicts:* with a sweep. *Cost:* a read and a commit; none up to the first 990,000 bytes.
        """
        self._check_usable("extend")
        with self._one_call():
            if self._begun:
                await self._renew()

    @verb
    async def commit(self, tr: Transaction | None = None) -> Position | None:
        """Enqueue the item. Return its position; None if a smart queue left it out, and then its data are gone.

        Args:
            tr: a transaction to enqueue in, which the caller commits. None: a transaction of its own, which takes
                effect exactly once. A caller's retry calls this again.

        Raises:
            UploadLost: the upload was swept, and nothing was enqueued.
            ValueError: the writer is closed, or an earlier call failed.
            Errors of the queue's or layer's `enqueue`; after those of this library call `commit` again, or `abort`.

        *Conflicts:* as `enqueue`, and with a sweep. *Cost:* as `enqueue`, with the last 990,000 bytes.
        """
        if tr is not None:
            only_transaction(tr, "BlobWriter.commit")
        if not (self._state == "given" and tr is not None):
            self._check_usable("commit")
        with self._one_call(spares=(FdbQueueError,) if tr is None else (FdbQueueError, FDBError)):
            while self._sent:
                await self._settle()
            if tr is None:
                ended = await self._entrance.queue.transact(self._db, self._end)
                self._state = "committed"
            else:
                ended = await self._end(tr)
                self._state = "given"
        self.enqueued, self.position = ended
        return self.position

    @verb
    async def abort(self) -> None:
        """Give the upload up, and remove what it wrote. It does nothing if the item is enqueued.

        *Conflicts:* with the transactions of the upload. *Cost:* one read and one range clear; none up to the first
        990,000 bytes.
        """
        if self._state in ("committed", "given up"):
            return
        self._state = "given up"
        self._sent.clear()
        self._buffer.clear()
        if self._begun:
            # A commit that is still under way conflicts with this one, or is cleared by it.
            await attempts(self._db, self._upload.give_up)

    @verb
    async def close(self) -> None:
        """Give the upload up, unless the item is enqueued, or `commit` was called in a caller's transaction."""
        if self._state != "given":
            await self.abort.steps()

    def __enter__(self) -> BlobWriter:
        self._check_usable("write to")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None and not self.closed:
                self.commit()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if error is not None:
                with suppress(FdbQueueError, FDBError):  # that error matters more; a sweep removes the rest
                    self.close()

    async def __aenter__(self) -> BlobWriter:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None and not self.closed:
                await self.commit.aio()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if error is not None:
                with suppress(FdbQueueError, FDBError):
                    await self.close.aio()

    def _check_usable(self, action: str) -> None:
        if self._state == "broken":
            raise ValueError(
                f"{self!r} can't {action}: an earlier call failed or was cancelled. Abort it, and write the blob again."
            )
        if self._state != "open":
            raise ValueError(f"{self!r} can't {action}: it is closed. Begin another item with Blobs.write.")

    @contextmanager
    def _one_call(self, spares: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Refuse a second call during this one, and mark the writer as broken if this one fails."""
        if self._busy:
            raise RuntimeError(f"{self!r} is in a call already: await each call before the next one.")
        self._busy = True
        try:
            yield
        except spares:
            raise
        except BaseException:
            if self._state == "open":
                self._state = "broken"
            raise
        finally:
            self._busy = False

    def _cut(self) -> list[bytes]:
        """Return the buffered data in pieces."""
        return [bytes(self._buffer[at : at + CHUNK_BYTES]) for at in range(0, len(self._buffer), CHUNK_BYTES)]

    async def _send(self) -> None:
        """Write the full buffer in a transaction of its own, whose commit stays under way."""
        if not self._begun:
            # Everything that is wrong with the item must be known before the first key is written.
            value = b"" if self._value is NO_VALUE else self._value
            await self._entrance.try_out(self._db, value, self._terms)
            await sweep_some(self._db, self._layout, self._upload.now_us(), self._upload.until_key)
        number, pieces = self._pieces, self._cut()
        self._pieces += len(pieces)
        self._buffer.clear()
        if not self._begun:
            self._begun = True
            await attempts(self._db, partial(self._upload.begin, pieces=pieces))
            return
        while len(self._sent) >= self._most_in_flight:
            await self._settle()
        tr = self._db.create_transaction()
        try:
            await self._upload.put(tr, number, pieces)
            self._sent.append(_SentPieces(number, pieces, tr, tr.commit()))
        except FDBError as error:
            await self._repeat(number, pieces, tr, error)

    async def _settle(self) -> None:
        """Wait for the oldest commit under way."""
        sent = self._sent.popleft()
        try:
            await value_of(sent.commit)
        except FDBError as error:
            await self._repeat(sent.number, sent.pieces, sent.tr, error)

    async def _repeat(self, number: int, pieces: list[bytes], tr: Transaction, error: FDBError) -> None:
        """Write pieces again, one in a transaction: together they may be too slow for the five seconds."""
        await again(tr, error)
        for at, piece in enumerate(pieces, number):
            await attempts(self._db, partial(self._upload.put, number=at, pieces=[piece]))

    async def _renew(self) -> None:
        await attempts(self._db, partial(self._upload.put, number=0, pieces=[]))

    async def _end(self, tr: Transaction) -> tuple[Enqueued, Position | None]:
        """Enqueue the item with its blob, and end the upload."""
        if self._begun:
            await self._upload.check(tr)
        is_value = self._value is NO_VALUE
        if is_value and not self._begun:
            return await self._entrance.enqueue(tr, bytes(self._buffer), self._terms)
        enqueued, position = await self._entrance.enqueue(tr, b"" if is_value else self._value, self._terms)
        if self._begun:
            self._upload.end(tr, keep=position is not None)
        if position is not None:
            self._upload.write_pieces(tr, self._pieces, self._cut())
            blob = Blob(self._upload.id, self.size_bytes, self._crc32, is_value)
            await self._entrance.attach(tr, position, self._terms, blob)
        return enqueued, position


def _view(data: object) -> memoryview:
    try:
        return memoryview(data)  # type: ignore[arg-type]
    except TypeError as error:
        hint = " Encode it: write(text.encode())." if isinstance(data, str) else ""
        raise TypeError(f"A blob takes bytes, or an object with a buffer, not {data!r:.80}.{hint}") from error
