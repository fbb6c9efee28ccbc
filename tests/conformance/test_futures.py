"""Futures: lazy values that stand in for their bytes, and futures that tell when they are ready."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fdbqueue.engine import FDBError, KeySelector, Subspace, transactional
from fdbqueue.engine.steps import run, value_of


@pytest.fixture
def key(db: Any, space: Subspace) -> bytes:
    """A key whose value is ``b"12"``."""
    db[space["key"]] = b"12"
    key: bytes = space["key"].key()
    return key


@pytest.fixture
def value(db: Any, key: bytes) -> Iterator[Any]:
    """The lazy value, whose transaction has to live as long as nobody has waited for it."""
    tr = db.create_transaction()
    yield tr.get(key)
    tr.cancel()


def code_of(call: Any) -> int:
    with pytest.raises(FDBError) as caught:
        call()
    return caught.value.code


def test_a_value_compares_as_its_bytes(value: Any) -> None:
    assert value == b"12"
    assert value != b"13"
    assert b"11" < value <= b"12"
    assert b"13" > value >= b"12"


def test_two_lazy_values_compare_with_each_other(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    assert tr.get(key) == tr.get(key)
    assert not tr.get(key) < tr.get(key)


def test_a_value_converts_as_its_bytes(value: Any) -> None:
    assert bytes(value) == b"12"
    assert int(value) == 12
    assert str(value) == "b'12'"
    assert repr(value) == "b'12'"
    assert hash(value) == hash(b"12")
    assert len(value) == 2


def test_a_value_can_be_cut_and_joined(value: Any) -> None:
    assert value[0] == ord("1")
    assert value[:1] == b"1"
    assert value + b"3" == b"123"
    assert b"0" + value == b"012"
    assert value * 2 == b"1212"
    assert list(value) == [ord("1"), ord("2")]


def test_a_value_has_the_methods_of_bytes(value: Any) -> None:
    assert value.startswith(b"1")
    assert value.hex() == "3132"
    assert value.split(b"1") == [b"", b"2"]


def test_a_value_passes_for_bytes(db: Any, space: Subspace, key: bytes, value: Any) -> None:
    assert isinstance(value, bytes)
    tr = db.create_transaction()
    tr.set(space["copy"].key(), tr.get(key))
    assert tr.get(space["copy"].key()) == b"12"


def test_a_key_that_was_found_can_be_read(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    assert tr.get(tr.get_key(KeySelector.first_greater_or_equal(key))) == b"12"
    tr.clear(tr.get_key(KeySelector.first_greater_or_equal(key)))
    assert tr.get(key) == None  # noqa: E711  the lazy value compares as what it stands for


def test_a_missing_value_is_none_and_not_empty_bytes(db: Any, space: Subspace) -> None:
    db[space["empty"]] = b""
    tr = db.create_transaction()
    assert tr.get(space["empty"].key()).present()
    missing = tr.get(space["missing"].key())
    assert not missing.present()
    assert missing.value is None
    with pytest.raises(TypeError):
        len(missing)


def test_waiting_for_a_value_gives_the_value(value: Any) -> None:
    assert value.wait() is value


def test_a_ready_future_calls_back(value: Any) -> None:
    value.wait()
    called = threading.Event()
    value.on_ready(lambda _: called.set())
    assert called.wait(600)


def test_an_exception_in_a_callback_is_printed_and_dropped(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    value.wait()

    def fail(_: Any) -> None:
        raise ArithmeticError("in the callback")

    value.on_ready(fail)
    assert "in the callback" in capsys.readouterr().err


def test_a_failed_future_raises_its_error(db: Any) -> None:
    tr = db.create_transaction()
    future = tr.get(b"\xff")
    future.block_until_ready()
    assert code_of(future.wait) == 2004
    assert future.exception().code == 2004
    assert not future.cancelled()


def test_a_future_has_asyncios_protocol(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    future = tr.get_read_version()
    future.block_until_ready()
    assert future.done()
    assert future.result() == future.wait()
    assert future.exception() is None


def test_a_result_that_is_not_there_is_refused(db: Any, key: bytes) -> None:
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()
    assert not watch.done()
    with pytest.raises(Exception, match="not available"):
        watch.result()
    watch.cancel()
    watch.block_until_ready()
    assert watch.cancelled()


def test_one_waits_for_any_of_many(db: Any, key: bytes, space: Subspace) -> None:
    tr = db.create_transaction()
    watches = [tr.watch(space[number].key()) for number in range(3)]
    tr.commit().wait()
    another = db.create_transaction()
    ready = another.get_read_version()
    assert type(ready).wait_for_any(*watches, ready) == 3
    db[space[1]] = b"changed"
    assert type(ready).wait_for_any(*watches) == 1


def test_a_commit_calls_back_without_a_wait(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr[space["key"]] = b"1"
    called = threading.Event()
    commit = tr.commit()
    commit.on_ready(lambda _: called.set())
    assert called.wait(600)
    assert commit.is_ready()
    assert db[space["key"]] == b"1"


def test_a_finished_commit_can_not_be_cancelled(db: Any, space: Subspace) -> None:
    tr = db.create_transaction()
    tr[space["a"]] = b"1"
    commit = tr.commit()
    commit.wait()
    commit.cancel()
    commit.wait()


def test_a_cancelled_commit_stays_cancelled_whatever_its_outcome(db: Any, space: Subspace) -> None:
    for _ in range(20):
        tr = db.create_transaction()
        tr[space["a"]] = b"1"
        _stamp = tr.get_versionstamp()  # which is to hear of the commit's end
        commit = tr.commit()
        commit.cancel()
        if commit.cancelled():
            break  # else a cluster was faster
    db[space["b"]] = b"2"
    assert code_of(commit.wait) == 1101


def test_a_commit_takes_effect_without_a_wait(db: Any, space: Subspace) -> None:
    seen = db.get_and_watch(space["key"])[1]
    tr = db.create_transaction()
    tr[space["key"]] = b"1"
    commit = tr.commit()
    seen.wait()
    assert db[space["key"]] == b"1"
    commit.wait()


def test_an_event_loop_can_wait_for_hundreds_of_commits(db: Any, space: Subspace) -> None:
    async def count_up() -> None:
        loop = asyncio.get_running_loop()

        async def one() -> None:
            tr = db.create_transaction()
            tr.add(space["n"].key(), (1).to_bytes(8, "little"))
            done = loop.create_future()
            commit = tr.commit()
            commit.on_ready(lambda _: loop.call_soon_threadsafe(done.set_result, None))
            await done
            commit.wait()

        await asyncio.gather(*(one() for _ in range(200)))

    asyncio.run(count_up())
    assert int.from_bytes(db[space["n"]], "little") == 200


@pytest.mark.parametrize("wait", ["read", "watch", "commit"])
def test_a_wait_after_an_interrupted_one_ends_when_its_own_future_is_ready(db: Any, space: Subspace, wait: str) -> None:
    assert threading.current_thread() is threading.main_thread()
    awaited, other = space["awaited"].key(), space["other"].key()

    def watch(key: bytes) -> Any:
        tr = db.create_transaction()
        future = tr.watch(key)
        tr.commit().wait()
        return future

    async def wait_for(future: Any) -> Any:
        return await value_of(future)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    interrupted = watch(awaited)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            interrupted.wait() if wait == "commit" else run(wait_for(interrupted))
    finally:
        signal.signal(signal.SIGALRM, before)
    db[awaited] = b"1"
    run(wait_for(interrupted))
    if wait == "watch":
        later = watch(other)
        threading.Timer(0.1, db.set, (other, b"1")).start()
        run(wait_for(later))
    for number in range(5):
        if wait == "read":
            assert run(wait_for(db.create_transaction().get(awaited))) == b"1"
        else:
            transactional(lambda tr: tr.set(other, b"%d" % number))(db)  # noqa: B023
