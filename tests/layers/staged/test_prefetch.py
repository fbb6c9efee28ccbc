"""An uncontended process prefetches the next items. If the prediction is wrong, no item is lost or taken twice."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import CodecError, Position, Queue
from fdbqueue.engine import FDBError
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.layers.leases import LeaseHandle, Leases
from fdbqueue.layers.leases.taking import Got
from fdbqueue.layers.staged import StagedQueue, recent
from fdbqueue.layers.staged import delivery as _delivery
from fdbqueue.stored.items import NO_NOTES, envelope
from tests.helpers.clock import Clock
from tests.helpers.faults import Fault, FaultyDatabase, When
from tests.helpers.held import HeldDatabase
from tests.helpers.raw import raw
from tests.helpers.reading import Reading, ReadingTransaction
from tests.helpers.staging import join_finishers, left_behind, register, value

FAULTS: list[Fault] = [("before", 1021), ("after", 1021), ("before", 1020), ("before", 1007)]
BEGINNING = 2
"""After so many calls a process foresees: the first one reads one item, the second one two."""


class Watching(Reading):
    """Does something once, right before one of its commits or together with it, and counts what is read."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.before: Callable[[], object] | None = None
        self.together: Callable[[Any], object] | None = None

    def create_transaction(self) -> ReadingTransaction:
        return _Watched(self._db.create_transaction(), self)


class _Watched(ReadingTransaction):
    def __init__(self, tr: Any, db: Watching) -> None:
        super().__init__(tr, db)
        self._watching = db

    def commit(self) -> Any:
        watching = self._watching
        before, watching.before = watching.before, None
        if before is not None:
            before()
        together, watching.together = watching.together, None
        if together is None:
            return super().commit()
        other = watching.wrapped.create_transaction()
        together(other)
        commits = super().commit(), other.commit()  # the second right behind the first, most often in one batch
        commits[1].wait()
        return commits[0]


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "WORTH_SECONDS", 0.0)  # however soon an engine answers


@pytest.fixture
def watching(db: Any) -> Watching:
    return Watching(db)


@pytest.fixture
def staged(watching: Watching, queue: Queue, leases: Leases) -> StagedQueue:
    """Return one that has taken 0 and 1, and knows that 2 and 3 come next."""
    staged = StagedQueue(leases)
    queue.enqueue_many(watching.wrapped, [str(number) for number in range(8)])
    assert [value(staged.dequeue(watching)) for _ in range(3)] == ["0", "1", "2"]
    watching.reads = 0
    return staged


def bring(tr: Any, queue: Queue, index: int, text: str) -> None:
    """Enqueue an item as a slow producer does, with an index that it chose before others came and went.

    It comes behind the item that has the same index.
    """
    tr.set(
        queue.layout.item_key(Position(index, b"\xff" * 8 + secrets.token_bytes(7))), envelope(queue.encode(text), None)
    )


def rest(staged: StagedQueue, db: Any) -> Iterator[str]:
    while (item := staged.dequeue(db)) is not None:
        yield item.value


def test_a_lone_process_prefetches_and_then_takes_without_a_read(
    watching: Watching, queue: Queue, leases: Leases, staged: StagedQueue
) -> None:
    commits = watching.commits
    assert value(staged.dequeue(watching)) == "3"
    assert (watching.reads, watching.commits - commits) == (1, 1)
    for text in ("4", "5", "6"):  # of the four that this read
        assert value(staged.dequeue(watching)) == text
    assert (watching.reads, watching.commits - commits) == (1, 4)
    assert list(rest(staged, watching)) == ["7"]
    assert staged.contention_stats().conflicts == 0
    assert leases.check(watching.wrapped).ok
    assert queue.stats(watching.wrapped).dequeued == 8


def test_an_engine_that_answers_at_once_is_read(
    watching: Watching, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "WORTH_SECONDS", 1_000.0)
    queue.enqueue_many(watching.wrapped, list("abcdef"))
    staged = StagedQueue(leases)
    queue.peek(watching)  # the first look of an object compares its codec with the queue's
    for text in "abcdef":
        watching.reads = 0
        assert value(staged.dequeue(watching)) == text
        assert watching.reads == 1


# What others do between the version that a foreseen take begins at and its commit.


def test_an_enqueue_during_a_prefetched_take_does_no_harm(db: Any, watching: Watching, staged: StagedQueue) -> None:
    staged.dequeue(watching)
    watching.before = lambda: Queue(staged.queue.layout.space, codec="str").enqueue(db, "behind")
    assert value(staged.dequeue(watching)) == "4"
    assert staged.contention_stats().conflicts == 0


@pytest.mark.parametrize("foresees", [False, True], ids=["looking", "foreseeing"])
@pytest.mark.parametrize(("index", "text"), [(1, "0"), (4, "3"), (5, "4"), (6, "5")])
def test_an_item_that_arrives_ahead_of_prefetched_ones_is_taken_in_its_place(
    db: Any, watching: Watching, staged: StagedQueue, index: int, text: str, foresees: bool
) -> None:
    left = ["3", "4", "5", "6", "7"]
    if foresees:
        assert value(staged.dequeue(watching)) == left.pop(0)

    def come() -> None:
        tr = db.create_transaction()
        bring(tr, staged.queue, index, text + " late")
        tr.commit().wait()

    watching.before = come
    assert list(rest(staged, watching)) == sorted([*left, text + " late"])
    assert staged.contention_stats().conflicts == 1


@pytest.mark.parametrize("index", [1, 4])
def test_an_item_committed_in_the_batch_of_the_last_take_is_seen_by_the_next(
    watching: Watching, staged: StagedQueue, index: int
) -> None:
    assert value(staged.dequeue(watching)) == "3"  # it knows 4, 5 and 6
    watching.together = lambda tr: bring(tr, staged.queue, index, "late")
    assert value(staged.dequeue(watching)) == "4"
    assert value(staged.dequeue(watching)) == "late"
    assert value(staged.dequeue(watching)) == "5"


def test_an_item_that_another_process_took_is_not_taken_twice(
    db: Any, watching: Watching, queue: Queue, leases: Leases, staged: StagedQueue
) -> None:
    staged.dequeue(watching)
    taken: list[Any] = []
    watching.before = lambda: taken.append(value(StagedQueue(leases).dequeue(db)))
    assert value(staged.dequeue(watching)) == "5"
    assert taken == ["4"]
    watching.before = lambda: taken.append(value(queue.dequeue(db)))
    assert value(staged.dequeue(watching)) == "7"
    assert taken == ["4", "6"]


def test_two_processes_that_prefetch_the_same_items_take_each_once_and_in_order(
    db: Any, queue: Queue, leases: Leases
) -> None:
    both = StagedQueue(leases), StagedQueue(leases)
    queue.enqueue_many(db, [f"{number:03}" for number in range(60)])
    got = [value(both[number // 5 % 2].dequeue(db)) for number in range(60)]
    assert got == [f"{number:03}" for number in range(60)]
    assert queue.stats(db).dequeued == 60


def test_a_request_registered_during_a_prefetched_take_is_served_first(
    db: Any, watching: Watching, queue: Queue, leases: Leases, staged: StagedQueue, clock: Clock
) -> None:
    staged.dequeue(watching)
    watching.before = lambda: register(db, queue, clock)
    assert value(staged.dequeue(watching)) == "5"
    assert [kept.value for kept in leases.browse(db, state="leased")] == ["4"]


def test_an_item_leased_and_given_back_before_a_prefetched_take_comes_first(
    db: Any, watching: Watching, leases: Leases, staged: StagedQueue, clock: Clock
) -> None:
    staged.dequeue(watching)
    held: list[Any] = []
    watching.before = lambda: held.append(leases.lease(db, duration=10))
    assert value(staged.dequeue(watching)) == "5"
    watching.before = lambda: leases.nack(db, held[0])
    assert value(staged.dequeue(watching)) == "4"
    held.append(leases.lease(db, duration=10))
    clock.now += 11  # it expires, and nobody writes anything
    assert value(staged.dequeue(watching)) == "6"


def test_an_item_that_falls_due_is_seen_without_any_write(
    db: Any, watching: Watching, leases: Leases, staged: StagedQueue, clock: Clock
) -> None:
    staged.dequeue(watching)
    watching.before = lambda: leases.enqueue(db, "delayed", delay=10)
    assert value(staged.dequeue(watching)) == "4"
    clock.now += 11
    assert list(rest(staged, watching)) == ["5", "6", "7", "delayed"]


def test_a_prefetched_item_that_expires_is_not_taken(db: Any, queue: Queue, leases: Leases, clock: Clock) -> None:
    staged = StagedQueue(leases)
    for number in range(4):
        queue.enqueue(db, str(number))
    leases.enqueue(db, "mortal", ttl=10)
    leases.enqueue(db, "last")
    assert [value(staged.dequeue(db)) for _ in range(4)] == ["0", "1", "2", "3"]
    clock.now += 11
    assert value(staged.dequeue(db)) == "last"


def test_a_queue_that_is_cleared_and_filled_again_is_seen(db: Any, watching: Watching, staged: StagedQueue) -> None:
    staged.dequeue(watching)

    def clear_and_fill() -> None:
        staged.queue.clear(db)
        staged.queue.enqueue(db, "new")

    watching.before = clear_and_fill
    assert list(rest(staged, watching)) == ["new"]


# What the process itself does.


def test_an_item_of_a_cancelled_caller_returns_to_its_place_and_is_first(db: Any, queue: Queue, leases: Leases) -> None:
    held = HeldDatabase(db)
    held.release()
    staged = StagedQueue(leases)
    queue.enqueue_many(db, list("abcdef"))
    assert [value(staged.dequeue(held)) for _ in range(3)] == ["a", "b", "c"]

    async def take_and_cancel() -> None:
        held.hold()
        task = asyncio.create_task(staged.dequeue.aio(held))
        await asyncio.to_thread(held.committing.wait, 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        held.release()

    asyncio.run(take_and_cancel())
    join_finishers()
    assert list(rest(staged, held)) == ["d", "e", "f"]
    assert leases.check(db).ok
    assert queue.stats(db).dequeued == 6


def test_an_item_that_is_put_back_while_the_next_is_taken_comes_first(
    db: Any, watching: Watching, leases: Leases, staged: StagedQueue
) -> None:
    item = staged.dequeue(watching)
    assert item is not None
    key = staged.queue.layout.item_key(item.position)
    stored = envelope(staged.queue.encode("3"), None)
    got = Got(item, staged.queue.layout.available.packed(key), stored, NO_NOTES)
    watching.before = lambda: run(attempts(db, lambda tr: leases.taking.put_back(tr, [got])))
    assert list(rest(staged, watching)) == ["3", "4", "5", "6", "7"]


def test_an_unreadable_item_is_reported_and_stays(db: Any, queue: Queue, leases: Leases) -> None:
    staged = StagedQueue(leases)
    of_bytes = raw(queue.layout.space)
    for stored in (b"a", b"b", b"c", b"\xff", b"behind"):
        of_bytes.enqueue(db, stored)
    assert [value(staged.dequeue(db)) for _ in range(3)] == ["a", "b", "c"]
    for _ in range(2):
        with pytest.raises(CodecError):
            staged.dequeue(db)
    assert of_bytes.dequeue(db) is not None
    assert list(rest(staged, db)) == ["behind"]


def test_large_items_and_some_with_notes_are_read_when_it_is_their_turn(
    watching: Watching, queue: Queue, leases: Leases
) -> None:
    db = watching.wrapped
    staged = StagedQueue(leases)
    large = "large" * 30_000
    for text in ("a", "b", "c", "noted", large, "d", "e"):
        queue.enqueue(db, text)
    noted = leases.lease_many(db, limit=4)[3]
    for lease in leases.browse(db, state="leased"):
        leases.nack(db, LeaseHandle(lease.position, noted.token))  # all come back, with their attempts noted
    for text in ("a", "b", "c", "noted", large, "d", "e"):
        assert value(staged.dequeue(watching)) == text
    assert list(db.get_range_startswith(queue.layout.chunks.key())) == []
    assert leases.check(db).ok


def test_a_process_that_rarely_takes_reads_one_item_each_time(
    watching: Watching, staged: StagedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "RECENT_SECONDS", -1.0)  # whatever it knows is too old
    for text in ("3", "4", "5"):
        watching.reads = 0
        assert value(staged.dequeue(watching)) == text
        assert watching.reads == 1


def test_a_queue_whose_timers_are_gone_is_prefetched_again(
    watching: Watching, leases: Leases, staged: StagedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_delivery, "TRY_AGAIN_LOOKS", 3)
    lease = leases.lease(watching.wrapped)
    assert lease is not None
    reads = []
    for text in ("4", "5", "6", "7", None):
        watching.reads = 0
        assert value(staged.dequeue(watching)) == text
        reads.append(watching.reads)
        if text == "4":
            leases.ack(watching.wrapped, lease)
    assert min(reads[:2]) > 1  # timers, requests and items, each for themselves
    assert reads[-1] == 1


def test_after_a_wrong_prediction_it_reads_for_some_time(
    watching: Watching, queue: Queue, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "WRONG_CALLS", 3)
    staged = StagedQueue(leases)
    queue.enqueue_many(watching.wrapped, [f"{number:02}" for number in range(40)])
    queue.peek(watching)  # the first look of an object compares its codec with the queue's
    reads = []
    for number in range(40):
        if number == 5:
            watching.before = partial(queue.dequeue, watching.wrapped)  # takes the 05 away
        watching.reads = 0
        item = staged.dequeue(watching)
        assert value(item) == (f"{number + (number >= 5):02}" if number < 39 else None)
        reads.append(watching.reads)
    # It takes 1, 2 and 4 after a look; then looks for 3 more calls, and starts again.
    assert reads[:18] == [1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0]


def test_large_values_are_not_read_far_ahead(watching: Watching, queue: Queue, leases: Leases) -> None:
    queue.enqueue_many(watching.wrapped, ["x" * 20_000 for _ in range(40)])
    staged = StagedQueue(leases)
    for _ in range(40):
        staged.dequeue(watching)
    assert watching.reads >= 10  # two or four at once, not 32


# Exactly once.


@pytest.mark.parametrize("at", range(2))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_prefetched_item_is_taken_exactly_once_under_a_fault(
    db: Any, queue: Queue, leases: Leases, fault: Fault, at: int
) -> None:
    staged = StagedQueue(leases)
    queue.enqueue_many(db, list("abcdefgh"))
    faulty = FaultyDatabase.failing_at(db, {BEGINNING + at, BEGINNING + at + 2}, fault)
    assert [value(staged.dequeue(faulty)) for _ in range(9)] == [*"abcdefgh", None]
    assert queue.stats(db).dequeued == 8
    assert left_behind(queue, db) == []
    assert leases.check(db).ok


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prefetched_take_that_times_out_is_reported_and_not_retried(
    db: Any, queue: Queue, leases: Leases, when: When
) -> None:
    staged = StagedQueue(leases)
    queue.enqueue_many(db, list("abcdef"))
    faulty = FaultyDatabase.failing_at(db, {BEGINNING}, (when, 1031))
    assert [value(staged.dequeue(faulty)) for _ in range(2)] == ["a", "b"]
    with pytest.raises(FDBError, match="1031"):
        staged.dequeue(faulty)
    assert list(rest(staged, faulty)) == list("cdef" if when == "before" else "def")


# What comes meanwhile is drawn before anything runs: how often the callback runs depends on a cluster's timing.
MEANWHILE = st.sampled_from(["nothing", "nothing", "nothing", "come", "take"])
SALTS = st.integers(0, 10**6)


@given(
    first=st.lists(SALTS, min_size=10, max_size=10),
    moves=st.lists(st.tuples(MEANWHILE, st.integers(1, 30), SALTS, st.integers(0, 4)), min_size=1, max_size=25),
)
def test_random_comings_and_goings_are_seen_as_in_a_list(
    db: Any, first: list[int], moves: list[tuple[str, int, int, int]]
) -> None:
    queue = Queue(("fdbqueue tests", "foreseen", secrets.token_hex(8)), codec="str")
    watching, leases = Watching(db), Leases(queue)
    staged = [StagedQueue(leases), StagedQueue(leases)]
    model: list[tuple[int, str]] = []
    numbers = itertools.count()

    def come(index: int, salt: int) -> None:
        text = f"{index:02} {salt} {next(numbers)}"  # no two have one position
        position = Position(index, text.encode())
        db.set(queue.layout.item_key(position), envelope(queue.encode(text), None))
        model.append((index, text))
        model.sort()

    def take_elsewhere() -> None:
        item = queue.dequeue(db)
        assert value(item) == (model.pop(0)[1] if model else None)

    for index, salt in enumerate(first, start=10):
        come(index, salt)
    for meanwhile, index, salt, which in moves:
        if meanwhile == "come":
            watching.before = partial(come, index, salt)
        elif meanwhile == "take":
            watching.before = take_elsewhere
        before = list(model)
        item = staged[which == 0].dequeue(watching)
        if watching.before is not None:  # it saw nothing, and did not commit
            watching.before = None
            assert item is None
            assert not before
            continue
        assert value(item) == (model.pop(0)[1] if model else None)
    queue.clear(db)
