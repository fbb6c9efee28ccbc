"""Methods of a database, each call in a transaction of its own, and the decorator that makes such functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace, aio, transactional


def test_reads_and_writes_are_transactions_of_their_own(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"1")
    db[space["b"]] = b"2"
    assert (db.get(space["a"]), db[space["b"]], db.get(space["c"])) == (b"1", b"2", None)
    db.clear(space["a"])
    del db[space["b"]]
    assert db.get_range_startswith(space.key()) == []


def test_ranges_are_lists(db: Any, space: Subspace) -> None:
    for number in range(4):
        db.set(space[number], b"%d" % number)
    begin, end = space[1].key(), space[3].key()
    assert [bytes(row.value) for row in db.get_range(begin, end)] == [b"1", b"2"]
    assert [bytes(row.value) for row in db[begin:end:-1]] == [b"2", b"1"]
    assert [bytes(row.value) for row in db.get_range_startswith(space.key(), limit=1)] == [b"0"]
    assert db.get_key(KeySelector.first_greater_than(begin)) == space[2].key()
    del db[begin:end]
    assert [bytes(row.value) for row in db.get_range_startswith(space.key())] == [b"0", b"3"]


def test_atomic_operations_can_be_done_at_once(db: Any, space: Subspace) -> None:
    db.add(space["n"], b"\x01\x00")
    db.add(space["n"], b"\x02\x00")
    assert db.get(space["n"]) == b"\x03\x00"


def test_a_value_and_its_watch_come_together(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    value, future = db.get_and_watch(space["a"])
    assert value == b"old"
    db.set(space["a"], b"new")
    future.wait()


def test_a_clear_and_its_watch_come_together(db: Any, space: Subspace) -> None:
    db.set(space["a"], b"old")
    future = db.clear_and_watch(space["a"])
    assert db.get(space["a"]) is None
    db.set(space["a"], b"new")
    future.wait()


def test_a_decorated_function_takes_a_snapshot_and_commits_nothing(db: Any, space: Subspace) -> None:
    db[space["a"]] = b"1"

    @transactional
    def read(tr: Any) -> bytes:
        return bytes(tr[space["a"]])

    @transactional
    async def read_later(tr: Any) -> bytes:
        return bytes(await aio(tr[space["a"]]))

    tr = db.create_transaction()
    tr[space["a"]] = b"2"
    assert read(tr.snapshot) == b"2"
    assert asyncio.run(read_later(tr.snapshot)) == b"2"
    assert db[space["a"]] == b"1"


def test_a_decorated_function_takes_a_database_and_commits(db: Any, space: Subspace) -> None:
    @transactional
    def count_up(tr: Any) -> int:
        value = tr.get(space["n"])
        number = int(value) + 1 if value.present() else 1
        tr.set(space["n"], b"%d" % number)
        return number

    assert [count_up(db), count_up(db)] == [1, 2]


def test_a_decorated_function_takes_a_transaction_and_commits_nothing(db: Any, space: Subspace) -> None:
    @transactional
    def write(tr: Any) -> None:
        tr.set(space["a"], b"")

    tr = db.create_transaction()
    write(tr)
    assert db.get(space["a"]) is None
    tr.commit().wait()
    assert db.get(space["a"]) == b""


def test_a_decorated_function_runs_again_after_a_conflict(db: Any, space: Subspace) -> None:
    seen: list[bytes | None] = []

    @transactional
    def read_and_write(tr: Any) -> None:
        value = tr.get(space["a"])
        seen.append(bytes(value) if value.present() else None)
        if len(seen) == 1:
            db.set(space["a"], b"in between")
        tr.set(space["b"], b"")

    read_and_write(db)
    assert seen == [None, b"in between"]


def test_an_exception_in_a_decorated_function_prevents_the_commit(db: Any, space: Subspace) -> None:
    @transactional
    def fail(tr: Any) -> None:
        tr.set(space["a"], b"")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        fail(db)
    assert db.get(space["a"]) is None


def test_an_error_that_is_not_retryable_is_raised(db: Any) -> None:
    with pytest.raises(FDBError) as raised:
        db.set(b"\xffx", b"")
    assert raised.value.code == 2004


def test_a_generator_cannot_be_decorated() -> None:
    def rows(tr: Any) -> Iterator[Any]:
        yield from tr.get_range(b"", b"\xff")

    with pytest.raises(ValueError, match="Generators"):
        transactional(rows)


def test_an_async_function_is_awaited_committed_and_repeated(db: Any, space: Subspace) -> None:
    seen = []

    @transactional
    async def count_up(tr: Any) -> int:
        value = await aio(tr.get(space["n"]))
        seen.append(value.present())
        if len(seen) == 1:
            db.set(space["n"], b"7")  # somebody else was faster, and this attempt can't be committed
        number = int(value) + 1 if value.present() else 1
        tr.set(space["n"], b"%d" % number)
        return number

    assert asyncio.run(count_up(db)) == 8
    assert (db.get(space["n"]), seen) == (b"8", [False, True])


def test_an_async_function_in_a_callers_transaction_commits_nothing(db: Any, space: Subspace) -> None:
    @transactional
    async def buy(tr: Any) -> None:
        tr.set(space["bought"], b"yes")

    @transactional
    async def buy_and_fail(tr: Any) -> None:
        await buy(tr)
        raise KeyError("no more")

    with pytest.raises(KeyError):
        asyncio.run(buy_and_fail(tr=db))  # type: ignore[call-arg]
    assert db.get(space["bought"]) is None


def test_a_generator_or_coroutine_function_is_refused(db: Any, space: Subspace) -> None:
    async def buy(tr: Any) -> None:
        tr.set(space["bought"], b"yes")

    async def sell(tr: Any) -> AsyncIterator[bytes]:
        yield await aio(tr.get(space["bought"]))

    with pytest.raises(ValueError, match="returned a coroutine, and none of it has run"):
        transactional(lambda tr: buy(tr))(db)  # type: ignore[unused-coroutine]
    with pytest.raises(ValueError, match="Generators"):
        transactional(sell)


def test_a_function_without_the_parameter_cannot_be_decorated() -> None:
    with pytest.raises(ValueError, match="buy has no parameter 'tr'"):

        @transactional
        def buy(db: Any) -> None: ...


def test_a_call_without_a_transaction_says_so_and_runs_nothing() -> None:
    ran = []

    @transactional
    def buy(tr: Any, sku: str) -> None:
        ran.append(sku)

    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'tr' and 'sku'"):
        buy()  # type: ignore[call-arg]
    for none in (None, "teapot"):
        with pytest.raises(TypeError, match="A database or a transaction was expected"):
            buy(none, "teapot")  # type: ignore[arg-type]
    assert ran == []


def test_a_decorated_function_that_returns_a_generator_is_not_committed(db: Any, space: Subspace) -> None:
    @transactional
    def rows(tr: Any) -> Iterator[Any]:
        tr.set(space["a"], b"")
        return (row for row in tr.get_range(b"", b"\xff"))

    with pytest.raises(ValueError, match="Generators"):
        rows(db)
    assert db.get(space["a"]) is None


def test_a_slice_can_be_cleared_by_its_name_too(db: Any, space: Subspace) -> None:
    for number in range(4):
        db[space[number]] = b""
    db.clear(slice(space[1].key(), space[3].key()))
    assert [space.unpack(row.key) for row in db[space.range()]] == [(0,), (3,)]
    with pytest.raises(AttributeError):
        db.get(slice(space[0].key(), space[3].key()))
