"""The conflict check is exact: no conflict is missing and none is spurious, says an oracle that compares all pairs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine.embedded.store import commit_log
from fdbqueue.engine.embedded.store.commit import committer
from fdbqueue.engine.embedded.store.commit_log import Range, WriteSet, decode, entry_of
from fdbqueue.engine.embedded.store.opening import StoreClock
from fdbqueue.engine.embedded.store.store import CommitRequest, Snapshot, Store
from tests.helpers.stores import MovableClock, commit, opened, put, sets, view

# Few keys, some of which are others' prefixes, so that ranges touch, nest and meet in every way.
_KEYS = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"ab", b"b", b"b\xff", b"c", b"\xff"]
_key = st.sampled_from(_KEYS)
_range = st.tuples(_key, _key).map(lambda pair: (min(pair), max(pair)))


@dataclass(frozen=True)
class Plan:
    """A transaction: how many commits old its snapshot is when it commits, what it reads and what it writes."""

    age: int
    read_keys: list[bytes]
    read_ranges: list[Range]
    write_keys: list[bytes]
    write_ranges: list[Range]


_plans = st.builds(
    Plan,
    st.integers(0, 6),
    st.lists(_key, max_size=2),
    st.lists(_range, max_size=2),
    st.lists(_key, max_size=2),
    st.lists(_range, max_size=2),
)


_BLOCKS = [(1, 1 << 20), (1, 1), (250, 300), (1 << 20, 1 << 20)]
_TAILS = [0, 100, 200, commit_log.TAIL_BYTES]


def _as_ranges(keys: list[bytes], ranges: list[Range]) -> list[Range]:
    return [(key, key + b"\0") for key in keys] + ranges


def _meet(reads: list[Range], writes: list[Range]) -> bool:
    return any(max(a, c) < min(b, d) for a, b in reads for c, d in writes)


@given(
    batches=st.lists(st.tuples(st.booleans(), st.lists(_plans, min_size=1, max_size=3)), max_size=12),
    block=st.sampled_from(_BLOCKS),
    tail=st.sampled_from(_TAILS),
    few=st.sampled_from([0, commit_log.FEW]),
)
def test_a_commit_fails_if_and_only_if_its_reads_were_overwritten(
    batches: list[tuple[bool, list[Plan]]],
    block: tuple[int, int],
    tail: int,
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Blocks of one commit and of all, remembered or read again, from rows of one commit, of a few, and from the tail,
    # committed here and by a second committer, with a memory of its own, that stands for another process: every way in
    # which the log is looked at comes up.
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    monkeypatch.setattr(commit_log, "BLOCK_BYTES", block[0])
    monkeypatch.setattr(commit_log, "CACHE_BYTES", block[1])
    monkeypatch.setattr(commit_log, "FEW", few)
    with opened() as store:
        other = committer.Committer(store)
        versions = [put(store).version]
        writes: list[tuple[int, list[Range]]] = []
        for theirs, plans in batches:
            requests = [_request(plan, versions[max(0, len(versions) - 1 - plan.age)]) for plan in plans]
            submit, wait = (other.submit, other.wait) if theirs else (store.submit, store.wait)
            for request in requests:
                submit(request)
            wait(requests[0])
            for plan, request in zip(plans, requests, strict=True):
                since = request.snapshot_version or 0
                reads = _as_ranges(plan.read_keys, plan.read_ranges)
                expected = any(version > since and _meet(reads, wrote) for version, wrote in writes)
                assert request.error == (1020 if expected else None)
                if not expected:
                    writes.append((request.version, _as_ranges(plan.write_keys, plan.write_ranges)))
                    if request.version != versions[-1]:
                        versions.append(request.version)


def _request(plan: Plan, version: int) -> CommitRequest:
    return CommitRequest(version, plan.read_ranges, plan.write_ranges, [], False, plan.read_keys, plan.write_keys)


@given(
    written=st.lists(st.tuples(st.lists(_key, max_size=3), st.lists(_range, max_size=3)), min_size=1, max_size=4),
    reads=st.tuples(st.lists(_key, max_size=3), st.lists(_range, max_size=3)),
)
def test_conflicting_ranges_are_reported_one_by_one(
    written: list[tuple[list[bytes], list[Range]]], reads: tuple[list[bytes], list[Range]]
) -> None:
    with opened() as store:
        since = put(store).version
        for keys, ranges in written:
            commit(store, CommitRequest(write_keys=keys, write_ranges=ranges))
        request = commit(store, CommitRequest(since, read_keys=reads[0], read_ranges=reads[1], report_conflicts=True))
        all_written = [span for keys, ranges in written for span in _as_ranges(keys, ranges)]
        assert list(request.conflicting) == [span for span in _as_ranges(*reads) if _meet([span], all_written)]


def test_an_inverted_range_reaches_watches_and_conflicts_with_nothing() -> None:
    heard: set[bytes] = set()  # once or twice, as the thread that listens may come across it too
    with opened() as store:
        since = put(store).version
        for key in (b"a", b"c"):
            store.watch(key, partial(heard.add, key))
        commit(store, CommitRequest(write_keys=[b"x"], write_ranges=[(b"c", b"a"), (b"y", b"z")]))
        assert heard == {b"a"}
        assert commit(store, CommitRequest(since, read_keys=[b"a"], read_ranges=[(b"", b"x")])).error is None
        assert commit(store, CommitRequest(since, read_keys=[b"y"])).error == 1020


@given(keys=st.lists(st.binary(max_size=300)), ranges=st.lists(st.tuples(st.binary(), st.binary())))
def test_a_record_of_the_log_holds_the_written_keys(keys: list[bytes], ranges: list[Range]) -> None:
    assert decode(entry_of(bytes(8), 17, keys, ranges)[12:]) == (keys, ranges)


@given(parts=st.lists(st.tuples(st.lists(_key), st.lists(_range)), max_size=4), reads=st.lists(_range, max_size=3))
def test_a_write_set_can_be_read_and_extended_in_turns(
    parts: list[tuple[list[bytes], list[Range]]], reads: list[Range]
) -> None:
    written = WriteSet([], [])
    so_far: list[Range] = []
    for keys, ranges in parts:
        written.add(keys, ranges)
        so_far += _as_ranges(keys, ranges)
        for begin, end in reads:
            assert written.meets_range(begin, end) == _meet([(begin, end)], so_far)
            assert written.meets_any([begin]) == _meet([(begin, begin + b"\0")], so_far)


def test_transactions_of_one_group_commit_conflict_with_each_other_in_their_order() -> None:
    with opened() as store:
        version = put(store, (b"x", b"0")).version
        first = sets((b"x", b"1"), snapshot_version=version, read_keys=[b"x"])
        second = sets((b"x", b"2"), snapshot_version=version, read_keys=[b"x"])
        third = sets((b"y", b"3"), snapshot_version=version, read_keys=[b"y"])
        for request in (first, second, third):
            store.submit(request)
        store.wait(third)
        assert [request.error for request in (first, second, third)] == [None, 1020, None]
        assert first.version == third.version
        assert (first.batch, third.batch) == (0, 1)


def test_a_conflict_with_another_process_commit_is_found_in_the_log(store: Store) -> None:
    """A second committer with a memory of its own stands for another process."""
    version = put(store, (b"x", b"0")).version
    other = committer.Committer(store)
    stranger = sets((b"x", b"1"))
    other.submit(stranger)
    other.wait(stranger)
    assert commit(store, sets((b"z", b""), snapshot_version=version, read_keys=[b"y"])).error is None
    assert commit(store, sets((b"z", b""), snapshot_version=version, read_keys=[b"x"])).error == 1020


@pytest.mark.parametrize("few", [0, commit_log.FEW])
@pytest.mark.parametrize("block", [1, commit_log.BLOCK_BYTES])
@pytest.mark.parametrize("tail", _TAILS)
def test_runs_of_commits_of_another_process_are_distinguished(
    store: Store, tail: int, block: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    monkeypatch.setattr(commit_log, "BLOCK_BYTES", block)
    monkeypatch.setattr(commit_log, "FEW", few)
    other = committer.Committer(store)
    versions: list[int] = []
    for number in range(12):
        key = b"%02d" % number
        one = CommitRequest(write_keys=[key]) if number % 3 else CommitRequest(write_ranges=[(key, key + b"\0")])
        submit, wait = (store.submit, store.wait) if number in (3, 8) else (other.submit, other.wait)
        submit(one)
        wait(one)
        versions.append(one.version)
    for at, since in enumerate(versions):
        for number in range(12):
            request = commit(store, CommitRequest(since, read_keys=[b"%02d" % number]))
            assert request.error == (1020 if number > at else None)


def test_a_snapshot_older_than_five_seconds_is_too_old_to_commit(clock: MovableClock, store: Store) -> None:
    put(store, (b"x", b""))
    with view(store) as snapshot:
        clock.ahead += 5.1
        assert commit(store, sets((b"y", b""))).error is None, "what has no read version can't be too old"
        for read_keys in ([], [b"other"]):
            assert commit(store, writing_of(snapshot, read_keys)).error == 1007


def test_a_conflicting_old_request_is_reported_as_too_old(clock: MovableClock, store: Store) -> None:
    put(store, (b"x", b""))
    with view(store) as snapshot:
        put(store, (b"x", b"1"))
        conflicting = writing_of(snapshot, [b"x"])
        assert commit(store, conflicting).error == 1020
        clock.ahead += 5.1
        for late in (writing_of(snapshot, [b"x"]), writing_of(snapshot, [b"x"], report_conflicts=True)):
            assert commit(store, late).error == 1007
            assert late.conflicting == ()


def writing_of(snapshot: Snapshot, read_keys: list[bytes], **settings: Any) -> CommitRequest:
    return sets(
        (b"y", b""),
        snapshot_version=snapshot.version,
        opened_at=snapshot.opened_at,
        read_keys=read_keys,
        **settings,
    )


@pytest.mark.parametrize("tail", _TAILS)
def test_a_fresh_snapshot_of_an_old_state_may_commit(
    clock: MovableClock, store: Store, tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "FORGET_EVERY", 1)
    monkeypatch.setattr(commit_log, "BLOCK_BYTES", 1)
    monkeypatch.setattr(commit_log, "TAIL_BYTES", tail)
    put(store, (b"x", b""))
    for _ in range(5):
        clock.ahead += 60
        with view(store) as snapshot:
            for _ in range(3):
                put(store, (b"other", b""))
            request = sets((b"y", b""), snapshot_version=snapshot.version, read_keys=[b"x"])
            assert commit(store, request).error is None


def test_a_version_from_before_the_log_is_too_old_and_one_to_come_conflicts_with_nothing(
    clock: MovableClock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "FORGET_EVERY", 1)
    monkeypatch.setattr(commit_log, "BLOCK_BYTES", 1)
    monkeypatch.setattr(commit_log, "TAIL_BYTES", 0)
    old = put(store, (b"x", b"")).version
    for _ in range(4):
        clock.ahead += 7
        last = put(store, (b"y", b"")).version
    assert commit(store, sets(snapshot_version=old, read_keys=[b"x"])).error == 1007
    assert commit(store, sets(snapshot_version=last + 10**9, read_keys=[b"x"])).error is None


OFTEN = """
import sys
from pathlib import Path
from tests.helpers.stores import opened, put
with opened(Path(sys.argv[1])) as store:
    for _ in range(400):
        put(store, (b"key", b"v" * 100))
"""


@pytest.mark.slow
def test_a_process_that_commits_seldom_forgets_what_others_have_committed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "BLOCK_BYTES", 1_000)
    clock, sizes = MovableClock(StoreClock().boot()), []
    with opened(tmp_path, clock=clock) as store:
        recent = store.committer.recent
        for number in range(8):
            subprocess.run([sys.executable, "-c", OFTEN, str(tmp_path)], check=True, timeout=120, cwd=repository)
            clock.ahead += 10
            put(store, (b"own", b"%d" % number))
            sizes.append(recent.size + sum(len(run) for _, _, run in recent.fresh))
    assert max(sizes[4:]) <= max(sizes[:4])


def test_a_blind_write_never_conflicts(store: Store) -> None:
    put(store, (b"x", b"1"))
    assert commit(store, CommitRequest(read_keys=[b"x"], write_keys=[b"x"])).error is None


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(clock: MovableClock) -> Iterator[Store]:
    with opened(clock=clock) as store:
        yield store
