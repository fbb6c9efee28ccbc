"""Bulk enqueue: order, splitting, several commits in flight, and what an interrupted call says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.errors import BulkInterrupted, CodecError, StorageError
from fdbqueue.writes import bulk
from tests.helpers.faults import Failed, Fault, FaultyDatabase, FaultyTransaction, When

ENDING: list[Fault] = [
    *(("before", 1021), ("after", 1021), ("before", 1020)),  # repeated
    *(("before", 1031), ("after", 1031), ("before", 2023)),  # these end a load
]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH_ITEMS", 10)


class ChoosyTransaction(FaultyTransaction):
    """Fails to commit more than ten items."""

    def __init__(self, tr: Any, db: ChoosyDatabase) -> None:
        super().__init__(tr, db)
        self._error = db.error
        self._sets = 0

    def set(self, key: bytes, value: bytes) -> None:
        self._sets += 1
        self._tr.set(key, value)

    def commit(self) -> Any:
        return Failed(self._error) if self._sets > 11 else super().commit()

    def on_error(self, error: Any) -> Any:
        self._sets = 0
        return self._tr.on_error(error)


class ChoosyDatabase(FaultyDatabase):
    def __init__(self, db: Any, error: int) -> None:
        super().__init__(db, lambda: None)
        self.error = error

    def create_transaction(self) -> ChoosyTransaction:
        return ChoosyTransaction(self._db.create_transaction(), self)


def contents(queue: Queue, db: Any) -> list[bytes]:
    return [item.value for item in queue.browse(db)]


def numbered(amount: int) -> list[bytes]:
    return [b"%06d" % n for n in range(amount)]


def test_many_items_go_in_order_into_few_transactions(db: Any, queue: Queue) -> None:
    report = queue.enqueue_many(db, numbered(3_500))
    assert (report.items, report.size_bytes, report.transactions) == (3_500, 21_000, 4)
    assert report.first is not None
    assert report.last is not None
    assert (report.first.index, report.last.index) == (1, 3_500)
    assert contents(queue, db) == numbered(3_500)
    assert queue.check(db).ok


def test_nothing_to_enqueue_is_no_transaction(db: Any, queue: Queue) -> None:
    report = queue.enqueue_many(db, [])
    assert (report.items, report.first, report.last, report.transactions) == (0, None, None, 0)
    tr = db.create_transaction()
    assert queue.enqueue_many(tr, []).items == 0


def test_batches_are_cut_by_bytes(db: Any, queue: Queue) -> None:
    report = queue.enqueue_many(db, [bytes(300_000)] * 7)
    assert report.transactions == 3
    assert [len(value) for value in contents(queue, db)] == [300_000] * 7
    assert queue.check(db).ok


@pytest.mark.usefixtures("small_batches")
def test_a_bulk_call_keeps_its_order_between_earlier_and_later_items(db: Any, queue: Queue) -> None:
    def values() -> Iterator[bytes]:
        for n in range(95):
            if n == 15:
                queue.enqueue_many(db, [b"meanwhile"] * 100)
            yield b"%06d" % n

    queue.enqueue_many(db, [b"before"] * 30)
    queue.enqueue_many(db, values())
    queue.enqueue(db, b"after")
    found = contents(queue, db)
    assert found[:30] == [b"before"] * 30
    assert found[-1] == b"after"
    assert [value for value in found[30:-1] if value != b"meanwhile"] == numbered(95)
    assert found.count(b"meanwhile") == 100


@pytest.mark.usefixtures("small_batches")
@given(plan=st.lists(st.none() | st.sampled_from([("before", 1021), ("after", 1021), ("before", 1020)]), max_size=30))
def test_every_batch_is_exactly_once_and_in_order_under_faults(db: Any, plan: list[Fault | None]) -> None:
    queue = Queue(("fdbqueue tests", "bulk", str(id(plan))))
    queue.clear(db)
    pending = iter(plan)
    report = queue.enqueue_many(FaultyDatabase(db, lambda: next(pending, None)), numbered(123))
    assert report.transactions == 13
    assert contents(queue, db) == numbered(123)
    assert queue.stats(db).enqueued == 123
    assert queue.check(db).ok
    queue.clear(db)


@pytest.mark.parametrize("error", [2101, 1007])
def test_a_batch_that_is_too_large_or_too_slow_is_halved_until_it_fits(db: Any, queue: Queue, error: int) -> None:
    report = queue.enqueue_many(ChoosyDatabase(db, error), numbered(64))
    assert contents(queue, db) == numbered(64)
    assert report.items == 64
    assert report.transactions == 8
    assert queue.check(db).ok


class CountingTransaction(FaultyTransaction):
    def commit(self) -> Any:
        return CountedCommit(self._tr.commit(), self._db)


class CountedCommit:
    """A commit that counts as under way until somebody has waited for it."""

    def __init__(self, commit: Any, db: Any) -> None:
        self._commit = commit
        self._db = db
        db.under_way += 1
        db.most = max(db.most, db.under_way)

    def wait(self) -> None:
        self._db.under_way -= 1
        self._commit.wait()


class CountingDatabase(FaultyDatabase):
    under_way = most = 0

    def create_transaction(self) -> CountingTransaction:
        return CountingTransaction(self._db.create_transaction(), self)


@pytest.mark.usefixtures("small_batches")
def test_as_many_commits_are_under_way_as_the_database_says_it_can_use(db: Any, queue: Queue) -> None:
    counting = CountingDatabase(db, lambda: None)
    queue.enqueue_many(counting, numbered(123))
    assert counting.most == bulk.COMMITS_IN_FLIGHT
    saying = CountingDatabase(db, lambda: None)
    saying.commits_in_flight = 3
    queue.enqueue_many(saying, numbered(123))
    assert saying.most == 3
    assert len(contents(queue, db)) == 2 * 123


@pytest.mark.usefixtures("small_batches")
def test_a_failing_input_reports_enqueued_and_missing_values(db: Any, queue: Queue) -> None:
    def values() -> Iterator[bytes]:
        yield from numbered(35)
        raise LookupError("the file ended early")

    with pytest.raises(
        BulkInterrupted, match=r"after 30 values were in: LookupError: the file ended early\. O"
    ) as stopped:
        queue.enqueue_many(db, values())
    assert isinstance(stopped.value.__cause__, LookupError)
    assert stopped.value.missing == [(30, 35)]
    assert "35 were read. These are not in: 30 to 34 (`missing`). Enqueue them again" in str(stopped.value)
    assert stopped.value.report.items == 30
    assert contents(queue, db) == numbered(30)
    assert queue.check(db).ok


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_endless_load_tells_which_values_are_in(db: Any, queue: Queue) -> None:
    def values() -> Iterator[bytes]:
        for n in count():
            if n == 235:
                raise KeyboardInterrupt
            yield b"%06d" % n

    with pytest.raises(KeyboardInterrupt) as stopped:
        queue.enqueue_many(db, values())
    (note,) = stopped.value.__notes__
    told = re.search(r"had read 235 values, of which these are in: 0 to (\d+), counted from 0", note)
    assert told is not None, note
    assert contents(queue, db)[: int(told[1]) + 1] == numbered(int(told[1]) + 1)
    assert int(told[1]) >= 235 - (bulk.COMMITS_IN_FLIGHT + 2) * 10
    assert note.endswith("All others are not in.")
    there, in_doubt = len(contents(queue, db)), re.search(r"The commits of (.*) were under way: these may be in", note)
    assert there <= (235 if in_doubt is None else int(re.findall(r"\d+", in_doubt[1])[-1]) + 1)


class EveryOtherTransaction(FaultyTransaction):
    """Its commit is never answered, or in every other transaction it conflicts once, before it is under way."""

    def __init__(self, tr: Any, db: EveryOtherDatabase) -> None:
        super().__init__(tr, db)
        self._conflicts = bool(db.transactions % 2)

    def commit(self) -> Any:
        if not self._conflicts:
            return Failed(KeyboardInterrupt())
        if self._db.commits % 2 == 0:
            self._db.commits += 1
            raise FDBError(1020)
        self._db.commits += 1
        return self._tr.commit()


class EveryOtherDatabase(FaultyDatabase):
    commits_in_flight = 8
    transactions = 0

    def create_transaction(self) -> EveryOtherTransaction:
        self.transactions += 1
        return EveryOtherTransaction(self._db.create_transaction(), self)


@pytest.mark.usefixtures("small_batches")
def test_an_interrupted_load_with_many_gaps_tells_all_of_them(db: Any, queue: Queue) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        queue.enqueue_many(EveryOtherDatabase(db, lambda: None), numbered(1_000))
    (note,) = stopped.value.__notes__
    told = re.search(r"these are in: (.*), counted from 0\. The commits of (.*) were under way", note)
    assert told is not None, note
    done, doubtful = ([int(number) for number in re.findall(r"\d+", part)] for part in told.groups())
    assert [int(value) for value in contents(queue, db)] == [
        number for first, last in zip(done[::2], done[1::2], strict=True) for number in range(first, last + 1)
    ]
    assert len(done) > 2 * bulk.MOST_SPANS_TOLD
    assert len(doubtful) == 2 * 8


@pytest.mark.usefixtures("small_batches")
def test_a_commit_that_cannot_succeed_reports_the_missing_values(db: Any, queue: Queue) -> None:
    faulty = FaultyDatabase.failing_at(db, {2}, ("before", 2023))
    with pytest.raises(BulkInterrupted) as stopped:
        queue.enqueue_many(faulty, numbered(60))
    values = numbered(60)
    in_queue = contents(queue, db)
    missing = [values[n] for first, end in stopped.value.missing for n in range(first, end)]
    assert values[20:30] == missing[:10]
    assert sorted(in_queue + missing) == values[: len(in_queue) + len(missing)]
    assert stopped.value.unknown == []


def numbers(spans: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in spans for number in range(first, end)}


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_that_times_out_is_neither_said_to_be_in_nor_to_be_missing(db: Any, queue: Queue, when: When) -> None:
    faulty = FaultyDatabase.failing_at(db, {2}, (when, 1031))
    with pytest.raises(BulkInterrupted, match="Of 10 more, in `unknown`, nobody knows") as stopped:
        queue.enqueue_many(faulty, numbered(40))
    assert (stopped.value.missing, stopped.value.unknown) == ([], [(20, 30)])
    assert stopped.value.report.items == 30
    assert len(contents(queue, db)) == (40 if when == "after" else 30)


@pytest.mark.usefixtures("small_batches")
def test_values_refused_by_a_full_disk_are_missing_and_not_unknown(db: Any, queue: Queue) -> None:
    full = StorageError("The disk is full. Nothing of this commit was kept.")
    plan: Iterator[Fault | None] = iter([None, None, ("before", 1020), ("before", full)])
    faulty = FaultyDatabase(db, lambda: next(plan, None))
    faulty.commits_in_flight = 1
    with pytest.raises(BulkInterrupted, match="The disk is full") as stopped:
        queue.enqueue_many(faulty, numbered(60))
    assert (stopped.value.missing, stopped.value.unknown) == ([(20, 30)], [])
    assert contents(queue, db) == numbered(20)


@pytest.mark.usefixtures("small_batches")
def test_a_full_disk_before_anything_is_in_is_the_disks_own_error(db: Any, queue: Queue) -> None:
    full = StorageError("The disk is full. Nothing of this commit was kept.")
    plan: Iterator[Fault | None] = iter([("before", 1020), ("before", full)])
    with pytest.raises(StorageError, match="The disk is full"):
        queue.enqueue_many(FaultyDatabase(db, lambda: next(plan, None)), numbered(5))


@pytest.mark.usefixtures("small_batches")
def test_a_failing_input_does_not_hide_a_commit_with_an_unknown_outcome(db: Any, queue: Queue) -> None:
    def values() -> Iterator[bytes]:
        yield from numbered(10)
        raise LookupError("the file ended early")

    with pytest.raises(
        BulkInterrupted, match=r"after 0 values were in: LookupError: the file ended early\. O"
    ) as stopped:
        queue.enqueue_many(FaultyDatabase.failing_at(db, {0}, ("after", 1031)), values())
    assert (stopped.value.missing, stopped.value.unknown) == ([], [(0, 10)])


@pytest.mark.usefixtures("small_batches")
@given(plan=st.lists(st.none() | st.sampled_from(ENDING), max_size=30), broken_after=st.integers(0, 123))
def test_all_that_an_interrupted_load_says_is_true_under_faults(
    db: Any, plan: list[Fault | None], broken_after: int
) -> None:
    queue = Queue(("fdbqueue tests", "told", str(id(plan))))
    queue.clear(db)
    pending = iter(plan)

    def values() -> Iterator[bytes]:
        yield from numbered(broken_after)
        raise LookupError("the file ended early")

    with pytest.raises((BulkInterrupted, FDBError, LookupError)) as stopped:
        queue.enqueue_many(FaultyDatabase(db, lambda: next(pending, None)), values())
    found = [int(value) for value in contents(queue, db)]
    assert found == sorted(set(found))
    told = stopped.value
    if isinstance(told, BulkInterrupted):
        missing, unknown = numbers(told.missing), numbers(told.unknown)
        known = set(range(max([*missing, *unknown, *found], default=-1) + 1)) - missing - unknown
        assert not missing & unknown
        assert known <= set(found) <= known | unknown
        assert told.report.items == len(known)
    elif isinstance(told, FDBError):
        assert told.code in (2023, 1031)
        assert not found or told.code == 1031
    else:
        assert not found
    assert queue.check(db).ok
    queue.clear(db)


@pytest.mark.usefixtures("small_batches")
def test_repeated_batches_give_their_markers_back(db: Any, queue: Queue) -> None:
    for _ in range(3):
        failing = FaultyDatabase.failing_at(db, set(range(5)), ("before", 1020))
        assert queue.enqueue_many(failing, numbered(50)).conflicts == 5
    assert len(list(db.get_range_startswith(queue.layout.markers.key()))) == 5


class UnreadTransaction(FaultyTransaction):
    """Can't read the last index at its first attempt."""

    refusing = True

    @property
    def snapshot(self) -> Any:
        return self if self.refusing else self._tr.snapshot

    def get_key(self, selector: Any) -> Any:
        return Failed(1007)

    def on_error(self, error: Any) -> Any:
        self.refusing = False
        return self._tr.on_error(error)


class UnreadDatabase(FaultyDatabase):
    def create_transaction(self) -> FaultyTransaction:
        return UnreadTransaction(self._db.create_transaction(), self)


@pytest.mark.usefixtures("small_batches")
def test_batches_with_an_unreadable_last_index_are_enqueued(db: Any, queue: Queue) -> None:
    report = queue.enqueue_many(UnreadDatabase(db, lambda: None), numbered(50))
    assert (report.items, report.retries) == (50, 5)
    assert contents(queue, db) == numbered(50)
    assert queue.check(db).ok


class DroppingTransaction(FaultyTransaction):
    """Forgets its marks: reads of them fail as the database's `reads` say."""

    def get(self, key: bytes) -> Any:
        code = next(self._db.reads, None)
        return self._tr.get(key) if code is None else Failed(code)


class DroppingDatabase(FaultyDatabase):
    reads: Iterator[int]

    def create_transaction(self) -> DroppingTransaction:
        return DroppingTransaction(self._db.create_transaction(), self)


def test_a_batch_is_not_split_while_its_outcome_is_unknown(db: Any, queue: Queue) -> None:
    dropping = DroppingDatabase.failing_at(db, {0}, ("after", 1021))
    dropping.reads = iter([1007, 1007, 1007])
    report = queue.enqueue_many(dropping, numbered(20))
    assert contents(queue, db) == numbered(20)
    assert (report.items, report.transactions, report.retries) == (20, 1, 0)


def test_an_outcome_that_stays_unknown_is_reported_as_unknown(db: Any, queue: Queue) -> None:
    dropping = DroppingDatabase.failing_at(db, {0}, ("after", 1021))
    dropping.reads = iter([2017])
    with pytest.raises(FDBError, match="1021"):
        queue.enqueue_many(dropping, numbered(20))
    assert contents(queue, db) == numbered(20)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("failing", "first", "last"), [(0, 11, 30), (2, 1, 20)])
def test_an_interrupted_load_reports_the_first_and_last_enqueued_positions(
    db: Any, queue: Queue, failing: int, first: int, last: int
) -> None:
    with pytest.raises(BulkInterrupted) as stopped:
        queue.enqueue_many(FaultyDatabase.failing_at(db, {failing}, ("before", 2023)), numbered(30))
    report = stopped.value.report
    assert report.first is not None
    assert report.last is not None
    assert (report.first.index, report.last.index) == (first, last)
    assert [item.position for item in queue.browse(db)][:: report.items - 1] == [report.first, report.last]


@pytest.mark.usefixtures("small_batches")
def test_an_interrupt_at_the_end_of_a_failed_load_tells_which_values_are_in(db: Any, queue: Queue) -> None:
    def values() -> Iterator[bytes]:
        yield from numbered(30)
        raise LookupError("the file ended early")

    class Interrupted(FaultyTransaction):
        def commit(self) -> Any:
            return Failed(KeyboardInterrupt()) if self._db.next_fault() else self._tr.commit()

    class Interrupting(FaultyDatabase):
        def create_transaction(self) -> FaultyTransaction:
            return Interrupted(self._db.create_transaction(), self)

    with pytest.raises(KeyboardInterrupt) as stopped:
        queue.enqueue_many(Interrupting.failing_at(db, {1}, ("before", 0)), values())
    told = "30 values, of which these are in: 0 to 9, counted from 0. The commits of 10 to 29"
    assert told in stopped.value.__notes__[0]


@pytest.mark.usefixtures("small_batches")
def test_an_outcome_whose_marker_could_not_be_read_stays_unknown(db: Any, queue: Queue) -> None:
    dropping = DroppingDatabase.failing_at(db, {0}, ("after", 1021))
    dropping.reads = iter([1031])
    with pytest.raises(BulkInterrupted) as stopped:
        queue.enqueue_many(dropping, numbered(20))
    assert (stopped.value.missing, stopped.value.unknown) == ([], [(0, 10)])
    assert contents(queue, db) == numbered(20)


def test_a_first_value_that_does_not_fit_is_the_codecs_own_error(db: Any, queue: Queue) -> None:
    texts: Queue[Any] = Queue(queue.layout.space, codec="str")
    with pytest.raises(CodecError):
        queue.enqueue_many(db, ["text"])
    with pytest.raises(CodecError):
        texts.enqueue_many(db, [b"bytes, which only one codec takes as they are"])
    with pytest.raises(FDBError, match="1031"):
        queue.enqueue_many(FaultyDatabase.failing_at(db, {0}, ("before", 1031)), [b"x"])
    assert queue.is_empty(db)


def test_given_a_transaction_all_go_into_it_and_nothing_is_committed(db: Any, queue: Queue) -> None:
    tr = db.create_transaction()
    queue.enqueue(tr, b"a")
    queue.enqueue_many(tr, [b"b", b"c"])
    queue.enqueue(tr, b"d")
    assert queue.is_empty(db)
    tr.commit().wait()
    assert contents(queue, db) == [b"a", b"b", b"c", b"d"]
