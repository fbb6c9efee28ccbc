"""Open items: make values of their stored bytes, and bytes of values, with an error that names the item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, TypeVar, cast

from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import Steps, begun, rows, value_of
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.stored.codecs import Codec, V, reason_of
from fdbqueue.stored.items import NO_PARTS, PLAIN, Envelope, Item, blob_of, has_parts, join_chunks, parse
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import check_decodes
from fdbqueue.stored.order import Order, rank_in

T = TypeVar("T")


class ItemOpener(Generic[V]):
    """Opens the items of one queue, and closes new ones, by its codec and its order."""

    layout: Layout
    home: Layout
    """The layout by which the queue is registered; that of a queue's sessions is the queue's own."""
    codec: Codec[V]
    order: Order | None

    def read(self, tr: Transaction | Database, body: Callable[[Transaction], Steps[T]]) -> Steps[T]:
        """Run an idempotent `body` in the caller's transaction or, given a database, in a new one.

        Raises:
            TypeError: `body` is no function.
        """
        if not callable(body):
            raise no_body(body)
        return attempts(cast(Database, tr), body) if is_database(tr) else begun(body, tr)

    def encode(self, value: V) -> bytes:
        """Encode a value by the queue's codec.

        Raises:
            CodecError: the codec does not take the value.
        """
        try:
            payload: object = self.codec.encode(value)  # from code that is not ours
            if isinstance(payload, bytes):
                return payload
            raise TypeError(f"the codec {self.codec.name!r} made {type(payload).__name__} of it, and not bytes")
        except CodecError:
            raise
        except Exception as error:  # a codec may be code that is not ours
            raise CodecError(f"{self!r} can't encode {type(value).__name__}: {reason_of(error)}.") from error

    def rank(self, value: V, headers: Mapping[str, object] | None) -> int | None:
        """Return the rank of an item by this queue's order; None if the queue has no order.

        Raises:
            ValueError: the order has no rank for it.
        """
        return None if self.order is None else rank_in(self.order, value, headers)

    def item(self, tr: Transaction, position: Position, stored: bytes) -> Steps[Item[V]]:
        """Decode an item's stored bytes, from any place. It reads the chunks of a large item.

        Raises:
            FormatError, CodecError: it can't be read; the message names the item.
            TypeError: an argument is of a wrong kind.

        *Conflicts:* none. It reads chunks by snapshot. They change only together with their item's key, and the read of
        that key decides about conflicts.
        """
        _check_stored(position, stored)
        return self._opened(tr, position, stored)

    def open_envelope(self, position: Position, stored: bytes) -> Envelope:
        """Parse an item's stored bytes. This is for layers.

        Raises:
            FormatError: it can't be read; the message names the item.
            TypeError: an argument is of a wrong kind.
        """
        _check_stored(position, stored)
        return self._open_envelope(position, stored)

    def look_at(self, tr: Transaction | Database, row: KeyValue) -> Item[V] | Steps[Item[V] | None]:
        """Decode a row of an available item that was read before.

        It returns steps for a large item; their result is None if the item has gone since. This is for layers.

        Raises:
            FormatError, CodecError: as `item`.
        """
        try:
            key, stored = row.key, row.value
        except AttributeError:
            raise TypeError(f"A row of a queue is a KeyValue that was read, not {row!r}.") from None
        if not self.home.known.decodes(tr):
            return self._checked_look(tr, row)
        position = self.layout.available.position(key)
        if stored[:1] == PLAIN:
            return self._decode(position, NO_PARTS, stored[1:])
        return self._look(tr, row, position, stored)

    def check_dequeue(self, position: Position, stored: bytes) -> None:
        """Check that an item may be dequeued: a dequeue would remove its blob unread. This is for layers.

        Raises:
            CodecError: it has one.
        """
        _check_stored(position, stored)
        blob = blob_of(stored) if has_parts(stored) else None
        if blob is not None:
            raise CodecError(
                f"The item {position.text} of {self!r} has {blob.size_bytes:,} bytes in a blob,"
                " which a dequeue would remove unread. It was left there. Lease it, and read it with"
                " `fdbqueue.layers.Blobs` before the ack."
            )

    def _look(
        self, tr: Transaction | Database, row: KeyValue, position: Position, stored: bytes
    ) -> Item[V] | Steps[Item[V] | None]:
        opened = self._open_envelope(position, stored)
        if opened.chunked is None:
            return self._decode(position, opened, opened.payload)
        return self.read(tr, partial(self._item_if_there, row=row))

    async def _checked_look(self, tr: Transaction | Database, row: KeyValue) -> Item[V] | None:
        await check_decodes(tr, self.home)
        found = self._look(tr, row, self.layout.position_of(row.key), row.value)
        return found if isinstance(found, Item) else await found

    async def _item_if_there(self, tr: Transaction, row: KeyValue) -> Item[V] | None:
        # Read the row again: its chunks may hold another value now than when the row was read.
        value = await value_of(tr.snapshot.get(row.key))
        position = self.layout.position_of(row.key)
        return await self._opened(tr, position, bytes(value)) if value.present() else None

    async def _opened(self, tr: Transaction, position: Position, stored: bytes) -> Item[V]:
        if not self.home.known.decodes(tr):
            await check_decodes(tr, self.home)
        opened = self._open_envelope(position, stored)
        payload = opened.payload
        if opened.chunked is not None:
            found = await rows(tr.snapshot, *self.layout.chunk_range(position))
            try:
                payload = join_chunks(opened.chunked, [row.value for row in found])
            except FormatError as error:
                raise self._unreadable(position, error) from error
        return self._decode(position, opened, payload)

    def _open_envelope(self, position: Position, stored: bytes) -> Envelope:
        try:
            return parse(stored)
        except FormatError as error:
            raise self._unreadable(position, error) from error

    def _decode(self, position: Position, opened: Envelope, payload: bytes) -> Item[V]:
        if opened.blob is not None and opened.blob.is_value:
            return Item(position, cast(V, opened.blob), opened.headers)
        try:
            return Item(position, self.codec.decode(payload), opened.headers)
        except Exception as error:  # a codec may be code that is not ours
            raise CodecError(
                f"The item {position.text} of {self!r} does not decode and was left there: {reason_of(error)}. With the"
                " codec 'bytes' it can be looked at and taken out.",
                position=position,
            ) from error

    def _unreadable(self, position: Position, error: FormatError) -> FormatError:
        told = f"The item {position.text} of {self!r} can't be read and was left there. {error}"
        return FormatError(told, position=position, newer=error.newer)


def no_body(body: object) -> TypeError:
    """Return the error for a body of a transaction that is no function."""
    return TypeError(f"body is a function that takes a transaction and returns steps, not {body!r}.")


def _check_stored(position: object, stored: object) -> None:
    if not isinstance(position, Position):
        raise TypeError(f"An item is named by its Position, not by {position!r}.")
    if not isinstance(stored, bytes):
        raise TypeError(f"The stored bytes of an item are bytes, as a read of its key returns them, not {stored!r}.")
