"""Every decoder of stored bytes reads them or says clearly that it can't, whatever they are, and in bounded time."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import FormatError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.errors import FdbQueueError, OrderError
from fdbqueue.layers.leases import Lease, LeaseHandle, Leases, State
from fdbqueue.layers.oplog._records import Change, pack_record, unpack_record
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.staged.requests import Requests, Wish
from fdbqueue.layers.streams.records import decode as decode_record
from fdbqueue.layers.streams.records import encode
from fdbqueue.spark.partition_log import JobHeader, JobOutcome, JobRecord
from fdbqueue.stored.items import (
    NO_NOTES,
    Chunked,
    Notes,
    envelope,
    has_notes,
    is_chunked,
    join_chunks,
    notes_of,
    parse,
    size_of,
    with_notes,
)
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import Place, pack
from fdbqueue.stored.settings import HighWaterMark

NOTED = with_notes(
    envelope(b"payload", {"a": "b"}),
    Notes(attempt=3, token=b"8 bytes!", expires_at_us=1 << 50, consumer="c", error="no", ttl_at_us=1 << 50),
)
HEADER = JobHeader(
    delivery="exactlyOnce",
    partitions=3,
    codec="bytes",
    value_column="v",
    queue_column=None,
    headers_column=None,
    columns=(("v", "binary"),),
)
OUTCOME = JobOutcome(committed_us=1, partitions=3, rows=9, skipped=0, attempts=3, size_bytes=99)
JOB = encode(JobRecord(header=HEADER, started_us=1, outcome=OUTCOME))
RECORD = pack_record("me", "ack#1", b"digest", (1, 2), (3, 4), [Change("set", b"key", b"param", b"notes", b"content")])
WISH = msgspec.msgpack.encode(Wish(b"client", 3, 1 << 50, 5, "consumer"))
GRANT = msgspec.msgpack.encode([1 << 50, [[7, b"random", b"token"]]])
QUEUE = Queue("fuzzed")
REQUESTS = Requests(QUEUE.layout)


def both(stored: bytes) -> None:
    """Everything that looks at an item's stored bytes."""
    size_of(stored), has_notes(stored), is_chunked(stored)
    notes_of(stored)
    with_notes(stored, NO_NOTES)
    with_notes(stored, Notes(attempt=1))
    parse(stored)


DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "an item": (both, NOTED),
    "a large item": (both, envelope(bytes(100_000), {"a": 1})),
    "a job's record": (lambda stored: decode_record(JobRecord, stored, "a job"), JOB),
    "a record of the operation log": (partial(unpack_record, bytes(10)), RECORD),
    "a request": (partial(REQUESTS.wish_in, b"key"), WISH),
    "a grant": (partial(REQUESTS.granted, b"client"), GRANT),
    "the high-water mark": (HighWaterMark.stored, b"\xff" + bytes(8) + b"priority"),
}
decoders = pytest.mark.parametrize(("decode", "good"), DECODERS.values(), ids=DECODERS.keys())

NASTY = [
    b"\x91" * 5_000,  # nested without end
    b"\x81\xa1a" + b"\x91" * 5_000,
    b"\x81\xa1c\xa1\xff",  # text that is none
    b"\x81\xa1\xff\x01",
    b"\xdf\xff\xff\xff\xff",  # sizes far beyond what is there
    b"\x81\xa1a\xc6\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x81\xa1e\xcf" + b"\xff" * 8,
]


def refuses_or_reads(decode: Callable[[bytes], Any], stored: bytes) -> None:
    try:
        decode(stored)
    except FdbQueueError:
        return  # the others are none that a caller can expect


@decoders
@given(data=st.data())
def test_truncated_changed_and_swapped_bytes(decode: Callable[[bytes], Any], good: bytes, data: st.DataObject) -> None:
    stored = bytearray(good)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(stored) - 1))
        match data.draw(st.sampled_from(["change", "swap", "insert", "remove"])):
            case "change":
                stored[at] = data.draw(st.integers(0, 255))
            case "swap":
                other = data.draw(st.integers(0, len(stored) - 1))
                stored[at], stored[other] = stored[other], stored[at]
            case "insert":
                stored[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case "remove" if len(stored) > 1:
                del stored[at]
    refuses_or_reads(decode, bytes(stored[: data.draw(st.integers(0, len(stored)))]))


@decoders
@given(stored=st.binary(max_size=60))
def test_foreign_bytes(decode: Callable[[bytes], Any], good: bytes, stored: bytes) -> None:
    refuses_or_reads(decode, stored)
    refuses_or_reads(decode, good[:1] + stored)


@decoders
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_deep_nesting_bad_text_and_huge_sizes_are_refused(
    decode: Callable[[bytes], Any], good: bytes, nasty: bytes
) -> None:
    refuses_or_reads(decode, nasty)
    refuses_or_reads(decode, good[:1] + nasty)
    refuses_or_reads(decode, b"\x11" + struct.pack(">I", len(nasty)) + nasty)
    refuses_or_reads(decode, b"\x14" + struct.pack(">H", len(nasty)) + nasty)


@given(size=st.integers(0, 1 << 32), crc=st.integers(0, 1 << 32), chunks=st.lists(st.binary(max_size=9), max_size=3))
def test_chunks_that_are_not_the_items_are_noticed(size: int, crc: int, chunks: list[bytes]) -> None:
    refuses_or_reads(lambda _: join_chunks(Chunked(size, crc), chunks), b"")


@given(text=st.text(max_size=30) | st.from_regex(r"[0-9:a-f]{0,30}"))
def test_written_handles_and_positions_are_read_or_refused(text: str) -> None:
    for read in (LeaseHandle.parse, Position.parse):
        with contextlib.suppress(ValueError):
            read(text)


FOREIGN = [b"", b"\x00", b"foreign", b"\x20a newer item", b"\x11\xff\xff\xff\xff", b"\x14\x00\x05\x81\xa1c\xa1\xff"]
FOREIGN_PLACE = pack(Position(0, b"foreign"))
PLACES = ("available", "leased", "delayed", "dead")
STATES: tuple[State, ...] = ("available", "leased", "delayed", "dead")


def foreign_key(queue: Queue, where: str) -> bytes:
    """Return a key of the queue's where somebody else writes; among the items in front of all others."""
    layout = queue.layout
    match where:
        case "request":
            request: bytes = layout.requests.key() + b"\x33" + bytes(12)
            return request
        case "grant":
            grant: bytes = layout.grants.pack((b"somebody",))
            return grant
        case "once":
            mark: bytes = layout.markers.pack((b"somebody", 1))
            return mark
        case place:
            return place_of(queue, place).key(FOREIGN_PLACE)


def place_of(queue: Queue, name: str) -> Place:
    place: Place = getattr(queue.layout, name)
    return place


@pytest.mark.parametrize("foreign", FOREIGN, ids=range(len(FOREIGN)))
@pytest.mark.parametrize("where", [*PLACES, "request", "grant", "once"])
def test_foreign_bytes_in_a_queue_are_reported_and_lose_no_item(
    db: Any, space: Subspace, where: str, foreign: bytes
) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    staged = StagedQueue(leases)
    queue.enqueue(db, "good")
    key = foreign_key(queue, where)
    db[key] = foreign
    told: list[str] = []
    calls: list[Callable[[], Any]] = [
        lambda: leases.reclaim(db),
        lambda: list(queue.browse(db)),
        lambda: [list(leases.browse(db, state=state)) for state in STATES],
        lambda: leases.dead.redrive(db),
        lambda: leases.dead.purge(db, older_than=1e9),
        lambda: leases.stats(db),
        lambda: staged.stats(db),
        lambda: staged.lease(db),
        lambda: queue.peek(db),
        lambda: queue.dequeue(db),
    ]
    for call in calls:
        try:
            call()
        except FormatError as error:
            told.append(str(error))
    told += staged.check(db).problems

    assert told or where == "once"
    # A redrive moves dead letters whose notes can be read, whatever else is wrong with them.
    keys = [key, *(place_of(queue, place).key(FOREIGN_PLACE) for place in PLACES)]
    assert foreign in [db[key] for key in keys]
    for key in keys:
        db.clear(key)
    left = [item.value for state in STATES for item in leases.browse(db, state=state)]
    assert left == ["good"] or (left == [] and queue.stats(db).dequeued == 1)


KEYS: dict[str, Callable[[Layout], tuple[bytes, bytes]]] = {
    "a timer at no time": lambda layout: (layout.timers.pack(("x",)), b""),
    "a timer of nothing": lambda layout: (layout.timers.pack((1, 2)), b""),
    "a timer that is no tuple": lambda layout: (layout.timers.key() + b"\x15\x01\xfe", b""),
    "a counter of nine bytes": lambda layout: (layout.count_key("expired"), bytes(9)),
    "a level's counter of one byte": lambda layout: (layout.level_counts.pack((1,)), b"a"),
}


@pytest.mark.parametrize("foreign", KEYS.values(), ids=KEYS.keys())
def test_foreign_keys_in_a_queue_are_reported_and_block_no_consumer(
    db: Any, space: Subspace, foreign: Callable[[Layout], tuple[bytes, bytes]]
) -> None:
    queue = Queue(space, codec="str")
    leases = Leases(queue)
    staged = StagedQueue(leases)
    key, value = foreign(queue.layout)
    db[key] = value
    told: list[str] = []
    taken = []
    calls: list[Callable[[], Any]] = [
        lambda: queue.enqueue(db, "good"),
        lambda: leases.lease(db),
        lambda: staged.lease(db),
        lambda: leases.reclaim(db),
        lambda: leases.stats(db),
        lambda: told.extend(staged.check(db).problems),
    ]
    for call in calls:
        try:
            taken.append(call())
        except (FormatError, OrderError) as error:
            told.append(str(error))
    assert told
    assert db.get(key) is not None
    assert "good" in [got.value for got in taken if isinstance(got, Lease)]
