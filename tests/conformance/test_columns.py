"""`columns` reads what `rows` reads, whatever the transaction did before, and leaves it in the same state."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, StreamingMode, Subspace, strinc
from fdbqueue.engine.steps import columns, rows, run, run_async, started
from tests.helpers.calls import entering
from tests.helpers.counted import Counted

NUMBER = 60
READ_CONFLICTS = b"\xff\xff/transaction/read_conflict_range/"
SPANS: dict[str, Any] = {
    "all": lambda prefix: (prefix, strinc(prefix)),
    "a part": lambda prefix: (prefix + b"010", prefix + b"050"),
    "one key": lambda prefix: (prefix + b"020", prefix + b"020\0"),
    "nothing there": lambda prefix: (prefix + b"x", prefix + b"y"),
    "empty": lambda prefix: (prefix + b"020", prefix + b"020"),
    "inverted": lambda prefix: (prefix + b"020", prefix + b"010"),
    "from a long key": lambda prefix: (prefix.ljust(20_000, b"\0"), strinc(prefix)),
    "to a long key": lambda prefix: (prefix, prefix + b"030".ljust(20_000, b"\0")),
    "beyond all keys": lambda prefix: (prefix, b"\xff\xff\xff"),
}
LIMITS = [33, 1, 32, NUMBER, NUMBER + 1]
BEFORE: dict[str, Any] = {
    "nothing": lambda tr, prefix: None,
    "a read": lambda tr, prefix: list(tr.snapshot.get_range(prefix + b"005", prefix + b"025", limit=7)),
    "a read from the end": lambda tr, prefix: list(tr.get_range(prefix, prefix + b"040", limit=3, reverse=True)),
    "a read of all": lambda tr, prefix: list(tr.get_range_startswith(prefix)),
    "a read of columns": lambda tr, prefix: run(columns(tr.snapshot, prefix, prefix + b"030", 4)),
    "reads of keys": lambda tr, prefix: [tr[prefix + b"%03d" % at].present() for at in range(0, 70, 3)],
    "a read of a selector": lambda tr, prefix: bytes(tr.get_key(KeySelector(prefix + b"020", True, 3))),
    "own writes": lambda tr, prefix: (tr.set(prefix + b"015", b"own"), tr.set(prefix + b"0155", bytes(5000))),
    "own writes elsewhere": lambda tr, prefix: tr.set(prefix + b"z", b"own"),
    "a clear": lambda tr, prefix: tr.clear_range(prefix + b"012", prefix + b"023"),
    "an addition": lambda tr, prefix: tr.add(prefix + b"012", b"\x01"),
    "a versionstamp": lambda tr, prefix: tr.set_versionstamped_value(prefix + b"012", bytes(14)),
    "a conflict": lambda tr, prefix: tr.add_write_conflict_range(prefix + b"011", prefix + b"013"),
    "own writes not seen": lambda tr, prefix: (
        tr.options.set_read_your_writes_disable(),
        tr.set(prefix + b"015", b"own"),
    ),
    "own writes not in snapshots": lambda tr, prefix: (
        tr.options.set_snapshot_ryw_disable(),
        tr.set(prefix + b"015", b"own"),
    ),
    "an old version": lambda tr, prefix: tr.set_read_version(1),
    "a commit": lambda tr, prefix: tr.commit(),
    "a cancel": lambda tr, prefix: tr.cancel(),
}


@pytest.fixture
def prefix(db: Any, space: Subspace) -> bytes:
    """The prefix of `NUMBER` rows, of which some are larger than a page."""
    fill(db, space.key())
    return bytes(space.key())


def fill(db: Any, prefix: bytes) -> None:
    tr = db.create_transaction()
    tr.clear_range_startswith(prefix)
    for at in range(NUMBER):
        tr.set(prefix + b"%03d" % at, b"%d" % at if at % 7 else bytes(9000))
    tr.commit().wait()


def in_columns(tr: Any, begin: bytes, end: bytes, limit: int) -> Any:
    keys, values = run(columns(tr, begin, end, limit))
    assert {type(part) for part in [*keys, *values]} <= {bytes}
    return keys, values


def in_rows(tr: Any, begin: bytes, end: bytes, limit: int) -> Any:
    found = run(rows(tr, begin, end, limit=limit))
    return [row.key for row in found], [row.value for row in found]


def asked(question: Any) -> Any:
    try:
        return question()
    except FDBError as error:
        return error.code


def answers(db: Any, prefix: bytes, read: Any, before: Any, span: Any, limit: int, snapshot: bool) -> list[Any]:
    """Return what a read of a transaction answers, and all that the transaction then tells and does."""
    fill(db, prefix)
    tr, other = db.create_transaction(), db.create_transaction()
    asked(lambda: tr.get(prefix).present())  # the version, from before the other commit
    asked(lambda: before(tr, prefix))
    view = tr.snapshot if snapshot else tr
    begin, end = span(prefix)
    found = [asked(lambda: read(view, begin, end, limit))]
    found.append(asked(lambda: tr.get_approximate_size().wait()))
    other.set(prefix + b"0195", b"other")  # behind the first rows, and before the last ones
    other.commit().wait()
    found.append(asked(lambda: read(view, begin, end, limit)))
    found.append(asked(lambda: read(view, *SPANS["all"](prefix), NUMBER + 9)))
    asked(lambda: tr.set(prefix + b"018", b"later"))
    found.append(asked(lambda: read(view, begin, end, limit)))
    found.append(asked(lambda: [*map(tuple, tr.snapshot.get_range(begin, end, limit=limit, reverse=True))]))
    found.append(asked(lambda: tr.commit().wait()))
    return found


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "serializable"])
@pytest.mark.parametrize("before", BEFORE)
def test_columns_are_those_of_the_rows(db: Any, prefix: bytes, before: str, snapshot: bool) -> None:
    for name, span in SPANS.items():
        for limit in LIMITS if before == "nothing" else LIMITS[:1]:
            found = [answers(db, prefix, read, BEFORE[before], span, limit, snapshot) for read in (in_columns, in_rows)]
            assert found[0] == found[1], (name, limit)


def test_columns_of_an_old_version_are_refused_with_1007(db: Any, prefix: bytes) -> None:
    tr = db.create_transaction()
    tr.set_read_version(1)
    steps = started(columns(tr.snapshot, prefix, strinc(prefix), 5))  # waiting tells of it, not starting
    assert asked(lambda: run(steps)) == 1007
    tr.on_error(1007).wait()
    assert len(in_columns(tr.snapshot, prefix, strinc(prefix), 5)[0]) == 5


def test_columns_are_read_in_an_event_loop(db: Any, prefix: bytes) -> None:
    keys, values = asyncio.run(run_async(columns(db.create_transaction().snapshot, prefix, strinc(prefix), NUMBER + 1)))
    assert (len(keys), len(values)) == (NUMBER, NUMBER)


def test_a_wrapped_transaction_sees_the_read_of_columns(db: Any, prefix: bytes) -> None:
    counted = Counted(db)
    for view in (counted.create_transaction(), counted.create_transaction().snapshot):
        assert in_columns(view, prefix, strinc(prefix), 3)[0] == [prefix + b"%03d" % at for at in range(3)]
    assert counted.did["reads"] == 2


@pytest.mark.engines("memory", "file")
def test_columns_of_many_rows_are_one_scan(db: Any, space: Subspace) -> None:
    for begin in range(0, 4000, 1000):
        tr = db.create_transaction()
        for at in range(begin, begin + 1000):
            tr.set(space.key() + b"%04d" % at, bytes(200))
        tr.commit().wait()
    tr = db.create_transaction()
    with entering(lambda file: file.endswith(("pages.py", "snapshot.py"))) as entered:
        assert len(in_columns(tr.snapshot, space.key(), strinc(space.key()), 4001)[0]) == 4000
    names = Counter(name.rpartition(":")[2] for name in entered)
    assert (names["rows"], names["fill"]) == (1, 0)


@pytest.mark.parametrize("limit", [0, 1, 299, 300, 301])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_all_sizes_are_those_of_an_iteration(db: Any, space: Subspace, limit: int, reverse: bool) -> None:
    start: bytes = space.key()
    sizes = [0, 1, 100, 1_000, 9_000]
    written = [(start + b"%03d" % at + b"\0" * (at % 5), bytes([at % 256]) * sizes[at % 5]) for at in range(300)]
    tr = db.create_transaction()
    for key, value in written:
        tr.set(key, value)
    tr.commit().wait()
    expected = written[::-1] if reverse else written
    found = run(rows(db.create_transaction(), start, strinc(start), limit=limit, reverse=reverse))
    assert [(row.key, row.value) for row in found] == expected[: limit or None]
    assert all(type(row.key) is type(row.value) is bytes for row in found)


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("before", ["nothing", "a read", "a write"])
def test_rows_add_the_conflicts_and_the_size_of_an_iteration(
    db: Any, space: Subspace, limit: int, reverse: bool, before: str
) -> None:
    start: bytes = space.key()
    end = strinc(start)
    write = db.create_transaction()
    for at in range(5):
        write.set(start + b"%d" % at, b"value")
    write.commit().wait()
    told = []
    for read in (
        lambda tr: run(rows(tr, start, end, limit=limit, reverse=reverse)),
        lambda tr: list(tr.get_range(start, end, limit=limit, reverse=reverse, streaming_mode=StreamingMode.exact)),
    ):
        tr = db.create_transaction()
        if before == "a read":
            tr.get(start + b"1").wait()
        elif before == "a write":
            tr.set(start + b"2", b"own")
        found = [(row.key, row.value) for row in read(tr)]
        conflicts = tr.get_range(READ_CONFLICTS + b"\x00", READ_CONFLICTS + b"\xff").to_list()
        told.append((found, tr.get_approximate_size().wait(), [(row.key, row.value) for row in conflicts]))
    assert told[0] == told[1]
