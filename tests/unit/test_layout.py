"""The keys are the official tuple encoding's, however fast they are made."""

from __future__ import annotations

import gzip
import json
import pickle
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import FormatError, Queue
from fdbqueue.base.position import Position
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.layers.smart.admitting import DEPENDENT_NAMES_BYTES
from fdbqueue.layers.smart.scanning import deadline_parts
from fdbqueue.layers.subscriptions.records import DISPATCHER
from fdbqueue.moves.moves import announce
from fdbqueue.spark.partition_log import MAX_JOB_ID_BYTES, JobKeys
from fdbqueue.stored.key_table import OTHERS, TABLE, is_own
from fdbqueue.stored.layout import APPENDED_BYTES, CATALOGUE, MAX_KEY_BYTES, Layout, Name
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import NAME_BYTES, Due

STORED = Path(__file__).parent.parent / "data" / "stored-ed71ef0.json.gz"
"""Rows of a queue of every kind, with items in every state."""
indices = st.one_of(st.integers(0, 300), st.integers(0, 2**62))
randoms = st.binary(max_size=12)
plain = st.builds(Position, indices, randoms)
ranked = st.builds(Position, indices, randoms, rank=indices)
positions = plain | ranked


def parts(position: Position) -> tuple[int | bytes, ...]:
    rank = () if position.rank is None else (position.rank,)
    return (*rank, position.index, position.random)


@given(position=positions)
def test_an_items_key_is_the_tuple_of_queue_index_and_random_with_its_rank_in_front_if_it_has_one(
    position: Position,
) -> None:
    layout = Layout("q")
    key = layout.item_key(position)
    assert key == fdb_tuple.pack(("q", *parts(position)))
    assert layout.position_of(key) == position
    assert layout.index_of(key) == (position.index if position.rank is None else None)
    assert Position.parse(position.text) == position


@given(index=indices, random=randoms, ranks=st.none() | st.lists(indices), amount=st.integers(0, 600))
def test_keys_made_in_bulk_are_those_made_one_by_one(
    index: int, amount: int, random: bytes, ranks: list[int] | None
) -> None:
    layout = Layout(("a", 1))
    amount = amount if ranks is None else len(ranks)
    assert list(layout.item_keys(index, amount, random, ranks)) == [
        layout.item_key(Position(index + n, random, rank=None if ranks is None else ranks[n])) for n in range(amount)
    ]


@given(positions=st.lists(plain) | st.lists(ranked))
def test_positions_sort_as_their_keys_do(positions: list[Position]) -> None:
    layout = Layout(b"q")
    assert [layout.item_key(p) for p in sorted(positions)] == sorted(layout.item_key(p) for p in positions)


@given(position=ranked)
def test_a_level_is_a_standard_queue_in_a_subspace_of_its_own(position: Position) -> None:
    layout = Layout("q")
    assert position.rank is not None
    level = Layout(("q", position.rank))
    assert layout.item_key(position) == level.item_key(Position(position.index, position.random))
    assert layout.level(position.rank) == (level.begin, level.end)


@given(key=st.binary(max_size=20))
def test_a_key_among_the_items_has_a_position_or_is_refused(key: bytes) -> None:
    layout = Layout("q")
    with suppress(FormatError):
        assert layout.item_key(layout.position_of(layout.begin + key)) == layout.begin + key
    with suppress(FormatError):
        layout.index_of(layout.begin + key)


@given(position=positions)
def test_every_key_is_in_the_queues_range_and_only_items_are_in_theirs(position: Position) -> None:
    layout = Layout(Subspace(("q",)))
    begin, end = layout.whole_range()
    item = layout.item_key(position)
    others = [layout.chunk_key(position, 3), layout.count_key("enqueued"), layout.markers.key(), layout.jobs.key()]
    assert layout.begin <= item < layout.end
    assert all(begin <= key < end and not layout.begin <= key < layout.end for key in others)
    chunk_begin, chunk_end = layout.chunk_range(position)
    assert chunk_begin <= layout.chunk_key(position, 0) < layout.chunk_key(position, 300) < chunk_end
    assert layout.chunk_key(position, 300) == fdb_tuple.pack(("q", "chunk", *parts(position), 300))
    assert layout.chunk_of(layout.chunk_key(position, 300)) == position


@given(position=positions, name=st.sampled_from(["lease", "delay", "dead"]))
def test_an_item_has_the_same_packed_position_in_every_place(position: Position, name: str) -> None:
    layout = Layout("q")
    place = {"lease": layout.leased, "delay": layout.delayed, "dead": layout.dead}[name]
    key = place.key(pack(position))
    assert key == fdb_tuple.pack(("q", name, *parts(position)))
    assert place.begin <= key < place.end
    assert place.position(key) == position
    assert layout.available.key(place.packed(key)) == layout.item_key(position)
    assert layout.chunk_range_of(place.packed(key)) == layout.chunk_range(position)


@given(
    position=positions,
    kind=st.sampled_from([Due.LEASE, Due.DELAY, Due.TTL]),
    at_us=st.integers(1, 2**62 - 1),
    now_us=st.integers(0, 2**62),
)
def test_timers_sort_by_their_time_and_are_due_when_it_has_come(
    position: Position, kind: str, at_us: int, now_us: int
) -> None:
    layout = Layout(("q", 1))
    key = layout.timer_key(at_us, pack(position), kind)
    assert key == fdb_tuple.pack(("q", 1, "timer", at_us, *parts(position), kind))
    assert layout.timer_of(key) == (at_us, position, kind)
    begin, end = layout.timers_until(now_us)
    assert (begin <= key < end) == (at_us <= now_us)


def test_a_bad_name_is_refused() -> None:
    with pytest.raises(TypeError, match="named by a str"):
        Layout(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty prefix"):
        Layout(Subspace())


LONGEST = "n" * (MAX_KEY_BYTES - APPENDED_BYTES - 2)  # with the two bytes around a text


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (LONGEST + "n", "7,901"),
        (LONGEST.encode() + b"\0", "7,902"),
        (("app", LONGEST), "7,905"),
        (Subspace((LONGEST, 1)), "7,902"),
    ],
)
def test_a_name_that_is_too_long_for_a_key_is_refused_with_the_sizes(name: Name, size: str) -> None:
    with pytest.raises(ValueError, match=f"has {size} bytes as a key. The limit is 7,900"):
        Queue(name)


def test_the_longest_names_make_keys_that_a_database_takes() -> None:
    layout = Layout(LONGEST)
    last = Position(2**63 - 1, bytes(8), rank=2**63 - 1)
    packed, at_us = pack(last), 2**63 - 1
    job = JobKeys(layout, "\0" * MAX_JOB_ID_BYTES)
    keys = [
        layout.item_key(last),
        layout.timer_key(at_us, packed, Due.DELAY),
        layout.chunk_key(last, 10_000),
        layout.held_key("\0" * NAME_BYTES["subscription"], packed),
        *layout.dependent_keys((bytes(DEPENDENT_NAMES_BYTES), *deadline_parts(layout, at_us)), packed),
        _arrival(layout, packed),
        job.owner(2**31),
        job.log_entry(2**31, 2**63 - 1),
    ]
    assert len(layout.prefix) == MAX_KEY_BYTES - APPENDED_BYTES
    assert max(map(len, keys)) <= MAX_KEY_BYTES
    assert max(map(len, keys)) > MAX_KEY_BYTES - 100, "or more is kept for them than they need"


def _arrival(layout: Layout, packed: bytes) -> bytes:
    noted: list[bytes] = []
    tr: Any = SimpleNamespace(
        set_versionstamped_key=lambda key, _: noted.append(key), add_write_conflict_range=print, add=print
    )
    announce(tr, layout, [(packed, packed)])
    return noted[0]


def test_every_key_that_is_stored_has_a_row_in_the_table() -> None:
    packed = [row.packed for row in (*TABLE.values(), *OTHERS)]
    stored = [bytes.fromhex(key) for key, _ in json.loads(gzip.decompress(STORED.read_bytes()))]
    queues = [key.removeprefix(CATALOGUE) for key in stored if key.startswith(CATALOGUE)]
    met = set()
    for key in stored:
        queue = max((one for one in queues if key.startswith(one)), key=len, default=None)
        if queue is None:
            continue
        begins = [one for one in packed if key[len(queue) :].startswith(one)]
        assert is_own(key[len(queue) :]), key
        met.update(begins)
    assert len(met) > 20


def test_an_attribute_that_no_row_makes_is_none() -> None:
    with pytest.raises(AttributeError, match="'Layout' object has no attribute 'lease'"):
        Layout("q").lease  # type: ignore[attr-defined]  # noqa: B018
    assert pickle.loads(pickle.dumps(Layout("q"))).leased.begin == Layout("q").leased.begin


def test_the_pointer_of_the_dispatcher_is_no_foreign_key() -> None:
    layout = Layout("orders")

    assert layout.parts("pointers", layout.pointers.pack((DISPATCHER,))) == (DISPATCHER,)
    assert layout.parts("pointers", layout.pointers.pack(("all",))) == ("all",)
    assert layout.parts("pointers", layout.pointers.pack((7,))) is None
