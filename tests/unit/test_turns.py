"""Turns: processes take items from the head of a queue one after the other, and none of them has to."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import FDBError
from fdbqueue.engine.embedded.store.commit import scheduling
from fdbqueue.engine.embedded.store.commit.scheduling import MOST_DEFERS, QUIET_NS, TICKET_NS, TURN_NS, ProcessScheduler
from fdbqueue.engine.optional import shares_turns
from fdbqueue.layers import Leases, PriorityQueue, RelaxedQueue, StagedQueue
from tests.helpers.stores import store_of

START = 10**9


class Clock:
    """Virtual time for several threads: it passes only when all of them sleep."""

    def __init__(self, threads: int) -> None:
        self.now = START
        self._awake = threads
        self._due: list[int] = []
        self._changed = threading.Condition()

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self._changed:
            due = self.now + max(1, round(seconds * 1e9))
            self._due.append(due)
            self._awake -= 1
            self._pass_time()
            while self.now < due:
                self._changed.wait()

    def leave(self) -> None:
        with self._changed:
            self._awake -= 1
            self._pass_time()

    def _pass_time(self) -> None:
        if not self._awake and self._due:
            self.now = min(self._due)
            self._awake = self._due.count(self.now)
            self._due = [due for due in self._due if due > self.now]
            self._changed.notify_all()


def schedulers(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> list[ProcessScheduler]:
    """Return the schedulers of so many processes."""
    monkeypatch.setattr(scheduling, "time", clock)
    first, found = os.getpid(), []
    for at in range(number):
        pid = first + at
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        found.append(ProcessScheduler(str(folder)))
    monkeypatch.undo()
    monkeypatch.setattr(scheduling, "time", clock)
    return found


def in_threads(*work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=one, daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("number", [2, 4, 8])
def test_the_fullest_share_of_two_seconds_is_at_most_one_and_a_half_times_the_emptiest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    clock = Clock(number)
    shares = [0] * number
    processes = schedulers(tmp_path, number, monkeypatch, clock)

    def take(at: int) -> None:
        while clock.now < START + 2 * 10**9:
            if (turn := processes[at].next_turn()) is not None:
                turn.wait()
            clock.sleep(0.0005)
            shares[at] += 1
        clock.leave()

    in_threads(*[lambda at=at: take(at) for at in range(number)])
    assert max(shares) <= 1.5 * min(shares), shares
    assert sum(shares) >= 0.85 * 4_000, "little time is lost between two processes"


def test_the_holder_of_a_turn_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = schedulers(tmp_path, 2, monkeypatch, Clock(1))
    first = mine.next_turn()
    assert first is not None
    first.wait()
    assert mine.next_turn() is None
    assert not mine.shared, "it has met no other process"
    assert theirs.next_turn() is not None


def test_a_process_that_leaves_its_turn_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1)
    mine, theirs = schedulers(tmp_path, 2, monkeypatch, clock)
    mine.wait()
    theirs.wait()
    assert clock.now == START + QUIET_NS
    shared = theirs.shared
    assert shared
    assert mine.next_turn() is not None
    clock.now += scheduling.SHARED_NS
    assert not theirs.shared
    mine.wait()
    assert not mine.shared, "the other one may be long gone"


def test_a_holder_that_waits_for_the_disk_keeps_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1)
    mine, theirs = schedulers(tmp_path, 2, monkeypatch, clock)
    mine.waited(2 * QUIET_NS)
    mine.wait()
    theirs.wait()
    assert START + 5 * QUIET_NS <= clock.now < START + TURN_NS


def test_a_holder_whose_commit_is_on_the_disk_is_waited_for_no_longer_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(1)
    mine, theirs = schedulers(tmp_path, 2, monkeypatch, clock)
    mine.waited(2 * QUIET_NS)
    mine.wait()
    mine.waited(2 * QUIET_NS)
    theirs.wait()
    assert clock.now == START + QUIET_NS
    mine.waited(2 * QUIET_NS)
    assert mine.next_turn() is not None, "it is not the holder any more"


def test_two_threads_of_a_process_wait_for_the_same_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1)
    holder, mine = schedulers(tmp_path, 2, monkeypatch, clock)
    holder.wait()

    def other_thread(_: float) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(scheduling, "time", clock)
        clock.now += QUIET_NS
        mine.wait()

    monkeypatch.setattr(clock, "sleep", other_thread)
    mine.wait()
    assert clock.now == START + QUIET_NS
    assert mine.next_turn() is None


def test_a_process_that_waits_longer_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(2)
    holder, early, late = schedulers(tmp_path, 3, monkeypatch, clock)
    holder.wait()
    order: list[str] = []

    def come(process: ProcessScheduler, name: str, after: float) -> None:
        clock.sleep(after)
        process.wait()
        order.append(name)
        clock.leave()

    in_threads(lambda: come(late, "late", 0.0001), lambda: come(early, "early", 0.00001))
    assert order == ["early", "late"]


def test_a_process_that_died_while_it_waited_delays_the_others_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    clock = Clock(1)
    holder, dead, mine = schedulers(tmp_path, 3, monkeypatch, clock)
    holder.wait()
    sleep = clock.sleep

    def die(seconds: float) -> None:
        raise Killed

    monkeypatch.setattr(clock, "sleep", die)
    with pytest.raises(Killed):
        dead.wait()
    monkeypatch.setattr(clock, "sleep", sleep)
    clock.now += 1
    mine.wait()
    assert clock.now <= START + QUIET_NS + 1 + MOST_DEFERS * scheduling.DEFER_NS
    clock.now += TICKET_NS
    before = clock.now
    holder.wait()
    assert clock.now == before, "the ticket has expired"


# -- verbs ------------------------------------------------------------------------------------------------------------


def held_by_another(db: Any) -> ProcessScheduler:
    """Let another process, which is none, have the turn."""
    scheduler: ProcessScheduler = store_of(db).process_scheduler
    own = scheduler.me
    scheduler.me = 1
    scheduler.wait()
    scheduler.me = own
    return scheduler


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that waited for a turn of a process."""
    found: list[str] = []
    wait = ProcessScheduler.wait

    def noted(scheduler: ProcessScheduler) -> None:
        if scheduling.PAGE_HOLDER.unpack_from(scheduler.page)[0] == 1:
            found.append(threading.current_thread().name)
        wait(scheduler)

    monkeypatch.setattr(ProcessScheduler, "wait", noted)
    return found


TAKES: dict[str, Callable[[Any, Queue], Any]] = {
    "dequeue": lambda db, queue: queue.dequeue(db),
    "dequeue_many": lambda db, queue: queue.dequeue_many(db, limit=1)[0],
    "lease": lambda db, queue: Leases(queue).lease(db),
    "priority dequeue": lambda db, queue: PriorityQueue(queue).dequeue(db),
    "relaxed dequeue": lambda db, queue: RelaxedQueue(queue, window=1).dequeue(db),
    "staged dequeue": lambda db, queue: StagedQueue(queue).dequeue(db),
    "staged lease": lambda db, queue: StagedQueue(queue).lease(db),
}


@pytest.mark.parametrize("name", TAKES)
def test_a_verb_that_takes_items_waits_for_a_turn(tmp_path: Path, waits: list[str], name: str) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        queue.enqueue_many(db, [b"a", b"b"])
        held_by_another(db)
        assert TAKES[name](db, queue).value == b"a"
        assert waits == [threading.current_thread().name]
        assert shares_turns(db)


def test_a_call_in_a_transaction_of_the_caller_waits_for_no_turn(tmp_path: Path, waits: list[str]) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        queue.enqueue_many(db, [b"a", b"b"])
        held_by_another(db)
        tr = db.create_transaction()
        assert queue.dequeue(tr) is not None
        assert Leases(queue).lease(tr) is not None
        tr.commit().wait()
        queue.enqueue(db, b"c")
        assert waits == []


def test_after_a_conflict_any_verb_waits_for_a_turn(tmp_path: Path, waits: list[str]) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        tries: list[int] = []

        async def body(tr: Any) -> None:
            await fdbqueue.lowlevel.value_of(tr.get(b"k"))
            tries.append(0)
            if len(tries) == 1:
                db[b"k"] = b"another's"
                held_by_another(db)
            tr[b"own"] = b""

        fdbqueue.lowlevel.run(queue.transact(db, body))
        assert len(tries) == 2
        assert len(waits) == 1


def test_an_event_loop_goes_on_while_a_task_waits_for_its_turn(tmp_path: Path, waits: list[str]) -> None:
    async def main(db: Any, queue: Queue) -> None:
        held_by_another(db)
        taking = asyncio.ensure_future(queue.dequeue.aio(db))
        item = await taking
        assert item is not None
        assert waits == ["fdbqueue-turn"]

        held_by_another(db)
        taking = asyncio.ensure_future(queue.dequeue.aio(db))
        await asyncio.sleep(0)
        assert taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert [item.value async for item in queue.browse(db)] == [b"b"], "a cancelled call takes nothing"

    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        queue.enqueue_many(db, [b"a", b"b"])
        asyncio.run(main(db, queue))


def test_a_database_that_is_closed_while_a_thread_waits_for_its_turn_refuses_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = fdbqueue.open(f"file:{tmp_path}")
    queue = Queue("q")
    queue.enqueue(db, b"a")
    turn = held_by_another(db).next_turn()
    assert turn is not None
    db.close()
    turn.wait()
    with pytest.raises(fdbqueue.StorageError, match="was closed"):
        queue.dequeue(db)


def test_a_forked_child_is_another_process_with_turns_of_its_own(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        queue.enqueue_many(db, [b"a", b"b"])
        assert queue.dequeue(db) is not None
        pid = os.fork()
        if not pid:  # pragma: no cover - another process
            code = 1
            try:
                item = queue.dequeue(db)
                code = 0 if item is not None and item.value == b"b" and shares_turns(db) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert queue.dequeue(db) is None


def test_conflicts_are_found_whoever_has_the_turn(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}") as db:
        queue = Queue("q")
        queue.enqueue_many(db, [b"a", b"b"])
        tr = db.create_transaction()
        assert queue.dequeue(tr) is not None
        assert queue.dequeue(db) is not None
        with pytest.raises(FDBError, match="1020"):
            tr.commit().wait()
