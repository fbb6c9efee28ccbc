"""Arrow: all items of a queue as a table, and tables as items."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any, cast

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import CodecError, Position, Queue, StreamError
from fdbqueue.arrow.columns import parsed
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases, Levels, PriorityQueue, Sessions
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.stored.items import envelope
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.raw import raw

ROWS = [{"sku": "teapot", "n": 1}, {"sku": "cup", "n": 2}, {"sku": None, "n": 3}]
TABLE = pa.table({"sku": ["teapot", "cup", None], "n": [1, 2, 3]})


def tables() -> dict[str, Any]:
    """Return the same rows as tables of several libraries."""
    return {
        "pyarrow": TABLE,
        "batch": TABLE.to_batches()[0],
        "reader": TABLE.to_reader(),
        "pandas": pd.DataFrame(ROWS, index=["a", "b", "c"]),
        "polars": pl.DataFrame(ROWS),
        "duckdb": duckdb.from_arrow(TABLE),
    }


def values(db: Any, queue: Queue) -> list[Any]:
    return [item.value for item in queue.browse(db)]


def test_a_table_has_every_item_of_every_state_once_in_order(db: Any, space: Subspace) -> None:
    queue, clock = Queue(space, codec="json"), Clock(float(int(time.time())))  # streams have the wall clock
    leases = Leases(queue, max_attempts=1, clock=clock)
    positions = [
        leases.enqueue(db, {"n": number}, delay=100 if number == 6 else None, ttl=500, headers={"n": number, "t": "x"})
        for number in range(8)
    ]
    Stream(queue, "s").claim(db, Terms(epoch="e", batch=1, run="", items=1, size_bytes=100))
    dead = leases.lease(db, consumer="ann")
    assert dead is not None
    leases.nack(db, dead, error="no such user")
    assert leases.lease(db, consumer="bob", duration=30) is not None
    table = queue.to_arrow(db)
    assert table.column("position").to_pylist() == [position.text for position in positions]
    states = ["claimed", "dead", "leased", "available", "available", "available", "delayed", "available"]
    assert table.column("state").to_pylist() == states
    now = datetime.fromtimestamp(clock(), UTC)
    died, leased, delayed = (table.slice(at, 1).to_pylist()[0] for at in (1, 2, 6))
    assert (died["error"], died["consumer"], died["attempts"], died["died_at"]) == ("no such user", "ann", 1, now)
    assert (leased["consumer"], (leased["lease_expires_at"] - now).seconds) == ("bob", 30)
    assert ((delayed["visible_at"] - now).seconds, (delayed["ttl_at"] - now).seconds) == (100, 500)
    assert delayed["headers"] == [("n", "6"), ("t", "x")]
    assert delayed["value"] == '{"n":6}'
    assert table.column("consumer")[0].as_py() == "s"
    assert queue.to_arrow(db, states=["dead", "delayed"]).num_rows == 2


def test_plain_items_and_pages_of_any_size_are_whole(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    for amount in 0, 1, 99, 100, 101, 350:
        queue.clear(db)
        queue.enqueue_many(db, map(str, range(amount)))
        assert queue.to_arrow(db).column("value").to_pylist() == [*map(str, range(amount))]
        assert queue.to_arrow_batches(db, limit=70).read_all().num_rows == min(amount, 70)


def test_borders_columns_and_transactions(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    first = [queue.enqueue(db, b"%d" % number) for number in range(5)]
    between = queue.to_arrow(db, after=first[0], before=first[3], columns=["value", "index"])
    assert between.to_pylist() == [{"value": b"1", "index": 2}, {"value": b"2", "index": 3}]
    tr = db.create_transaction()
    queue.enqueue(tr, b"mine")
    assert queue.to_arrow(tr).num_rows == 6
    assert asyncio.run(queue.to_arrow.aio(db)).num_rows == 5
    tr.cancel()


def test_pandas_and_polars_get_the_same(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue_many(db, [1, 2, 3])
    assert queue.to_pandas(db)["value"].to_list() == queue.to_polars(db)["value"].to_list() == ["1", "2", "3"]
    assert list(queue.to_pandas(db, columns=["state"]).columns) == ["state"]


def test_large_payloads_and_blobs_are_shown_as_in_sparks_look(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue(db, b"x" * 1_200_000)
    with Blobs(Leases(queue)).write(db) as file:
        file.write(bytes(1_200_000))
    assert queue.to_arrow(db).column("value").to_pylist() == [b"x" * 1_200_000, None]


def test_an_item_that_can_not_be_read_is_named_or_shown_without_its_value(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    for stored in b"1", b"{", b"\xff":
        raw(space).enqueue(db, stored)
    with pytest.raises(CodecError, match=r"The item 2:.* does not decode by the codec json.*on_bad='null'"):
        queue.to_arrow(db)
    assert queue.to_arrow(db, on_bad="null").column("value").to_pylist() == ["1", None, None]
    assert Queue(space).to_arrow(db).column("value").to_pylist() == [b"1", b"{", b"\xff"]


def test_texts_of_json_are_checked_each_by_itself(db: Any, space: Subspace) -> None:
    for stored in ([b"[1,", b"2]"], [b"[1,", b"2]", b"3 4"], [b"1", b"", b"2"], [b"1\n2", b"3"], [b'"a', b'b"']):
        queue = Queue(space[len(stored)][stored[0]], codec="json")
        raw(queue.layout.space).enqueue_many(db, stored)
        with pytest.raises(CodecError, match="does not decode by the codec json"):
            queue.to_arrow(db)
    queue = Queue(space["good"], codec="json")
    raw(queue.layout.space).enqueue_many(db, [b"[1,\n2]", b" 3 ", b'"\xc3\xa4"'])
    assert queue.to_arrow(db).column("value").to_pylist() == ["[1,\n2]", " 3 ", '"\xe4"']


def test_a_queue_with_items_in_sessions_is_refused(db: Any, space: Subspace) -> None:
    Sessions(Queue(space)).enqueue(db, b"x", session="ann")
    with pytest.raises(StreamError, match=r"to_arrow does not see these.*layers\.Sessions"):
        Queue(space).to_arrow(db)


@given(
    st.lists(
        st.builds(
            Position,
            st.integers(0, 2**63 - 1) | st.integers(0, 600),
            st.binary(max_size=9) | st.just(b"8 bytes."),
            rank=st.none() | st.integers(0, 300),
        ),
        max_size=20,
    ),
    st.binary(max_size=3),
)
def test_many_positions_are_parsed_as_each_of_them(positions: list[Position], prefix: bytes) -> None:
    found = parsed([prefix + pack(position) for position in positions], len(prefix))
    assert found.text.to_pylist() == [position.text for position in positions]
    assert found.rank.to_pylist() == [position.rank for position in positions]
    assert found.index.to_pylist() == [position.index for position in positions]


@pytest.mark.parametrize("first", [1, 95, 100, 990, 99_990, 2**40])
@pytest.mark.parametrize("random", [b"8 bytes.", b"12345678", b"short"])
def test_the_positions_of_one_load_have_their_own_texts(first: int, random: bytes) -> None:
    positions = [Position(first + at, random) for at in range(20)]
    assert parsed([pack(position) for position in positions]).text.to_pylist() == [one.text for one in positions]


def test_items_are_taken_out_as_a_batch(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    Leases(queue).enqueue_many(db, [1, 2, 3], headers={"a": "b"})
    batch = queue.dequeue_arrow(db, limit=2)
    assert batch.column("value").to_pylist() == ["1", "2"]
    assert batch.column("headers").to_pylist() == [[("a", "b")]] * 2
    tr = db.create_transaction()
    assert queue.dequeue_arrow(tr).num_rows == 1
    assert queue.dequeue_arrow(tr).num_rows == 0
    tr.cancel()
    assert values(db, queue) == [3]


def test_a_batch_with_an_item_that_can_not_be_read_takes_nothing(db: Any, space: Subspace) -> None:
    raw(space).enqueue_many(db, [b"1", b"{"])
    with pytest.raises(CodecError, match="does not decode"):
        Queue(space, codec="json").dequeue_arrow(db)
    assert Queue(space).stats(db).available == 2


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("library", ["pyarrow", "batch", "reader", "pandas", "polars", "duckdb"])
def test_the_rows_of_a_table_are_items(db: Any, space: Subspace, library: str, inside: bool) -> None:
    queue = Queue(space, codec="json")
    if inside:
        fdbqueue.transactional(lambda tr: queue.enqueue_many(tr, tables()[library]))(db)
    else:
        assert queue.enqueue_many(db, tables()[library]).items == 3
    assert values(db, queue) == ROWS


def test_a_column_of_a_table_or_a_series_is_items(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, TABLE.slice(0, 2), column="sku")
    queue.enqueue_many(db, pd.Series(["plate"]))
    queue.enqueue_many(db, pl.Series(["fork"]))
    queue.enqueue_many(db, pa.chunked_array([["knife"], ["spoon"]]))
    assert values(db, queue) == ["teapot", "cup", "plate", "fork", "knife", "spoon"]


@pytest.mark.parametrize("codec", ["json", "msgpack", "tuple"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_table_gives_the_same_items_as_its_rows(db: Any, space: Subspace, codec: str, ordered: bool) -> None:
    table = pa.table(
        {
            "text": ["a", "é\n", None],
            "big": pa.array([2**63, 0, None], pa.uint64()),
            "part": [0.1, None, -1e300],
            "yes": [True, None, False],
            "void": pa.nulls(3),
            **({} if codec == "tuple" else {"list": [[1, 2], None, []], "map": [{"a": 1}, None, {"a": 2}]}),
        }
    )
    order = Levels(2) if ordered else None
    one, other = Queue(space["one"], codec=codec, order=order), Queue(space["other"], codec=codec, order=order)
    one.enqueue_many(db, table)
    records = table.to_pylist()
    other.enqueue_many(db, [tuple(row.values()) for row in records] if codec == "tuple" else records)
    assert values(db, one) == values(db, other)
    stored = [[row.value for row in db.get_range(q.layout.begin, q.layout.end)] for q in (one, other)]
    assert stored[0] == stored[1]


def test_a_large_table_is_many_transactions(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    report = queue.enqueue_many(db, pa.table({"n": range(6_001)}))
    assert (report.items, report.transactions > 1) == (6_001, True)
    assert queue.to_arrow(db).column("value")[6_000].as_py() == '{"n":6000}'


def test_a_column_with_values_of_all_sizes_is_items(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    sizes = [10, 200_000, 0, *[1_500] * 1_000, 90_001, 700_000, 700_000, 3]
    report = queue.enqueue_many(db, pa.table({"data": [b"x" * size for size in sizes]}), column="data")
    assert (report.items, report.size_bytes) == (len(sizes), sum(sizes))
    assert [len(value) for value in values(db, queue)] == sizes


def test_rows_have_headers_delays_lives_and_priorities_of_their_own(db: Any, space: Subspace) -> None:
    table = pa.table(
        {
            "value": ["a", "b", "c"],
            "headers": [{"x": 1}, None, {"x": 3}],
            "delay": [None, 5.0, 0.0],
            "ttl": [60, None, 61],
            "priority": [2, 0, None],
        }
    )
    clock = Clock()
    leases = Leases(Queue(space["leases"], codec="str"), clock=clock)
    named: dict[str, Any] = {"headers_column": "headers", "delay_column": "delay", "ttl_column": "ttl"}
    leases.enqueue_many(db, table, column="value", ttl=70, **named)
    seen = leases.queue.to_arrow(db, columns=["value", "state", "headers", "ttl_at"]).to_pylist()
    now = datetime.fromtimestamp(clock(), UTC)
    assert [(row["value"], row["state"], row["headers"], (row["ttl_at"] - now).seconds) for row in seen] == [
        ("a", "available", [("x", "1")], 60),
        ("b", "delayed", None, 70),
        ("c", "available", [("x", "3")], 61),
    ]
    jobs = PriorityQueue(Queue(space["jobs"], codec="str"), levels=3)
    jobs.enqueue_many(db, table.to_pandas(), column="value", priority_column="priority", priority=1)
    assert [(item.value, item.headers["priority"]) for item in jobs.browse(db)] == [("b", 0), ("c", 1), ("a", 2)]
    assert jobs.check(db).ok
    assert leases.check(db).ok


def test_what_a_table_can_not_give_is_refused_before_any_key_is_touched(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    leases, jobs = Leases(queue), PriorityQueue(queue, levels=3)
    untyped: Any = queue
    twice = pa.table([[1], [2]], names=["a", "a"])
    tr = db.create_transaction()
    for call, kind, told in (
        (lambda: queue.enqueue_many(tr, TABLE, column="x"), ValueError, "'x' is no column of the table.*'sku', 'n'"),
        (lambda: queue.enqueue_many(tr, ROWS, column="n"), TypeError, "list is no table"),
        (lambda: untyped.enqueue_many(tr, TABLE, column=7), TypeError, "column is the name of a column, a str, not 7"),
        (lambda: untyped.enqueue_many(tr, TABLE, delay_column="n"), TypeError, r"Leases\(queue\).enqueue_many has it"),
        (lambda: cast(Any, leases).enqueue_many(tr, TABLE, priority_column="n"), TypeError, r"PriorityQueue\(queue\)"),
        (lambda: queue.enqueue_many(tr, twice), ValueError, "Two columns have the same name"),
        (lambda: queue.enqueue_many(tr, twice, column="a"), ValueError, "more than one column"),
        (lambda: Queue(space, codec="str").enqueue_many(tr, TABLE), ValueError, "takes no rows.*column='sku'"),
        (lambda: Queue(space, codec="str").enqueue_many(tr, TABLE, column="sku"), CodecError, "not NoneType"),
        (lambda: queue.enqueue_many(tr, pa.table({"x": [float("nan")]})), CodecError, "can't keep"),
        (lambda: queue.enqueue_many(tr, pa.table({"x": [datetime(2020, 1, 1)]})), CodecError, "can't keep"),
        (lambda: leases.enqueue_many(tr, TABLE, delay_column="sku"), TypeError, "delay is a number of seconds"),
        (lambda: leases.enqueue_many(tr, TABLE, column="n", ttl_column="n"), ValueError, "One column has one meaning"),
        (lambda: leases.enqueue_many(tr, TABLE, headers_column="n"), CodecError, "Headers are a mapping"),
        (lambda: jobs.enqueue_many(tr, TABLE, priority_column="n"), ValueError, "from 0 to 2, not 3"),
        (lambda: Sessions(queue).enqueue_many(tr, TABLE, session="s"), TypeError, r"Give table.to_pylist\(\)"),
    ):
        with pytest.raises(kind, match=told):
            call()
    tr.cancel()
    assert list(db.get_range_startswith(space.key())) == []


def test_a_damaged_item_is_shown_without_its_value_only_when_asked(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    position = queue.enqueue(db, b"x")
    for stored in b"", b"\x15\x00\x09", envelope(b"", {"a": 1})[:4]:
        db[queue.layout.item_key(position)] = stored
        with pytest.raises(fdbqueue.FormatError):
            queue.to_arrow(db)
        assert queue.to_arrow(db, on_bad="null").column("value").to_pylist() == [None]


def test_without_pyarrow_the_error_names_the_extra() -> None:
    code = """if True:
        import sys
        sys.modules["pyarrow"] = None
        import fdbqueue
        with fdbqueue.open("memory:") as db:
            orders = fdbqueue.Queue("orders")
            class Table:
                def __arrow_c_stream__(self, requested_schema=None): ...
            for call in (lambda: orders.to_arrow(db), lambda: orders.dequeue_arrow(db),
                         lambda: orders.to_arrow_batches(db), lambda: orders.enqueue_many(db, Table())):
                try:
                    call()
                except ModuleNotFoundError as error:
                    print(error)
        """
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(told) == 4
    assert all("needs pyarrow: pip install 'fdbqueue[arrow]'" in line for line in told)
