"""The verbs of `Queue` that give Arrow data. Each imports pyarrow when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

from fdbqueue.arrow.needs import needed
from fdbqueue.base.arguments import check_limit
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import Steps
from fdbqueue.engine.verb import verb
from fdbqueue.stored.codecs import Codec
from fdbqueue.stored.layout import Layout
from fdbqueue.writes.adaptive_limit import AdaptiveLimit

if TYPE_CHECKING:
    from fdbqueue.arrow.reading import Reading

T = TypeVar("T")


class ArrowOptions(TypedDict, total=False):
    """The arguments of `ArrowVerbs.to_arrow`."""

    states: str | Iterable[str] | None
    columns: Iterable[str] | None
    after: Position | None
    before: Position | None
    limit: int | None
    on_bad: Literal["fail", "null"]


class ArrowVerbs:
    """The verbs of a queue that give Arrow data."""

    layout: Layout
    codec: Codec[Any]

    @verb
    async def to_arrow(
        self,
        tr: Transaction | Database,
        *,
        states: str | Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        on_bad: Literal["fail", "null"] = "fail",
    ) -> Any:
        """Return the items of all states as a ``pyarrow.Table``, in the order of their positions. It takes nothing.

        The columns are those of Spark's batch look (docs/guides/arrow.md). Given a database, it reads each page in its
        own transaction. An item that stays in the queue comes exactly once; an item that comes or goes meanwhile comes
        or does not.

        Args:
            tr: a transaction, or a database.
            states: one or some of "available", "leased", "delayed", "dead", "claimed"; None: all.
            columns: the names of the columns; None: all. Without "value", it decodes no item.
            after: only items behind this position.
            before: only items in front of this position.
            limit: how many items at most; None: all.
            on_bad: "null" shows an item that can't be read without its value.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            CodecError, FormatError: an item can't be read, and `on_bad` is "fail".
            StreamError: the queue has items in sessions.
            QueueRenamed: there is no item, and the queue has another name now.
            ValueError, TypeError: an argument is not valid.

        *Conflicts:* none, it reads by snapshot. *Cost:* a read for each state and page of up to 5,000 items; memory for
        the table. `to_arrow_batches` needs memory for a page only.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     orders = Queue("orders", codec="json")
        ...     report = orders.enqueue_many(db, [{"sku": "teapot"}, {"sku": "cup"}])
        ...     orders.to_arrow(db, columns=["state", "value"]).to_pylist()[1]
        {'state': 'available', 'value': '{"sku":"cup"}'}
        """
        reading = self._reading(
            "to_arrow", tr, states=states, columns=columns, after=after, before=before, limit=limit, on_bad=on_bad
        )
        return await reading.table()

    def to_arrow_batches(self, tr: Transaction | Database, **options: Unpack[ArrowOptions]) -> Any:
        """Return the same as `to_arrow`, as a ``pyarrow.RecordBatchReader`` that reads a page at a time.

        Its arguments are those of `to_arrow`. It blocks the thread, and holds one page in memory.
        """
        return self._reading("to_arrow_batches", tr, **options).reader()

    @verb
    async def to_pandas(self, /, tr: Transaction | Database, **options: Unpack[ArrowOptions]) -> Any:
        """Return the items of all states as a ``pandas.DataFrame``. Its arguments are those of `to_arrow`."""
        needed("pandas", "to_pandas")
        return (await self._reading("to_pandas", tr, **options).table()).to_pandas()

    @verb
    async def to_polars(self, /, tr: Transaction | Database, **options: Unpack[ArrowOptions]) -> Any:
        """Return the items of all states as a ``polars.DataFrame``. Its arguments are those of `to_arrow`.

        Polars has no maps: the column ``headers`` is a list of structs with a key and a value.
        """
        polars = needed("polars", "to_polars")
        return polars.from_arrow(await self._reading("to_polars", tr, **options).table())

    @verb
    async def dequeue_arrow(self, tr: Transaction | Database, *, limit: int = 1_000) -> Any:
        """Take the first `limit` items out as a ``pyarrow.RecordBatch``, in order; one without rows if there is none.

        Its columns are ``position``, ``rank``, ``index``, ``value`` and ``headers``, as in `to_arrow`.

        Args:
            tr: a transaction to dequeue in, or a database. Given a database, it may take fewer items if they are large.
            limit: how many items at most.

        Raises:
            ModuleNotFoundError: pyarrow is not installed.
            FormatError, CodecError, SubscriptionError: as `Queue.dequeue_many`; all items stay in their places.

        *Conflicts* and *Cost:* as `Queue.dequeue_many`.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     words = Queue("words", codec="str")
        ...     report = words.enqueue_many(db, ["one", "two", "three"])
        ...     words.dequeue_arrow(db, limit=2).column("value").to_pylist()
        ['one', 'two']
        """
        needed("pyarrow", "dequeue_arrow")
        from fdbqueue.arrow import reading

        check_limit(limit, "items to take")
        adaptive = AdaptiveLimit(limit)

        async def told(tr: Transaction, found: list[KeyValue]) -> list[Any]:
            return [await reading.taken(tr, self.layout, self.codec, found)]

        def body(tr: Transaction) -> Steps[list[Any] | None]:
            return self._dequeue(tr, adaptive.limit, told)

        while (batches := await self.transact(tr, body, on_retry=adaptive.note)) is None:
            pass
        return batches[0] if batches else reading.nothing(self.codec)

    def _reading(self, verb: str, tr: Transaction | Database, **options: Unpack[ArrowOptions]) -> Reading:
        needed("pyarrow", verb)
        from fdbqueue.arrow.reading import Reading

        return Reading(tr, self.layout, self.codec, **options)

    if TYPE_CHECKING:  # the queue has these

        def transact(
            self,
            tr: Transaction | Database,
            body: Callable[[Transaction], Steps[T]],
            *,
            on_retry: Callable[[FDBError], None] = ...,
        ) -> Steps[T]: ...

        def _dequeue(
            self,
            tr: Transaction,
            limit: int,
            told: Callable[[Transaction, list[KeyValue]], Steps[list[Any]]] | None = ...,
        ) -> Steps[list[Any] | None]: ...
