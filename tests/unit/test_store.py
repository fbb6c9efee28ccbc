"""The store's promises in one process: views, versions, group commits, eviction, growth, folders that come and go."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdbqueue.engine import FDBError
from fdbqueue.engine.embedded.store.store import CommitRequest, Store
from fdbqueue.errors import StorageError, UrlError
from tests.helpers.stores import MovableClock, clear, commit, contents, opened, put, sets, view


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(clock: MovableClock) -> Iterator[Store]:
    with opened(clock=clock) as store:
        yield store


# -- views -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_sees_the_database_as_it_was(store: Store) -> None:
    first = put(store, (b"a", b"1"))
    with view(store) as snapshot:
        put(store, (b"a", b"2"), (b"b", b"2"))
        assert snapshot.version == first.version
        assert snapshot.get(b"a") == b"1"
        assert list(snapshot.scan(b"", b"\xff")) == [(b"a", b"1")]
    assert contents(store) == [(b"a", b"2"), (b"b", b"2")]


def test_a_snapshot_older_than_five_seconds_is_taken_away_and_lets_its_pages_go(
    clock: MovableClock, store: Store
) -> None:
    with view(store) as old:
        clock.ahead += 4.9
        with view(store) as young:
            assert old.get(b"a") is None
            clock.ahead += 0.2
            due = store.tidy()
            assert due is not None
            assert 4 < due <= 4.8, "the next look is when the next one is due"
            for read in (lambda: old.get(b"a"), lambda: old.rows(b"", b"\xff"), lambda: list(old.scan(b"", b"\xff"))):
                with pytest.raises(FDBError) as caught:
                    read()
                assert caught.value.code == 1007
            assert young.get(b"a") is None
    assert all(reader.endswith("-") for reader in store.files.env.readers().splitlines()[1:])


def test_a_version_can_be_read_again_while_a_transaction_has_it_or_it_is_pinned(
    clock: MovableClock, store: Store
) -> None:
    put(store, (b"a", b"1"))
    held, pinned = store.snapshot(), store.snapshot()
    store.pin(pinned)
    pinned.close()
    put(store, (b"a", b"2"))
    again = store.snapshot_at(held.version)
    held.close()
    assert again.get(b"a") == b"1"
    again.close()
    again.close()
    third = store.snapshot_at(held.version)
    assert third.rows(b"", b"\xff") == [(b"a", b"1")]
    third.close()
    clock.ahead += 5.1
    store.tidy()
    with pytest.raises(FDBError) as caught:
        store.snapshot_at(held.version)
    assert caught.value.code == 1007
    with pytest.raises(FDBError) as caught:
        store.snapshot_at(held.version + 10**9)
    assert caught.value.code == 1009


def test_no_more_than_a_few_versions_are_pinned(store: Store) -> None:
    for number in range(100):
        version = put(store, (b"a", b"%d" % number)).version
        with view(store) as snapshot:
            store.pin(snapshot)
    assert store.files.env.readers().count("\n") < 70
    store.snapshot_at(version).close()


# -- versions --------------------------------------------------------------------------------------------------------


def test_only_the_last_held_commits_keep_their_view(store: Store) -> None:
    held = [put(store, (b"a", b"%d" % number)) for number in range(100)]
    assert store.snapshot_at(held[-1].version).get(b"a") == b"99"
    assert store.snapshot_at(held[-17].version).get(b"a") == b"83"
    with pytest.raises(FDBError):
        store.snapshot_at(held[-18].version)
    views = sum(not reader.endswith("-") for reader in store.files.env.readers().splitlines()[1:])
    assert views <= 16 + 2, "who holds thousands would take all of them"


def test_versions_grow_by_a_million_a_second(clock: MovableClock, store: Store) -> None:
    first = put(store, (b"a", b"")).version
    clock.ahead += 2
    second = put(store, (b"a", b"")).version
    assert 2_000_000 <= second - first < 3_000_000


def test_versions_grow_over_reopening_and_over_a_boot(tmp_path: Path) -> None:
    versions = []
    for boot in (b"first", b"first", b"second", b"third"):
        clock = MovableClock(boot)
        # A clock that begins anew at every boot.
        clock.ahead = -clock.seconds() + 10
        with opened(tmp_path, clock) as store:
            versions += [put(store, (b"a", b"")).version for _ in range(3)]
            assert contents(store) == [(b"a", b"")]
    assert versions == sorted(set(versions))


def test_a_versionstamp_is_the_commits_version_and_its_number_in_the_batch(store: Store) -> None:
    """In a batch of several requests, and in one of a request alone."""
    for count in (3, 1):
        check_versionstamps(store, count)


def check_versionstamps(store: Store, count: int) -> None:
    clear(store, b"", b"\xff")
    requests = [
        CommitRequest(mutations=[(14, b"k" + bytes(10) + b"%d" % n + (1).to_bytes(4, "little"), b"v")])
        for n in range(count)
    ]
    for request in requests:
        store.submit(request)
    store.wait(requests[-1])
    stamps = [request.version.to_bytes(8, "big") + request.batch.to_bytes(2, "big") for request in requests]
    assert contents(store) == [(b"k" + stamp + b"%d" % n, b"v") for n, stamp in enumerate(stamps)]
    version = requests[0].version
    reader = sets((b"x", b""), snapshot_version=version - 1, read_keys=[b"k" + stamps[0] + b"0"])
    assert commit(store, reader).error == 1020, "a key made from a versionstamp counts as written"


# -- commits ---------------------------------------------------------------------------------------------------------


def test_later_requests_of_a_batch_see_the_effects_of_earlier_ones(store: Store) -> None:
    requests = [CommitRequest(mutations=[(2, b"n", b"\x01")]) for _ in range(5)]
    for request in requests:
        store.submit(request)
    store.wait(requests[0])
    assert contents(store) == [(b"n", b"\x05")]


def test_a_request_without_a_wait_is_committed(store: Store) -> None:
    done = threading.Event()
    request = sets((b"a", b"1"))
    store.submit(request)
    store.on_done(request, lambda _: done.set())
    assert done.wait(60)
    forgotten = sets((b"b", b"2"))
    store.submit(forgotten)
    seen = threading.Event()
    store.watch(b"b", seen.set)
    assert seen.wait(60) or forgotten.done
    assert forgotten.done


def test_a_callback_of_a_request_that_is_done_is_called_at_once(store: Store) -> None:
    called: list[CommitRequest] = []
    request = put(store, (b"a", b""))
    store.on_done(request, called.append)
    assert called == [request]


def test_a_callback_may_commit(store: Store) -> None:
    done = threading.Event()

    def again(_: CommitRequest) -> None:
        put(store, (b"b", b""))
        done.set()

    request = sets((b"a", b""))
    store.submit(request)
    store.on_done(request, again)
    store.wait(request)
    assert done.wait(60)
    assert [key for key, _ in contents(store)] == [b"a", b"b"]


def test_a_request_that_can_not_be_applied_fails_no_other(store: Store) -> None:
    good, bad, other = sets((b"a", b"")), CommitRequest(mutations=[(99, b"b", b"")]), sets((b"c", b""))
    for request in (good, bad, other):
        store.submit(request)
    store.wait(good)
    with pytest.raises(LookupError):
        store.wait(bad)
    assert [good.error, other.error] == [None, None]
    assert [key for key, _ in contents(store)] == [b"a", b"c"]


def test_an_interrupted_commit_is_of_unknown_outcome_and_the_next_one_works(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted, beside = sets((b"a", b"")), sets((b"b", b""))

    class Interrupt:
        def before_commit(self, request: CommitRequest) -> int | None:
            if request is interrupted:
                raise KeyboardInterrupt
            return None

        def after_commit(self, request: CommitRequest) -> int | None:
            return None

    store.faults = Interrupt()
    store.submit(beside)
    store.submit(interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.wait(interrupted)
    assert beside.done
    assert beside.error == 1021
    assert put(store, (b"c", b"")).error is None


@pytest.mark.parametrize("code", [1007, 1020, 1021, 1031])
def test_faults_can_be_put_in_before_and_after_a_commit(store: Store, code: int) -> None:
    class Plan:
        before: int | None = code
        after: int | None = None

        def before_commit(self, request: CommitRequest) -> int | None:
            return self.before

        def after_commit(self, request: CommitRequest) -> int | None:
            return self.after

    store.faults = plan = Plan()
    assert put(store, (b"a", b"")).error == code
    assert contents(store) == []
    plan.before, plan.after = None, code
    assert put(store, (b"a", b"")).error == code
    assert contents(store) == [(b"a", b"")]


def test_sixteen_threads_share_commits_and_lose_none(store: Store, tmp_path: Path) -> None:
    for durability in ("fsync", "relaxed"):
        with opened(tmp_path / durability, durability=durability) as shared:
            _sixteen_threads(shared)


def _sixteen_threads(store: Store) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(25):
                request = CommitRequest(mutations=[(0, b"%02d/%02d" % (number, turn), b""), (2, b"sum", bytes((1, 0)))])
                commit(store, request)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    rows = contents(store)
    assert len(rows) == 16 * 25 + 1
    assert rows[-1] == (b"sum", (16 * 25).to_bytes(2, "little"))


# -- growth ----------------------------------------------------------------------------------------------------------


def test_the_map_grows_and_ends_open_snapshots(tmp_path: Path) -> None:
    with opened(tmp_path, map_size=str(1 << 20), durability="relaxed") as store, view(store) as snapshot:
        put(store, *[(b"%04d" % number, b"x" * 50_000) for number in range(200)])
        with pytest.raises(FDBError) as caught:
            snapshot.get(b"0000")
        assert caught.value.code == 1007
        assert len(contents(store)) == 200
        assert store.files.map_size >= 10 << 20
    with opened(tmp_path, map_size=str(1 << 20)) as store:
        assert len(contents(store)) == 200
        put(store, (b"more", b""))


def test_a_full_database_raises_and_keeps_its_data(tmp_path: Path) -> None:
    with opened(tmp_path, map_size=str(1 << 20), max_size=str(4 << 20), durability="relaxed") as store:
        put(store, (b"first", b"1"))
        large = sets(*[(b"%04d" % number, b"x" * 50_000) for number in range(200)])
        small = sets((b"small", b"2"))
        store.submit(large)
        store.submit(small)
        with pytest.raises(StorageError, match="max_size=4194304"):
            store.wait(large)
        store.wait(small)
        assert contents(store) == [(b"first", b"1"), (b"small", b"2")]
    with opened(tmp_path) as store:
        assert commit(store, sets(*large_rows())).error is None


def large_rows() -> list[tuple[bytes, bytes]]:
    return [(b"%04d" % number, b"x" * 50_000) for number in range(200)]


# -- folders ---------------------------------------------------------------------------------------------------------


def test_one_process_has_one_store_per_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with opened(tmp_path / "folder") as one, opened(tmp_path / "link") as other:
        assert one is other
        put(one, (b"a", b""))
        Store.open(str(tmp_path / "folder"), {}).close()
        assert contents(other) == [(b"a", b"")]
    with pytest.raises(StorageError, match="closed"):
        one.snapshot()


def test_a_durable_database_is_not_shared_with_one_that_is_open_as_relaxed(tmp_path: Path) -> None:
    with (
        opened(tmp_path, durability="relaxed"),
        pytest.raises(StorageError, match="durability=relaxed"),
        opened(tmp_path),
    ):
        pass
    with opened(tmp_path) as durable, opened(tmp_path, durability="relaxed") as same:
        assert durable is same


def test_a_recreated_folder_is_another_database(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with opened(path) as old:
        put(old, (b"a", b""))
        for name in os.listdir(path):
            (path / name).unlink()
        with opened(path) as new:
            assert contents(new) == []


def test_a_database_in_memory_is_private_and_gone_at_its_end() -> None:
    with opened() as one, opened() as other:
        put(one, (b"a", b""))
        assert contents(other) == []
        path = one.path
        assert os.path.isdir(path)
    assert not os.path.exists(path)


def test_closing_commits_the_submitted_requests(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.submit(sets((b"a", b"")))
    with opened(tmp_path) as store:
        assert contents(store) == [(b"a", b"")]


@pytest.mark.slow
def test_a_store_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with opened() as store:
        store.watch(b"a", lambda: None)
        store.submit(sets((b"a", b"")))
        contents(store)
    gc.collect()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("fdbqueue")} <= before


@pytest.mark.parametrize(
    "options",
    [{"durabilty": "fsync"}, {"durability": "none"}, {"map_size": "1GB"}, {"map_size": "0"}, {"max_size": "-5"}],
)
def test_options_that_do_not_exist_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UrlError, match="|".join(options)):
        Store.open(None, options)
