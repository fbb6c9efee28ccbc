"""Items out of a queue as Arrow data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from fdbqueue.arrow.columns import Columns, OnBad, look_fields
from fdbqueue.arrow.stored import Range, StoredLook, page_of
from fdbqueue.base.arguments import check_borders, check_limit
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import Steps, run
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.stored.codecs import Codec
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import check_decodes
from fdbqueue.stored.places import ALL_STATES, refuse_own_items
from fdbqueue.stored.positions import pack
from fdbqueue.stored.settings import check_renamed

TAKEN = ("position", "rank", "index", "value", "headers")
"""The columns of items that were taken out."""


class Reading:
    """A read of a queue's items as record batches.

    Args:
        tr: a transaction, or a database.
        states: the states to read; None: all.
        columns: the columns to read; None: all.
        after, before: only items between these positions.
        limit: how many items at most; None: all.
        on_bad: "fail", or "null" for items without their values.

    Raises:
        ValueError, TypeError: an argument is not valid; nothing was read.
    """

    def __init__(
        self,
        tr: Transaction | Database,
        layout: Layout,
        codec: Codec[Any],
        *,
        states: str | Iterable[str] | None = None,
        columns: Iterable[str] | None = None,
        after: Position | None = None,
        before: Position | None = None,
        limit: int | None = None,
        on_bad: OnBad = "fail",
    ) -> None:
        check_limit(limit, "items to read", least=0, optional=True)
        check_borders(after, before)
        if on_bad not in ("fail", "null"):
            raise ValueError(f"on_bad is 'fail', or 'null' for items without their values, not {on_bad!r}.")
        fields = _chosen(look_fields(codec.name), columns)
        begin = None if after is None else pack(after) + b"\x00"
        end = None if before is None else pack(before)
        self._tr = tr
        self._own_transactions = is_database(tr)
        self._layout = layout
        self._columns = Columns(layout, codec, fields, on_bad=on_bad)
        self._look = StoredLook(
            tr, layout, Range(begin, end), _states(states), payloads=self._columns.payloads, limit=limit
        )
        self._is_checked = self._found = False

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._columns.schema

    async def next(self) -> pa.RecordBatch | None:
        """Read the next batch; None if there is none.

        Raises:
            StreamError: the queue has items in sessions.
            OtherCodec: the queue is registered with another codec.
            CodecError, FormatError: an item can't be read.
            QueueRenamed: there is no item, and the queue has another name now.
        """
        if not self._is_checked:
            await self._read(partial(refuse_own_items, layout=self._layout, what="to_arrow"))
            if self._columns.payloads:
                await check_decodes(self._tr, self._layout)
            self._is_checked = True
        page = await self._look.next()
        if page is None and not self._found:
            await self._read(partial(check_renamed, layout=self._layout))
        self._found = True
        return None if page is None else self._columns.batch(page)

    async def table(self) -> pa.Table:
        """Read everything."""
        batches = []
        while (batch := await self.next()) is not None:
            batches.append(batch)
        return pa.Table.from_batches(batches, self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader that reads a page whenever it is asked for a batch. It blocks the thread."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := run(self.next())) is not None:
            yield batch

    def _read(self, body: Callable[[Transaction], Steps[None]]) -> Steps[None]:
        tr: Any = self._tr
        return attempts(tr, body) if self._own_transactions else body(tr)


async def taken(tr: Transaction, layout: Layout, codec: Codec[Any], found: list[KeyValue]) -> pa.RecordBatch:
    """Return the rows of items that are about to be taken as a record batch. It reads the chunks of large items.

    Raises:
        CodecError, FormatError: an item can't be read.
    """
    page = await page_of(tr.snapshot, layout, layout.available, found, "available")
    return Columns(layout, codec, _taken_fields(codec)).batch(page)


def nothing(codec: Codec[Any]) -> pa.RecordBatch:
    """Return the record batch of no taken item."""
    return pa.RecordBatch.from_pylist([], _taken_fields(codec))


def _taken_fields(codec: Codec[Any]) -> pa.Schema:
    return _chosen(look_fields(codec.name), TAKEN)


def _chosen(whole: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    if columns is None:
        return whole
    if isinstance(columns, str):
        raise TypeError(f"columns are a list of names, as columns=[{columns!r}], not one str.")
    if not isinstance(columns, Iterable):
        raise TypeError(f"columns are a list of names, as columns=['value'], not {columns!r}.")
    names = list(columns)
    unknown = [name for name in names if name not in whole.names]
    if unknown:
        raise ValueError(f"There is no column {unknown[0]!r}. There are {', '.join(whole.names)}.")
    if not names or len({*names}) < len(names):
        raise ValueError(f"columns name at least one column, and each once: {', '.join(names) or 'there is none'}.")
    return pa.schema([whole.field(name) for name in names])


def _states(given: str | Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return ALL_STATES
    if not isinstance(given, Iterable):
        raise TypeError(f"states are names, as states=['available'], not {given!r}.")
    wanted = [given] if isinstance(given, str) else list(given)
    unknown = [one for one in wanted if one not in ALL_STATES]
    if unknown or not wanted:
        raise ValueError(
            f"states are some of {', '.join(ALL_STATES)}, not {unknown[0] if unknown else 'an empty list'!r}."
        )
    return tuple(state for state in ALL_STATES if state in wanted)
