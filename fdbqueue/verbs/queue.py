"""The queue: items under ``(queue, index, random)``, first in, first out.

Challenge: many clients enqueue and dequeue at once, inside transactions of their own, without needless conflicts.

Ordering: an item's index is one more than the last index that a *snapshot* read sees, so producers never conflict. Two
concurrent producers may take the same index; then the random part decides. An enqueue that starts after another's
commit comes after it. A queue may have another order (`order.py`). Its items are sorted by rank, and within a rank as
above.

Source: FoundationDB's queue recipe (documentation, "Queues").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, cast, overload

from fdbqueue.arrow.needs import ArrowTable, check_columns, needed
from fdbqueue.arrow.verbs import ArrowVerbs
from fdbqueue.base.arguments import check_borders, check_limit, check_values
from fdbqueue.base.position import BulkReport, Position
from fdbqueue.base.reprs import Named
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import Steps, begun, rows
from fdbqueue.engine.transactional import asks_marker, is_database, only_transaction
from fdbqueue.engine.verb import verb
from fdbqueue.moves.admission import ENTRIES, Admission, Entry
from fdbqueue.moves.opening import no_body
from fdbqueue.moves.taking import NO_LIMIT, Takes, Verdict
from fdbqueue.reads.browse import BrowsePace, Browser, Pages
from fdbqueue.stored.catalogue import path_of
from fdbqueue.stored.codecs import BytesCodec, Codec, V, codec_named
from fdbqueue.stored.items import (
    INLINE_BYTES,
    Item,
    chunks_of,
    envelope,
)
from fdbqueue.stored.known import Registration
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.looks import beside_others, keep_out
from fdbqueue.stored.order import Order, check_order
from fdbqueue.stored.positions import new_random
from fdbqueue.stored.settings import check_renamed
from fdbqueue.verbs.administered import Administered
from fdbqueue.verbs.editing import Editing
from fdbqueue.verbs.queues import open_queue
from fdbqueue.writes.adaptive_limit import AdaptiveLimit
from fdbqueue.writes.appending import append_items, reserve
from fdbqueue.writes.bulk import Encoding, Payloads, enqueue_in_batches, enqueue_in_transaction
from fdbqueue.writes.once import Once

T = TypeVar("T")
Told: TypeAlias = "Callable[[Transaction, list[KeyValue]], Steps[list[Any]]]"
"""Returns what a call returns for the rows of the items that it takes out."""


class Queue(Named, ArrowVerbs, Administered[V]):
    """An ordered queue in a subspace of its own.

    Every method takes a transaction or a database. In a transaction it composes with the transaction's other calls, and
    the caller commits. Given a database, it commits on its own, exactly once even if a commit's outcome is unknown.
    Every verb can be awaited too: ``await orders.enqueue.aio(db, value)`` blocks no event loop and needs no thread. A
    verb that is cancelled while it commits may have taken effect: an item that `dequeue` was taking may be gone.

    Args:
        name: the queue's name, a key tuple, or a `Subspace`; at most 7,900 bytes as a key. A queue ``"orders"`` keeps
            its items under the tuple ``("orders", index, random)``.
        codec: ``"bytes"``, ``"str"``, ``"json"``, ``"msgpack"`` or ``"tuple"``; a class; or a `Codec` of your own. A
            class can be a dataclass, a msgspec Struct or a pydantic model; its objects are stored as JSON. The codec
            also gives type checkers the type of the values: ``Queue("orders", codec=Order)`` is a ``Queue[Order]``.
        order: an order other than first in, first out (`fdbqueue.stored.order`). Consumers need not name it.

    Raises:
        ValueError: the name is empty or too long for a key, or it is a prefix whose keys are those of the catalogue or
                of the database itself; there is no such codec; the name of the codec
                or of the order can't be kept.
        TypeError: the codec is a class whose objects can't be stored, or no codec at all; the order is no order.

    >>> import fdbqueue
    >>> from fdbqueue import Queue
    >>> db = fdbqueue.open("memory:")
    >>> orders = Queue("orders", codec="json")
    >>> position = orders.enqueue(db, {"sku": 7})
    >>> orders.dequeue(db).value
    {'sku': 7}
    >>> orders.dequeue(db) is None
    True
    """

    open = open_queue

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
            check_order(order)
        self.layout = Layout(name)
        self.codec: Codec[V] = codec_named(codec)
        self.order = order
        self.order_name = None if order is None else order.name
        self.layout.known.registration = Registration(self.codec.name, self.order_name or "", path_of(name))
        self.home = self.layout
        self._once = Once(self.layout)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Queue, codec=self.codec, order=self.order), (self.layout.space,)

    def __repr__(self) -> str:
        order = "" if self.order_name is None else f", order={self.order_name!r}"
        return f"Queue({self.layout.describe()}, codec={self.codec.name!r}{order})"

    @verb
    def enqueue(
        self, tr: Transaction | Database, value: V, *, headers: Mapping[str, object] | None = None
    ) -> Steps[Position]:
        """Append an item and return its position.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a value that the queue's codec takes; encoded it has at most `fdbqueue.stored.items.MAX_ITEM_BYTES`.
            headers: a small mapping stored beside the value, as MessagePack. Its keys are str. A tuple or a set
                comes back as a list; a date, a datetime without a time zone, a Decimal or a UUID as text; an object of
                a class with fields as a dict.

        Raises:
            CodecError: the codec does not take `value`. OtherCodec: the queue is registered with another codec.
            NestedQueue: it is not registered, and its name lies within that of another queue, or around it.
            ItemTooLarge: the value is over the limit. ValueError: the queue's order has no rank for it. OrderError: the
                queue's items have another order. ChecksBypassed: the queue is smart (`fdbqueue.layers.smart`). In all
                cases no key was touched.

        *Conflicts:* none. The read is a snapshot read, so another enqueue that commits first does not abort this one.
        The key is new. The first enqueue of all registers the queue, and conflicts with the registration of a name
        within its own, or around it. *Cost:* one read (none for further items of one transaction); two writes; one more
        write per 90,000 bytes of a large payload. The first enqueue of all: about two reads more.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     Queue("q", codec="str").enqueue(db, "hello").index
        1
        """
        own: Any = tr
        own_transaction = hasattr(own, "create_transaction") or is_database(own)
        payload = self.encode(value)
        stored = envelope(payload, headers)
        chunks = chunks_of(payload) if len(payload) > INLINE_BYTES else ()
        rank = None if self.order is None else self.rank(value, headers)
        if own_transaction:
            body = partial(self._enqueue, stored=stored, chunks=chunks, rank=rank, random=new_random())
            return self._once.transact(own, body, looks=True)
        return self._enqueue_next(own, stored, chunks, rank)

    @verb
    async def enqueue_many(
        self, tr: Transaction | Database, values: Iterable[V] | ArrowTable, *, column: str | None = None
    ) -> BulkReport:
        """Append items in their order.

        Given a transaction, it enqueues all items in it. Given a database, it makes as many transactions as necessary,
        several of them under way at once, each exactly once. An interrupted call reports which values are in, and which
        are not or may be (`BulkInterrupted`).
        The items follow all that was committed before the call, and precede all that is enqueued after it. Items that
        are enqueued meanwhile may be between them.

        Args:
            tr: a transaction to enqueue in, or a database.
            values: values that the queue's codec takes. They are read as the batches go out, and no transaction waits
                for them. A batch that is not full waits for the next value, however long that takes. Also a table: any
                object with ``__arrow_c_stream__``, of pyarrow, pandas, polars or DuckDB. Each row is a value, a dict.
            column: the column of the table whose values are the items, instead of the rows.

        Raises:
            CodecError, ItemTooLarge, ValueError, OrderError, ChecksBypassed: as `enqueue`, for one of the values. Given
                a transaction, no key was touched.
            TypeError: `values` is one value; or `column` is given, and `values` is no table. No key was touched.
            ValueError: the table has no such column, or the codec takes no rows; no key was touched.
            ModuleNotFoundError: `values` is a table, and pyarrow is not installed.
            BulkInterrupted: given a database, an error came after other batches were already in.
            KeyboardInterrupt: as usual. Given a database, its note lists the values that are in. A cancelled call does
                not.

        *Conflicts:* none. *Cost:* one read and about 1,000 writes per transaction; memory for the batches under way.
        """
        own_transactions = is_database(tr)
        encoding, given = self._encoding(), cast(Iterable[Any], values)
        if check_columns(values, column=column):
            encoding, given = self._of_table(encoding, values, column)
        else:
            check_values(values)
        if own_transactions:
            return await enqueue_in_batches(cast(Database, tr), self.layout, self._once, encoding, given)
        own = cast(Transaction, tr)
        return await enqueue_in_transaction(own, self.layout, encoding, given, self.next_index)

    @verb
    async def dequeue(self, tr: Transaction | Database) -> Item[V] | None:
        """Take the first item out; None if the queue is empty.

        It removes the items in front whose time to live is over, whose group was cancelled, or whose type says that
        they are over (`MessageType.expires`), by the wall clock. It fires no timers.

        Args:
            tr: a transaction to dequeue in, or a database.

        Raises:
            FormatError, CodecError: the first item can't be read. The message names it, and it stays in its place.
            OtherCodec: the queue is registered with another codec; every verb that decodes or encodes checks that.
            SubscriptionError: the queue has an exclusive subscription. NestedQueue: as `pause`.

        *Conflicts:* with every other dequeue of the same item (one of them wins), and with an enqueue that puts an item
        before it. *Cost:* one read, two writes; one more read and write for a chunked payload; once a second, four
        reads in parallel in front of it, about pauses, owners and the codec.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     Queue("q").dequeue(db) is None
        True
        """
        while (taken := await self.transact(tr, self._dequeue, takes=True)) is None:
            pass
        return taken[0] if taken else None

    @verb
    async def dequeue_many(self, tr: Transaction | Database, *, limit: int = 100) -> list[Item[V]]:
        """Take the first `limit` items out, in order; fewer if there are no more.

        It may also take fewer if it removes more than 500 items that are over (`dequeue`), or, given a database, if the
        items are too large to read in the five seconds of a transaction. It takes at least one if there is one.

        Args:
            tr: a transaction to dequeue in, or a database.
            limit: how many items at most.

        Raises:
            FormatError, CodecError, CheckFailed: one of them can't be read; all stay in their places.
            SubscriptionError: as `dequeue`.

        *Conflicts:* as `dequeue`; not with enqueues behind the last taken item. *Cost:* one range read, two writes; one
        more read and write per chunked payload.
        """
        check_limit(limit, "items to take")
        adaptive = AdaptiveLimit(limit)

        def body(tr: Transaction) -> Steps[list[Item[V]] | None]:
            return self._dequeue(tr, adaptive.limit)

        while (taken := await self.transact(tr, body, on_retry=adaptive.note, takes=True)) is None:
            pass
        return taken

    @verb
    async def peek(self, tr: Transaction | Database) -> Item[V] | None:
        """Return the first item without taking it; None if the queue is empty.

        Raises:
            FormatError, CodecError: the item can't be read. QueueRenamed: the queue has another name now.

        *Conflicts:* in a transaction, with a take of that item and with an enqueue before it. *Cost:* one read; one
        more if there is no item.
        """
        return await self.read(tr, self._first)

    @verb
    async def is_empty(self, tr: Transaction | Database) -> bool:
        """Return whether there is no item.

        Raises:
            QueueRenamed: the queue has another name now.

        *Conflicts:* in a transaction, with a take of the first item and with an enqueue before it. If the queue is
        empty, it conflicts with any enqueue. *Cost:* one read; one more if there is no item.
        """
        return await self.read(tr, self._is_empty)

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
        """Iterate over the items in order without taking them: ``for item in …``, or ``async for item in …``.

        It reads lazily. Given a database, it reads each page in its own transaction. It may or may not see items that
        come and go meanwhile, and sees none twice.

        Args:
            tr: a transaction, or a database.
            after: only items behind this position.
            before: only items in front of this position.
            limit: how many items at most; None: all.
            reverse: from the last item to the first.
            duty_cycle: given a database, the part of the time that it may read, over 0 and up to 1. It rests after a
                page.

        Raises:
            FormatError, CodecError: the next item can't be read. Use `after` to read the items behind it.
            QueueRenamed: there is no item, and the queue has another name now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read per page of up to 1,000 items; memory for a page.
        """
        check_borders(after, before)
        begin = self.layout.begin if after is None else self.layout.item_key(after) + b"\x00"
        end = self.layout.end if before is None else self.layout.item_key(before)
        found = Pages(tr, begin, end, limit=limit, reverse=reverse, pace=BrowsePace(duty_cycle), layout=self.layout)
        return Browser(found, partial(self.look_at, tr))

    def transact(
        self,
        tr: Transaction | Database,
        body: Callable[[Transaction], Steps[T]],
        *,
        on_retry: Callable[[FDBError], None] = lambda error: None,
        takes: bool = False,
    ) -> Steps[T]:
        """Run `body` in the caller's transaction. Given a database, run it in a new one that takes effect exactly once.

        The caller's transaction takes effect exactly once, too, if it is that of a `transactional` function.

        This is for layers: they write their keys about this queue's items under this queue's subspace too.

        Args:
            tr: a transaction, or a database.
            body: its steps. In a new transaction they run again at every retry.
            on_retry: called with the error before each retry of a new transaction. An exception from it ends the call.
            takes: whether the body takes the first items. A new transaction then waits for this process's turn, on an
                engine that has turns.

        Raises:
            TypeError: `body` is no function. NestedQueue: the queue is not registered, and its name lies within that of
                another queue, or around it. `body` was not called.
        """
        if not callable(body):
            raise no_body(body)
        given: Any = tr
        if hasattr(given, "create_transaction") or is_database(given):
            return self._once.transact(given, body, on_retry=on_retry, takes=takes)
        if not takes:  # one that takes asks when it finds an item, so that a look into an empty queue stays a read
            asks_marker(given)
        if self.layout.known.is_beside(given):
            return begun(body, given)
        return beside_others(given, layout=self.layout, body=body)

    def next_index(
        self, tr: Transaction, wanted: int, *, order: str | None = None, entry: Entry = "plain"
    ) -> Steps[int]:
        """Reserve `wanted` indices in a caller's transaction. It reads the last index only once in a transaction.

        Args:
            order: the name of the order of the items that need the indices; None: this queue's own.
            entry: how the items enter the queue.

        Raises:
            OrderError: the queue's items have another order.
            ChecksBypassed: the queue is smart, and the items do not pass through its checks.
            TypeError, ValueError: an argument is of a wrong kind.
        """
        only_transaction(tr, "Queue.next_index")
        if type(wanted) is not int or wanted < 0:
            raise ValueError(f"wanted is how many indices to reserve, an integer from 0 on, not {wanted!r}.")
        if order is not None and not isinstance(order, str):
            raise TypeError(f"order is the name of an order, or None for the queue's own, not {order!r}.")
        if entry not in ENTRIES:
            raise ValueError(f"entry is one of {', '.join(map(repr, ENTRIES))}, not {entry!r}.")
        return reserve(tr, self.layout, wanted, order or self.order_name, entry=entry)

    def take_rows(self, tr: Transaction, found: Sequence[KeyValue]) -> Steps[list[Item[V]]]:
        """Take the items out whose rows were read: at least one, and all from the first to the last.

        Items that are over (`dequeue`) are removed, and not returned.

        Raises:
            FormatError, CodecError, CheckFailed: as `dequeue_many`; all stay in their places.
            TypeError: they are no rows, or none.

        *Conflicts:* none. The caller reads that range, or declares a conflict range, up to the last item that it takes.
        *Cost:* two writes; one more read and one more write per chunked payload.
        """
        only_transaction(tr, "Queue.take_rows")
        try:
            _ = found[0].key, found[0].value, found[-1].key
        except (AttributeError, IndexError, KeyError, TypeError):
            raise TypeError(f"The rows to take out are a list of KeyValues that were read, not {found!r}.") from None
        return self._take_rows(tr, found)

    async def _take_rows(self, tr: Transaction, found: Sequence[KeyValue]) -> list[Item[V]]:
        takes = Takes(tr, self, time.time_ns() // 1_000, size_bytes=NO_LIMIT)
        verdicts = await takes.judge(found, dequeues=True)
        if takes.error is not None:
            raise takes.error
        return await takes.take_out(verdicts)

    def editing(self) -> Editing[V]:
        """Return the changes of items by their positions; for layers."""
        return Editing(self)

    async def _enqueue(
        self, tr: Transaction, stored: bytes, chunks: Sequence[bytes], rank: int | None, random: bytes
    ) -> Position:
        index = 1 + await Admission(tr, self.layout, self.order_name).steps()
        ranks, large = None if rank is None else (rank,), ((0, chunks),) if chunks else ()
        append_items(tr, self.layout, index, random, (stored,), ranks, large, self.order_name)
        return Position(index, random, rank=rank)

    async def _enqueue_next(
        self, tr: Transaction, stored: bytes, chunks: Sequence[bytes], rank: int | None
    ) -> Position:
        index, random = await self.next_index(tr, 1), new_random()
        ranks, large = None if rank is None else (rank,), ((0, chunks),) if chunks else ()
        append_items(tr, self.layout, index, random, (stored,), ranks, large)
        return Position(index, random, rank=rank)

    async def _dequeue(self, tr: Transaction, limit: int = 1, told: Told | None = None) -> list[Any] | None:
        """Take the first items out. Return them, or None if it removed many that are over, and there may be others."""
        if not (self.layout.known.is_open and self.layout.known.relies(tr)) and await keep_out(tr, self.layout):
            return []
        if limit == 1:
            found = await rows(tr, self.layout.begin, self.layout.end, limit=1)
        else:
            found = await self._next_rows(tr, self.layout.begin, limit)
        if told is not None or not Takes.are_plain(self, found):
            return await self._dequeue_judged(tr, limit, found, told)
        items: list[Item[V]] = []
        for row in found:
            item = self.look_at(tr, row)
            items.append(item if isinstance(item, Item) else cast(Item[V], await item))
        if items:
            Takes.take_plain_out(tr, self.layout, found, items)
        return items

    async def _next_rows(self, tr: Transaction, begin: bytes, limit: int) -> list[KeyValue]:
        end = self.layout.end
        if limit == 1:
            return await rows(tr, begin, end, limit=1)
        # A plain read that finds fewer than `limit` rows also learns that none follow, and conflicts with every
        # enqueue. The taken items depend only on the keys up to the last of them.
        found = await rows(tr.snapshot, begin, end, limit=limit)
        tr.add_read_conflict_range(begin, found[-1].key + b"\x00" if found else end)
        return found

    async def _dequeue_judged(
        self, tr: Transaction, limit: int, found: list[KeyValue], told: Told | None
    ) -> list[Any] | None:
        """Take the first items out, in front of which some may be over; otherwise as `_dequeue`."""
        takes = Takes(tr, self, time.time_ns() // 1_000, size_bytes=NO_LIMIT)
        verdicts: list[Verdict] = []
        while found:
            wanted = limit - takes.taken
            verdicts += await takes.judge(found, dequeues=True)
            if takes.error is not None:
                raise takes.error
            if takes.taken == limit or len(found) < wanted or takes.over >= takes.EXPIRED_LIMIT:
                break
            found = await self._next_rows(tr, found[-1].key + b"\x00", limit - takes.taken)
        if not verdicts:
            return []
        result = None
        if told is not None and takes.taken:  # before the first write
            result = await told(tr, [one.row for one in verdicts if one.fate == "take"])
        items = await takes.take_out(verdicts)
        if not items and takes.over >= takes.EXPIRED_LIMIT:
            return None
        return items if result is None else result

    async def _first(self, tr: Transaction) -> Item[V] | None:
        found = await rows(tr, self.layout.begin, self.layout.end, limit=1)
        if not found:
            await check_renamed(tr.snapshot, self.layout)
            return None
        return await self._opened(tr, self.layout.position_of(found[0].key), found[0].value)

    async def _is_empty(self, tr: Transaction) -> bool:
        found = await rows(tr, self.layout.begin, self.layout.end, limit=1)
        if not found:
            await check_renamed(tr.snapshot, self.layout)
        return not found

    def _encoding(self) -> Encoding:
        as_they_are = type(cast(Any, self.codec)) is BytesCodec
        return Encoding(self.encode, as_they_are, partial(self.rank, headers=None), self.order_name)

    def _of_table(self, encoding: Encoding, table: object, column: str | None) -> tuple[Encoding, Iterable[Any]]:
        """Return how to enqueue a table, and its values: encoded ones, unless the order needs the objects."""
        needed("pyarrow", "enqueue_many of a table")
        from fdbqueue.arrow.tables import Input

        given = Input(table, self.codec, column=column)
        if self.order is not None:
            return encoding, given.values()
        return encoding._replace(encode=_as_it_is, takes_bytes=True), Payloads(given.payloads(self.encode))


def _as_it_is(payload: bytes) -> bytes:
    return payload
