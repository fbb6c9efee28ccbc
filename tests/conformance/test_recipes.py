"""The data models that FoundationDB's documentation teaches, each in a few lines over `fdbqueue.engine` alone.

They are what people build first: whoever has written one of them for a cluster finds it working here. The ideas are
those of the eight Python recipes beside FoundationDB (blob, document, graph, indirection, multimap, priority, queue,
table); the lines are our own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fdbqueue.engine import KeySelector, Subspace, Transaction, transactional
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.engine.directory import DirectoryLayer

PIECE = 10
ONE, MINUS_ONE = (1).to_bytes(8, "little"), b"\xff" * 8


# -- a large value in pieces -----------------------------------------------------------------------------------------


@transactional
def write_blob(tr: Transaction, space: Subspace, data: bytes) -> None:
    del tr[space.range()]
    for at in range(0, len(data), PIECE):
        tr[space[at]] = data[at : at + PIECE]


@transactional
def read_blob(tr: Transaction, space: Subspace, first: int, last: int) -> bytes:
    begin = tr.get_key(KeySelector.last_less_or_equal(space[first]))
    pieces = [(space.unpack(row.key)[0], row.value) for row in tr[begin : space[last]]]
    start = pieces[0][0]
    return b"".join(piece for _, piece in pieces)[first - start : last - start]


def test_a_blob_is_read_in_parts_from_anywhere(db: Any, space: Subspace) -> None:
    data = os.urandom(95)
    write_blob(db, space, os.urandom(300))
    write_blob(db, space, data)
    assert read_blob(db, space, 0, 95) == data
    assert read_blob(db, space, 37, 62) == data[37:62]


# -- documents -------------------------------------------------------------------------------------------------------


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Give the paths to what is no mapping, and what is there."""
    if not isinstance(document, dict):
        yield path, document
        return
    for name, inside in document.items():
        yield from leaves(inside, (*path, name))


@transactional
def store_document(tr: Transaction, space: Subspace, document: Any) -> None:
    for path, leaf in leaves(document):
        tr[space.pack(path)] = fdb_tuple.pack((leaf,))


@transactional
def load_document(tr: Transaction, space: Subspace, *path: Any) -> Any:
    whole: dict[Any, Any] = {}
    for row in tr.get_range_startswith(space.pack(path)):
        inner = space.unpack(row.key)[len(path) :]
        (leaf,) = fdb_tuple.unpack(row.value)
        if not inner:
            return leaf
        place = whole
        for name in inner[:-1]:
            place = place.setdefault(name, {})
        place[inner[-1]] = leaf
    return whole


def test_a_document_is_loaded_whole_and_by_paths(db: Any, space: Subspace) -> None:
    order = {
        "id": 7,
        "to": {"name": "Ann", "city": "Graz"},
        "lines": {0: {"sku": "a", "n": 2}, 1: {"sku": "b", "n": 1}},
    }
    store_document(db, space, order)
    assert load_document(db, space) == order
    assert load_document(db, space, "lines", 1) == {"sku": "b", "n": 1}
    assert load_document(db, space, "to", "city") == "Graz"


# -- graphs ----------------------------------------------------------------------------------------------------------


@transactional
def connect(tr: Transaction, space: Subspace, one: str, other: str) -> None:
    tr[space["from"][one][other]] = b""
    tr[space["to"][other][one]] = b""


@transactional
def neighbours(tr: Transaction, space: Subspace, way: str, node: str) -> list[str]:
    return [space[way][node].unpack(row.key)[0] for row in tr[space[way][node].range()]]


def test_a_graph_is_walked_both_ways(db: Any, space: Subspace) -> None:
    for one, other in (("a", "b"), ("a", "c"), ("b", "c"), ("aa", "b")):
        connect(db, space, one, other)
    assert neighbours(db, space, "from", "a") == ["b", "c"]
    assert neighbours(db, space, "to", "b") == ["a", "aa"]


# -- indirection: what was built apart takes its place at a stroke ---------------------------------------------------


def test_a_directory_built_in_many_transactions_is_swapped_in_by_one(db: Any, space: Subspace) -> None:
    directories: Any = DirectoryLayer(node_subspace=space["nodes"], content_subspace=space["content"])
    db[directories.create_or_open(db, ("prices",))["apple"]] = b"old"
    fresh = directories.create(db, ("prices being built",))
    for fruit in ("apple", "pear"):
        db[fresh[fruit]] = b"new"

    @transactional
    def swap(tr: Transaction) -> None:
        directories.remove(tr, ("prices",))
        directories.move(tr, ("prices being built",), ("prices",))

    swap(db)
    prices = directories.open(db, ("prices",))
    assert [(prices.unpack(row.key)[0], row.value) for row in db[prices.range()]] == [
        ("apple", b"new"),
        ("pear", b"new"),
    ]


# -- multimaps -------------------------------------------------------------------------------------------------------


@transactional
def put_in(tr: Transaction, space: Subspace, name: str, value: str) -> None:
    tr.add(space[name][value], ONE)


@transactional
def take_out(tr: Transaction, space: Subspace, name: str, value: str) -> None:
    tr.add(space[name][value], MINUS_ONE)
    tr.compare_and_clear(space[name][value], bytes(8))


@transactional
def counts(tr: Transaction, space: Subspace, name: str) -> Counter[str]:
    return Counter(
        {space[name].unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in tr[space[name].range()]}
    )


def test_a_multimap_counts_without_a_read(db: Any, space: Subspace) -> None:
    for value in ("x", "y", "x", "x"):
        put_in(db, space, "a", value)
    first, second = db.create_transaction(), db.create_transaction()
    put_in(first, space, "a", "y")
    take_out(second, space, "a", "x")
    first.commit().wait()
    second.commit().wait()
    assert counts(db, space, "a") == {"x": 2, "y": 2}
    for _ in range(2):
        take_out(db, space, "a", "y")
    assert counts(db, space, "a") == {"x": 2}


# -- queues, with and without priorities -----------------------------------------------------------------------------


@transactional
def enqueue(tr: Transaction, space: Subspace, value: bytes) -> None:
    last = [space.unpack(row.key)[0] for row in tr.snapshot.get_range(*_ends(space), limit=1, reverse=True)]
    tr[space[last[0] + 1 if last else 0][os.urandom(8)]] = value


@transactional
def take_first(tr: Transaction, space: Subspace) -> bytes | None:
    for row in tr.get_range(*_ends(space), limit=1):
        del tr[row.key]
        return bytes(row.value)
    return None


def _ends(space: Subspace) -> tuple[bytes, bytes]:
    return space.range().start, space.range().stop


def test_a_queue_gives_out_in_the_order_it_took_and_lets_producers_meet(db: Any, space: Subspace) -> None:
    enqueue(db, space, b"1")
    first, second = db.create_transaction(), db.create_transaction()
    enqueue(first, space, b"2")
    enqueue(second, space, b"2")
    first.commit().wait()
    second.commit().wait()
    enqueue(db, space, b"3")
    assert [take_first(db, space) for _ in range(5)] == [b"1", b"2", b"2", b"3", None]


def test_a_queue_with_priorities_gives_out_the_least_first(db: Any, space: Subspace) -> None:
    for priority, value in ((3, b"d"), (1, b"a"), (2, b"c"), (1, b"b")):
        enqueue(db, space[priority], value)
    assert [take_first(db, space) for _ in range(5)] == [b"a", b"b", b"c", b"d", None]


# -- tables ----------------------------------------------------------------------------------------------------------


@transactional
def set_cell(tr: Transaction, space: Subspace, row: int, column: str, value: bytes) -> None:
    tr[space["row"][row][column]] = value
    tr[space["column"][column][row]] = value


@transactional
def line(tr: Transaction, space: Subspace, way: str, name: Any) -> dict[Any, bytes]:
    return {space[way][name].unpack(row.key)[0]: bytes(row.value) for row in tr[space[way][name].range()]}


def test_a_table_is_read_by_rows_and_by_columns(db: Any, space: Subspace) -> None:
    for row in range(3):
        for column in "ab":
            set_cell(db, space, row, column, b"%d%s" % (row, column.encode()))
    assert line(db, space, "row", 1) == {"a": b"1a", "b": b"1b"}
    assert line(db, space, "column", "b") == {0: b"0b", 1: b"1b", 2: b"2b"}
