"""Records: an item with its terms, as one line of JSON.

``{"value": …, "headers": {…}, "delay": …, "at": …, "ttl": …, "ttl_at": …, "rank": …}``, all but the value optional. A
record's own terms override the options, which apply to all records. `--records`, `lease` and `dead` print records too.
A record keeps an item's end of life. A dead letter's end of life is lifted, as by a redrive. A rank must be the one
that the queue's order gives the item, otherwise the record is refused. The old item's position, attempts and lease are
ignored: the new item has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.terms import ItemTerms
from fdbqueue.cli.values import from_json
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, run
from fdbqueue.errors import CodecError, ItemTooLarge, NestedQueue
from fdbqueue.layers.leases import Leases
from fdbqueue.moves.quotas import note_interrupt


class Way(NamedTuple):
    """How the items of a batch are enqueued."""

    enqueue: Callable[..., Steps[Any]]
    """Enqueues one item in a transaction."""
    begin: Callable[[Transaction], Steps[None]] | None = None
    """Called first in the transaction of each batch."""


BATCH_ITEMS = 500
BATCH_BYTES = 1_000_000
"""About the size of one transaction, in bytes of the lines."""


@dataclass(frozen=True, slots=True)
class ItemToEnqueue:
    """An item to enqueue."""

    where: str
    """The place where it was read, for the front of error messages."""
    size_bytes: int
    """The size of its line."""
    value: Any
    terms: ItemTerms
    rank: int | None = None
    """The rank that it had in its former queue."""


class _InputLine(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that a record may have. Any other name is an error, since it is probably mistyped."""

    value: Any
    headers: dict[str, Any] | None = None
    delay: float | None = None
    at: float | None = None
    ttl: float | None = None
    ttl_at: float | None = None
    rank: int | None = None
    index: Any = None
    random: Any = None
    item: Any = None
    lease: Any = None
    attempt: Any = None
    attempts: Any = None
    expires_at: Any = None
    consumer: Any = None
    error: Any = None
    wants_result: Any = None
    died_at: Any = None


_decode_line = msgspec.json.Decoder(_InputLine).decode


def record_of(text: str, codec: CodecName, where: str = "") -> ItemToEnqueue:
    """Return the record that a line describes.

    Raises:
        BadValue: it describes no record.
    """
    stored = text.encode("utf-8", "surrogateescape")
    try:
        line = _decode_line(stored)
        headers = None if line.headers is None else from_json(line.headers, CodecName.msgpack)
        terms = ItemTerms(headers, line.delay, line.at, line.ttl, line.ttl_at)
        return ItemToEnqueue(where, len(stored), from_json(line.value, codec), terms, line.rank)
    except (msgspec.DecodeError, RecursionError, CodecError, ItemTooLarge, ValueError) as error:
        raise BadValue(f"{where}This is not an item's record: {error}") from error


def enqueue_records(
    db: Database, leases: Leases, records: Iterable[ItemToEnqueue], terms: ItemTerms, way: Way | None = None
) -> Iterator[list[Any]]:
    """Enqueue records in their order, batch by batch, each exactly once. Yield what was enqueued by each batch.

    Args:
        leases: the leases of the queue.
        terms: the terms for records that do not have their own.
        way: how they are enqueued; None: by the leases.

    Raises:
        BadValue: a record can't be enqueued; nothing of its batch was.
    """
    way = way or Way(leases.enqueue.steps)
    for batch in _batches(records):
        try:
            entered = run(leases.queue.transact(db, partial(_append, leases=leases, batch=batch, terms=terms, way=way)))
        except KeyboardInterrupt as stop:
            note_interrupt(stop, len(batch))
            raise
        yield entered


async def _append(tr: Transaction, leases: Leases, batch: list[ItemToEnqueue], terms: ItemTerms, way: Way) -> list[Any]:
    entered = []
    if way.begin is not None:
        await way.begin(tr)
    for one in batch:
        arguments = one.terms.over(terms).arguments(leases.clock())
        try:
            _check_rank(one, leases.queue.rank(one.value, arguments["headers"]))
            entered.append(await way.enqueue(tr, one.value, **arguments))
        except NestedQueue:
            raise  # it is about the queue, and not about this value
        except (CodecError, ItemTooLarge, ValueError) as error:
            raise BadValue(f"{one.where}{error}") from error
    return entered


def _check_rank(record: ItemToEnqueue, here: int | None) -> None:
    if record.rank is None or record.rank == here:
        return
    if here is None:
        told = "this queue has no order: name the levels of the queue that the record comes from, as in --levels 3"
    else:
        told = f"would get the rank {here} here: give it the header 'priority', or the queue the same levels"
    raise ValueError(f"The record has the rank {record.rank}, and {told}. Or take the rank out: jq -c 'del(.rank)'.")


def _batches(records: Iterable[ItemToEnqueue]) -> Iterator[list[ItemToEnqueue]]:
    batch: list[ItemToEnqueue] = []
    size = 0
    for one in records:
        if batch and (len(batch) >= BATCH_ITEMS or size + one.size_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size_bytes
    if batch:
        yield batch
