"""The queue: items under ``(queue, index, random)``, first in, first out.

Challenge: many clients enqueue and dequeue at once, inside transactions of their own, without conflicts that they
don't need.

Ordering: an item's index is one more than the last one that a *snapshot* read sees, so producers never conflict; two
that run at the same time may take the same index, and then the random part decides. Whoever enqueues after another's
commit comes after it. A queue may have another order (`order.py`): then items stand by rank, and within one as above.

Source: FoundationDB's queue recipe (documentation, "Queues").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast, overload

from fdbqueue.adaptive_limit import AdaptiveLimit
from fdbqueue.arrivals import announce
from fdbqueue.batches import Encoding
from fdbqueue.browse import Browser, Pace, Pages
from fdbqueue.bulk import BulkReport, enqueue_in_batches, enqueue_in_transaction
from fdbqueue.check import CheckReport, check_queue
from fdbqueue.codecs import CODEC_ERRORS, BytesCodec, Codec, V, codec_named
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.engine.transactional import attempts, is_database, only_transaction
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.exclusive import keep_out
from fdbqueue.items import (
    Envelope,
    Item,
    check_values,
    chunks_of,
    envelope,
    has_notes,
    is_chunked,
    join_chunks,
    notes_of,
    parse,
)
from fdbqueue.layout import TAKEN, TTL, Layout, Name, Position, new_random, pack
from fdbqueue.once import Once
from fdbqueue.order import Order, check_name, rank_in
from fdbqueue.reserving import forget, reserve
from fdbqueue.stats import Stats, count, count_levels, read_stats
from fdbqueue.tail import Door, LastIndex, give_up_to
from fdbqueue.verbs import verb

T = TypeVar("T")


class Queue(Generic[V]):
    """An ordered queue in a subspace of its own.

    Every method takes a transaction, in which it composes with whatever else the transaction does and which the
    caller commits, or a database, and then commits by itself, exactly once even when a commit's outcome is unknown.
    Every verb can be awaited too: ``await orders.enqueue.aio(db, value)`` blocks no event loop and needs no thread. One
    that is cancelled while it commits may have taken effect: an item that `dequeue` was taking may be gone then.

    Args:
        name: the queue's name (``"orders"`` keeps its items under the tuple ``("orders", index, random)``), a key
            tuple, or a `Subspace`; at most 7,900 bytes as a key.
        codec: ``"bytes"``, ``"str"``, ``"json"``, ``"msgpack"``, ``"tuple"``; a class, such as a dataclass, a msgspec
            Struct or a pydantic model, whose objects are stored as JSON; or a `Codec` of your own. To type checkers
            it gives the type of the values: ``Queue("orders", codec=Order)`` is a ``Queue[Order]``.
        order: another order than first in, first out (`fdbqueue.order`). Consumers need not name it.

    Raises:
        ValueError: the name is empty or too long for a key; there is no such codec; the order's name can't be kept.
        TypeError: the codec is a class whose objects can't be stored, or no codec at all.

    >>> import fdbqueue
    >>> db = fdbqueue.open("memory:")
    >>> orders = Queue("orders", codec="json")
    >>> position = orders.enqueue(db, {"sku": 7})
    >>> orders.dequeue(db).value
    {'sku': 7}
    >>> orders.dequeue(db) is None
    True
    """

    @overload
    def __init__(
        self: Queue[bytes], name: Name, *, codec: Literal["bytes"] = "bytes", order: Order | None = None
    ) -> None: ...
    @overload
    def __init__(self: Queue[str], name: Name, *, codec: Literal["str"], order: Order | None = None) -> None: ...
    @overload
    def __init__(
        self: Queue[tuple[Any, ...]], name: Name, *, codec: Literal["tuple"], order: Order | None = None
    ) -> None: ...
    @overload
    def __init__(self: Queue[V], name: Name, *, codec: type[V] | Codec[V], order: Order | None = None) -> None: ...
    @overload
    def __init__(self: Queue[Any], name: Name, *, codec: str, order: Order | None = None) -> None: ...
    def __init__(self, name: Name, *, codec: str | type[V] | Codec[V] = "bytes", order: Order | None = None) -> None:
        if order is not None:
            check_name(order)
        self.layout = Layout(name)
        self.codec: Codec[V] = codec_named(codec)
        self.order = order
        self.order_name = None if order is None else order.name
        self._once = Once(self.layout)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Queue, codec=self.codec, order=self.order), (self.layout.space,)

    def __repr__(self) -> str:
        order = "" if self.order_name is None else f", order={self.order_name!r}"
        return f"Queue({self.layout.describe()}, codec={self.codec.name!r}{order})"

    @verb
    def enqueue(
        self, tr: Transaction | Database, value: V, *, headers: Mapping[str, Any] | None = None
    ) -> Steps[Position]:
        """Append an item and return its position.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: what the queue's codec takes; encoded it has at most `fdbqueue.items.MAX_ITEM_BYTES`.
            headers: a small mapping kept beside the value.

        Raises:
            CodecError: the codec does not take `value`. ItemTooLarge: it is over the limit. ValueError: the queue's
                order has no rank for it. OrderError: the queue's items have another order. ChecksBypassed: the queue is
                smart (`fdbqueue.layers.smart`). In all cases no key was touched.

        *Conflicts:* none; the read is a snapshot read, so that another enqueue that commits first does not abort
        this one, and the key is new. *Cost:* one read (none for the further items of one transaction), two writes,
        one more per 90,000 bytes of a large payload.

        >>> import fdbqueue
        >>> with fdbqueue.open("memory:") as db:
        ...     Queue("q", codec="str").enqueue(db, "hello").index
        1
        """
        payload = self.encode(value)
        stored = envelope(payload, headers)
        chunks = chunks_of(payload)
        rank = self.rank(value, headers)
        if is_database(tr):
            body = partial(self._enqueue, stored=stored, chunks=chunks, rank=rank, random=new_random())
            return (yield from self._once.transact(cast(Database, tr), body))
        return (yield from self._enqueue_next(cast(Transaction, tr), stored, chunks, rank))

    @verb
    def enqueue_many(self, tr: Transaction | Database, values: Iterable[V]) -> Steps[BulkReport]:
        """Append items in their order.

        Given a transaction, all of them in it. Given a database, in as many transactions as it takes, several of
        them under way at once, each exactly once; an interrupted call says which values are in, and which are not
        or may be (`BulkInterrupted`).
        They come after all that was committed before the call and before all that is enqueued after it; what is
        enqueued meanwhile may stand between them.

        Args:
            tr: a transaction to enqueue in, or a database.
            values: what the queue's codec takes, read as the batches go out; no transaction waits for it. What was
                read waits for the next value, though, as long as that takes, unless a batch is full.

        Raises:
            CodecError, ItemTooLarge, ValueError, OrderError, ChecksBypassed: as `enqueue`, of a value; given a
                transaction, no key was touched.
            TypeError: `values` is one value, or a data frame; no key was touched.
            BulkInterrupted: given a database, something failed when other batches were already in.
            KeyboardInterrupt: as ever; given a database, its note says what is in. A cancelled call does not say it.

        *Conflicts:* none. *Cost:* one read and about 1,000 writes per transaction; memory for the batches under way.
        """
        check_values(values)
        if is_database(tr):
            return (
                yield from enqueue_in_batches(cast(Database, tr), self.layout, self._once, self._encoding(), values)
            )
        own = cast(Transaction, tr)
        return (yield from enqueue_in_transaction(own, self.layout, self._encoding(), values, self.next_index))

    @verb
    def dequeue(self, tr: Transaction | Database) -> Steps[Item[V] | None]:
        """Take the first item out; None if the queue is empty.

        Args:
            tr: a transaction to dequeue in, or a database.

        Raises:
            FormatError, CodecError: the first item can't be read; the message names it, and it stays where it is.
            SubscriptionError: the queue has an exclusive subscription.

        *Conflicts:* with every other dequeue of the same item, of which one wins, and with an enqueue that puts an
        item before it. *Cost:* one read, two writes; one more read and write for a chunked payload.

        >>> import fdbqueue
        >>> with fdbqueue.open("memory:") as db:
        ...     Queue("q").dequeue(db) is None
        True
        """
        taken = yield from self.transact(tr, partial(self._dequeue, limit=1))
        return taken[0] if taken else None

    @verb
    def dequeue_many(self, tr: Transaction | Database, *, limit: int = 100) -> Steps[list[Item[V]]]:
        """Take the first `limit` items out, in order; fewer if there are no more.

        Given a database it may also take fewer when so many are too large to be read in the five seconds of a
        transaction, but never none while there is one.

        Args:
            tr: a transaction to dequeue in, or a database.
            limit: how many at most.

        Raises:
            FormatError, CodecError: one of them can't be read; all stay where they are.
            SubscriptionError: as `dequeue`.

        *Conflicts:* as `dequeue`; not with enqueues behind the last item taken. *Cost:* one range read, two writes;
        one more read and write per chunked payload.
        """
        if limit < 1:
            raise ValueError(f"limit is how many items to take, at least 1, not {limit}.")
        portion = AdaptiveLimit(limit)
        return (yield from self.transact(tr, lambda tr: self._dequeue(tr, portion.limit), on_retry=portion.note))

    @verb
    def peek(self, tr: Transaction | Database) -> Steps[Item[V] | None]:
        """Return the first item without taking it; None if the queue is empty.

        *Conflicts:* in a transaction, with whoever takes that item or puts one before it. *Cost:* one read.
        """
        return (yield from self.read(tr, self._first))

    @verb
    def is_empty(self, tr: Transaction | Database) -> Steps[bool]:
        """Say whether there is no item.

        *Conflicts:* in a transaction, with whoever changes the answer's first item. *Cost:* one read.
        """
        return (yield from self.read(tr, self._is_empty))

    def browse(
        self,
        tr: Transaction | Database,
        *,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        reverse: bool = False,
        duty_cycle: float = 1.0,
    ) -> Browser[Item[V]]:
        """Look at the items in order without taking them, lazily: ``for item in …``, or ``async for item in …``.

        Given a database it reads as many transactions as it needs, a page in each: items that come and go meanwhile
        may or may not be seen, none twice.

        Args:
            tr: a transaction, or a database.
            after: only items behind this position.
            before: only items in front of this position.
            limit: how many at most; None: all.
            reverse: from the last item to the first.
            duty_cycle: given a database, the part of the time that it reads, over 0 and up to 1; it rests after a page.

        Raises:
            FormatError, CodecError: the next item can't be read; what stands behind it can be, `after` it.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read per page of up to 1,000 items; memory for a page.
        """
        for border in (after, before):
            if border is not None and not isinstance(border, Position):
                raise TypeError(f"What to look after or before is an item's Position, not {border!r}.")
        begin = self.layout.begin if after is None else self.layout.item_key(after) + b"\x00"
        end = self.layout.end if before is None else self.layout.item_key(before)
        found = Pages(tr, begin, end, limit=limit, reverse=reverse, pace=Pace(duty_cycle))
        return Browser(found, partial(self.look_at, tr))

    @verb
    def clear(self, tr: Transaction | Database) -> Steps[None]:
        """Remove all items and everything else that the queue owns.

        *Conflicts:* everybody who reads the queue in a transaction conflicts with it. *Cost:* one write.
        """

        yield from self.read(tr, self._clear)

    @verb
    def stats(self, tr: Transaction | Database) -> Steps[Stats]:
        """Return how many items there are, and how many came and went.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read; it does not grow with the queue.
        """
        return (yield from self.read(tr, partial(read_stats, layout=self.layout)))

    def check(self, tr: Transaction | Database) -> CheckReport:
        """Read everything that the queue owns and compare: keys, envelopes, chunks, counters.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads the whole queue, a page at a time.
        """
        return check_queue(tr, self.layout)

    def encode(self, value: V) -> bytes:
        """Encode a value by the queue's codec.

        Raises:
            CodecError: the codec does not take it.
        """
        try:
            payload: object = self.codec.encode(value)  # by whoever wrote the codec
            if isinstance(payload, bytes):
                return payload
            raise TypeError(f"the codec {self.codec.name!r} made {type(payload).__name__} of it, and not bytes")
        except CodecError:
            raise
        except CODEC_ERRORS as error:
            raise CodecError(f"{self!r} can't encode {type(value).__name__}: {error}") from error

    def rank(self, value: V, headers: Mapping[str, Any] | None) -> int | None:
        """Return the rank of an item by this queue's order; None: it has none.

        Raises:
            ValueError: the order has no rank for it.
        """
        return None if self.order is None else rank_in(self.order, value, headers)

    def transact(
        self,
        tr: Transaction | Database,
        body: Callable[[Transaction], Steps[T]],
        *,
        on_retry: Callable[[FDBError], None] = lambda error: None,
    ) -> Steps[T]:
        """Run `body` in the caller's transaction or, given a database, in its own that takes effect exactly once.

        For layers: what they write about this queue's items stands under this queue's subspace too. `on_retry` is
        called with the error before each retry of an own transaction; what it raises ends the call.
        """
        if is_database(tr):
            return self._once.transact(cast(Database, tr), body, on_retry=on_retry)
        return body(cast(Transaction, tr))

    def read(self, tr: Transaction | Database, body: Callable[[Transaction], Steps[T]]) -> Steps[T]:
        """Run a `body` that bears being applied twice, in the caller's transaction or in its own."""
        return attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr))

    def next_index(self, tr: Transaction, wanted: int, *, order: str | None = None, door: Door = "plain") -> Steps[int]:
        """Reserve `wanted` indices in a caller's transaction, reading the last one only once in it.

        Args:
            order: the name of the order of the items that they are for; None: this queue's own.
            door: how the items come in.

        Raises:
            OrderError: the queue's items have another order.
            ChecksBypassed: the queue is smart, and the items come in by the plain door.
        """
        only_transaction(tr, "Queue.next_index")
        return reserve(tr, self.layout, wanted, order or self.order_name, door=door)

    def item(self, tr: Transaction, position: Position, stored: bytes) -> Steps[Item[V]]:
        """Open what is stored for an item, in whichever place it stands; a large one's chunks are read.

        Raises:
            FormatError, CodecError: it can't be read; the message names the item.

        *Conflicts:* none. Chunks are read by snapshot: they change only together with their item's key, whose read
        decides about conflicts.
        """
        opened = self._open(position, stored)
        if opened.chunked is None:
            return self._decode(position, opened, opened.payload)
        found = yield from rows(tr.snapshot, *self.layout.chunk_range(position))
        try:
            payload = join_chunks(opened.chunked, [row.value for row in found])
        except FormatError as error:
            raise self._unreadable(position, error) from error
        return self._decode(position, opened, payload)

    def take_rows(self, tr: Transaction, found: Sequence[KeyValue]) -> Steps[list[Item[V]]]:
        """Take items out whose rows were read; at least one, and all that stand from the first to the last.

        Raises:
            FormatError, CodecError: as `item`; all stay where they are.

        *Conflicts:* none: the caller reads, or declares, that range as far as it takes items from it. *Cost:* two
        writes; one read and one write more per chunked payload.
        """
        only_transaction(tr, "Queue.take_rows")
        items = []
        for row in found:
            item = yield from self._item(tr, row)
            items.append(item)
        for row in found:
            self._clear_beside(tr, row)
        tr.clear_range(found[0].key, found[-1].key + TAKEN)
        count(tr, self.layout, dequeued=len(items))
        if items[-1].position.rank is not None:
            gone = Counter(item.position.rank for item in items)
            count_levels(tr, self.layout, {rank: -amount for rank, amount in gone.items()})
        return items

    def look_at(self, tr: Transaction | Database, row: KeyValue) -> Item[V] | Steps[Item[V] | None]:
        """Open a row of an available item that was read before; in steps if it is large, None if it has gone since.

        For layers.

        Raises:
            FormatError, CodecError: as `item`.
        """
        position = self.layout.position_of(row.key)
        opened = self._open(position, row.value)
        if opened.chunked is None:
            return self._decode(position, opened, opened.payload)
        return self.read(tr, partial(self._item_if_there, row=row))

    def _enqueue(
        self, tr: Transaction, stored: bytes, chunks: list[bytes], rank: int | None, random: bytes
    ) -> Steps[Position]:
        last = yield from LastIndex(tr, self.layout, self.order_name).steps()
        position = Position(last + 1, random, rank=rank)
        give_up_to(tr, self.layout, last + 1, self.order_name)
        self._put(tr, position, stored, chunks)
        return position

    def _enqueue_next(self, tr: Transaction, stored: bytes, chunks: list[bytes], rank: int | None) -> Steps[Position]:
        index = yield from self.next_index(tr, 1)
        position = Position(index, new_random(), rank=rank)
        self._put(tr, position, stored, chunks)
        return position

    def _put(self, tr: Transaction, position: Position, stored: bytes, chunks: list[bytes]) -> None:
        tr.set(self.layout.item_key(position), stored)
        for number, chunk in enumerate(chunks):
            tr.set(self.layout.chunk_key(position, number), chunk)
        count(tr, self.layout, enqueued=1)
        if position.rank is not None:
            count_levels(tr, self.layout, {position.rank: 1})
        if self.layout.subscribed:
            packed = pack(position)
            announce(tr, self.layout, [(packed, packed)], enqueued=1)

    def _dequeue(self, tr: Transaction, limit: int) -> Steps[list[Item[V]]]:
        yield from keep_out(tr, self.layout)
        begin, end = self.layout.begin, self.layout.end
        if limit == 1:
            found = yield from rows(tr, begin, end, limit=1)
        else:
            # A plain read that finds fewer than it may also says that none follow, and conflicts with every enqueue.
            # What is taken depends on the items up to the last one only.
            found = yield from rows(tr.snapshot, begin, end, limit=limit)
            tr.add_read_conflict_range(begin, found[-1].key + b"\x00" if found else end)
        return (yield from self.take_rows(tr, found)) if found else []

    def _clear_beside(self, tr: Transaction, row: KeyValue) -> None:
        """Clear what an item that is taken out has beside its key."""
        if is_chunked(row.value):
            tr.clear_range(*self.layout.chunk_range(self.layout.position_of(row.key)))
        if has_notes(row.value):
            notes, packed = notes_of(row.value), self.layout.available.packed(row.key)
            if notes.ttl_at_us:
                tr.clear(self.layout.timer_key(notes.ttl_at_us, packed, TTL))
            for key in self.layout.beside_keys(notes.beside, packed):
                tr.clear(key)

    def _first(self, tr: Transaction) -> Steps[Item[V] | None]:
        found = yield from rows(tr, self.layout.begin, self.layout.end, limit=1)
        return (yield from self._item(tr, found[0])) if found else None

    def _is_empty(self, tr: Transaction) -> Steps[bool]:
        return not (yield from rows(tr, self.layout.begin, self.layout.end, limit=1))

    def _item(self, tr: Transaction, row: KeyValue) -> Steps[Item[V]]:
        return self.item(tr, self.layout.position_of(row.key), row.value)

    def _item_if_there(self, tr: Transaction, row: KeyValue) -> Steps[Item[V] | None]:
        # As it is now: what its chunks hold may be another value than that of the row, which was read before.
        value = yield tr.snapshot.get(row.key)
        position = self.layout.position_of(row.key)
        return (yield from self.item(tr, position, bytes(value))) if value.present() else None

    def _open(self, position: Position, stored: bytes) -> Envelope:
        try:
            return parse(stored)
        except FormatError as error:
            raise self._unreadable(position, error) from error

    def _decode(self, position: Position, opened: Envelope, payload: bytes) -> Item[V]:
        try:
            return Item(position, self.codec.decode(payload), opened.headers)
        except CODEC_ERRORS as error:
            raise CodecError(
                f"The item {position.text} of {self!r} does not decode and was left there: {error}. With the codec"
                " 'bytes' it can be looked at and taken out."
            ) from error

    def _unreadable(self, position: Position, error: FormatError) -> FormatError:
        return FormatError(f"The item {position.text} of {self!r} can't be read and was left there. {error}")

    def _encoding(self) -> Encoding:
        as_they_are = type(cast(Any, self.codec)) is BytesCodec
        return Encoding(self.encode, as_they_are, partial(self.rank, headers=None), self.order_name)

    def _clear(self, tr: Transaction) -> Steps[None]:
        yield from ()
        tr.clear_range(*self.layout.whole_range())
        forget(tr, self.layout)
