"""`check`: one pass over a queue's items feeds the parts of all layers, and a layer of one's own adds its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, StagedQueue, Subscriptions
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, KeyValue, Notes, Transaction, add_to_check, count
from fdbqueue.reads import check
from fdbqueue.reads.check import WatchedRange
from fdbqueue.reads.queue_rows import check_parts
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.shapes import COUNTERS
from tests.helpers.busy import Busy
from tests.helpers.faults import FaultyDatabase
from tests.helpers.smart import Progress, smart_queue
from tests.helpers.standin import StandIn
from tests.queue.test_inspecting import Counted

ITEMS = 300


@pytest.mark.parametrize(
    "check",
    [
        lambda db, queue: queue.check(db),
        lambda db, queue: Leases(queue).check(db),
        lambda db, queue: StagedQueue(queue).check(db),
        lambda db, queue: Subscriptions(queue).check(db),
        fdbqueue.check,
    ],
    ids=["queue", "leases", "staged", "subscriptions", "everything"],
)
def test_a_check_reads_each_item_once(db: Any, space: Subspace, check: Callable[[Any, Any], Any]) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, ["x"] * ITEMS)
    counted = Counted(db)

    report = check(counted, queue)

    assert (report.items, report.ok) == (ITEMS, True)
    assert ITEMS <= counted.rows < 1.2 * ITEMS


def test_a_smart_check_and_one_of_sessions_read_each_item_once(db: Any, space: Subspace) -> None:
    smart, sessions = smart_queue(space["smart"]), Sessions(Queue(space["sessions"], codec="str"))
    for number in range(50):
        smart.enqueue(db, Progress(f"file {number}", 1))
    sessions.enqueue_many(db, ["x"] * ITEMS, session="ann")

    for look, rows in (smart.check, 50 * 2), (sessions.check, ITEMS):  # each smart item has an entry in the index
        counted = Counted(db)
        assert look(counted).ok
        # The look for foreign keys reads a page of a session's items once more, and skips the others.
        assert rows <= counted.rows < rows + 130


def test_the_whole_check_looks_at_plain_items_and_at_sessions(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    sessions = Sessions(queue)
    sessions.enqueue(db, "a", session="ann")
    sessions.enqueue(db, "b", session="bob")
    leases = Leases(queue, max_attempts=3)  # the check is of another object, and bound to no policy
    leases.enqueue(db, "c")
    assert leases.lease(db) is not None

    report = fdbqueue.check(db, queue)

    assert (report.items, report.problems, report.counted) == (3, (), True)
    assert {"items", "timers", "requests", "subscriptions", "streams", "dependent keys", "sessions"} <= {
        *report.looked_at
    }
    db.clear_range_startswith(sessions.line.session(b"\x02ann\x00").record_key)
    db.clear_range(*[queue.layout.timers.range().start, queue.layout.timers.range().stop])
    told = "\n".join(fdbqueue.check(db, queue).problems)
    assert "The session 'ann' has items, and no record." in told
    assert "of the lease of" in told
    assert "\n".join(fdbqueue.check(db.create_transaction(), queue).problems) == told


class NoBananas(ItemCheck):
    """A stranger's part of a check."""

    def __init__(self, tr: Transaction | Database, queue: Queue[Any]) -> None:
        self.bananas = 0

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        self.bananas += b"banana" in row.value

    def problems(self) -> list[str]:
        return [f"There are {self.bananas} bananas."] if self.bananas else []


def test_a_layer_of_ones_own_adds_its_part(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_parts, "parts", dict(check_parts.parts))
    add_to_check("bananas", CheckPart(NoBananas, ("bananas",), (("cherries", lambda layout: layout.space["cherry"]),)))
    queue = Queue(space, codec="str")
    queue.enqueue(db, "apple")
    assert fdbqueue.check(db, queue).ok
    queue.enqueue(db, "banana")
    db[queue.layout.space.pack(("cherry", 1))] = b""

    report = fdbqueue.check(db, queue)

    assert report.problems == ("There are 1 bananas.",)
    assert "bananas" in report.looked_at
    assert report.not_looked_at == ("cherries",)
    with pytest.raises(ValueError, match="does not use, not 'sessions'"):
        add_to_check("sessions", CheckPart(NoBananas, ()))


BUSY: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "queue": (Leases, lambda db, leases: leases.queue.check(db)),
    "leases": (Leases, lambda db, leases: leases.check(db)),
    "staged": (Leases, lambda db, leases: StagedQueue(leases.queue).check(db)),
    "subscriptions": (Leases, lambda db, leases: Subscriptions(leases.queue).check(db)),
    "everything": (Leases, lambda db, leases: fdbqueue.check(db, leases.queue)),
    "sessions": (Sessions, lambda db, sessions: sessions.check(db)),
    "everything of sessions": (Sessions, lambda db, sessions: fdbqueue.check(db, sessions.queue)),
}
"""Layers by which a queue is in use, and checks of it."""


def in_use(db: Any, layer: Any, *, long: bool = False) -> Busy:
    """Fill a queue with 20 items. Whenever a range is read, another one is leased instead."""
    for number in range(20):
        layer.enqueue(db, "x", **({"session": f"s{number % 5}"} if isinstance(layer, Sessions) else {}))
    leased = [layer.lease(db)]

    def meanwhile() -> None:  # no counter has another value after it
        leased.append(layer.lease(db))
        layer.snooze(db, leased.pop(0), delay=0)

    return Busy(db, meanwhile, long=long)


@pytest.mark.parametrize("kind", BUSY)
def test_a_queue_in_use_has_no_problem(db: Any, space: Subspace, kind: str) -> None:
    make, check = BUSY[kind]
    layer = make(Queue(space, codec="str"))

    report = check(in_use(db, layer), layer)

    assert (report.problems, report.unsure, report.counted) == ((), (), True)


def test_a_check_reads_the_families_that_have_keys_and_no_others(db: Any, space: Subspace) -> None:
    def ranges(sessions: int) -> int:
        layer = Sessions(Queue(space[sessions], codec="str"))
        layer.enqueue_many(db, [str(number) for number in range(sessions)], session=str)
        read: list[None] = []
        assert fdbqueue.check(Busy(db, lambda: read.append(None)), layer.queue).ok
        return len(read)

    assert ranges(11) - ranges(1) <= 10 * 25  # a session has few of over 50 families


@pytest.mark.parametrize("kind", BUSY)
def test_a_long_queue_in_use_has_no_problem_but_what_looked_wrong_is_told(db: Any, space: Subspace, kind: str) -> None:
    make, check = BUSY[kind]
    layer = make(Queue(space, codec="str"))
    busy = in_use(db, layer, long=True)
    layer.queue.enqueue(db, "y")
    unreadable = layer.queue.layout.item_key(fdbqueue.Position(1 << 40, b"future"))
    db[unreadable] = b"\xf0from the future"

    report = check(busy, layer)

    plain = kind != "sessions"
    assert len(report.problems) == plain
    assert all("newer version" in problem for problem in report.problems)
    assert report.unsure
    assert report.counted is False
    assert report.ok is not plain


@pytest.mark.parametrize("long", [False, True])
def test_the_problems_of_a_queue_at_rest_are_found(db: Any, space: Subspace, long: bool) -> None:
    leases = Leases(Queue(space, codec="bytes"), max_attempts=1)
    leases.enqueue(db, bytes(500_000))
    leases.enqueue_many(db, [b"x"] * 10)
    leases.lease_many(db, limit=2)
    assert leases.check(Busy(db, long=long)).problems == ()
    layout = leases.queue.layout
    db.clear_range(layout.timers.range().start, layout.timers.range().stop)
    db.clear_range(layout.chunks.range().start, layout.chunks.range().stop)
    db[layout.count_key("dead")] = (7).to_bytes(8, "little")

    report = leases.check(Busy(db, long=long))

    told = "\n".join(report.problems)
    assert told.count("The timer of the lease of") == 2
    assert "has 0 of its" in told
    assert "The counters say that 7 items are dead, but there are 0." in told
    assert (report.unsure, report.counted) == ((), True)
    assert report == leases.check(db) == leases.check(db.create_transaction())


def test_a_counter_that_cant_be_read_is_a_problem_beside_others(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space, codec="bytes"))
    leases.enqueue_many(db, [b"x"] * 2)
    leases.lease(db)
    layout = leases.queue.layout
    db.clear_range(layout.timers.range().start, layout.timers.range().stop)
    db[layout.count_key("dead")] = b"xx"

    for report in (leases.check(db), fdbqueue.check(db, leases.queue)):
        told = "\n".join(report.problems)
        assert told.count("it has 2 bytes and not 8") == 1
        assert told.count("The timer of the lease of") == 1
        assert report.items == 2


@pytest.mark.parametrize("span_s", [0.0, 1_000.0])
def test_one_change_during_a_long_check_is_noticed_and_a_change_elsewhere_is_not(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, span_s: float
) -> None:
    monkeypatch.setattr(check, "SPAN_S", span_s)
    queue: Queue[str] = Queue(space["a"], codec="str")
    queue.enqueue_many(db, ["x"] * 10)
    wrong = (7).to_bytes(8, "little")
    db[queue.layout.count_key("dead")] = wrong
    elsewhere = Busy(db, lambda: Queue(space["b"], codec="str").enqueue(db, "y"), long=True)
    assert (len(queue.check(elsewhere).problems), queue.check(elsewhere).unsure) == (2, ())

    for at in range(2, 5):  # the first two are in the transaction that is too old
        changes = iter([*[lambda: None] * at, lambda: db.set(queue.layout.count_key("dead"), wrong)])
        changing = Busy(db, lambda: next(changes, bool)(), long=True)  # noqa: B023

        report = queue.check(changing)

        assert (report.problems, len(report.unsure), report.counted) == ((), 2, False), at


def test_a_watch_begins_before_the_last_one_ends(db: Any, space: Subspace) -> None:
    begin, end = space.range().start, space.range().stop

    class ChangingBeforeTheSecond(StandIn):
        transactions = 0

        def create_transaction(self) -> Any:
            self.transactions += 1
            if self.transactions == 2:
                db[begin + b"x"] = b"changed"
            return db.create_transaction()

    assert WatchedRange(ChangingBeforeTheSecond(), begin, end).changed()


def test_a_watch_whose_end_nobody_knows_has_seen_a_change(db: Any, space: Subspace) -> None:
    queue: Queue[str] = Queue(space, codec="str")
    queue.enqueue(db, "x")
    begin, end = queue.layout.whole_range()
    quiet, unknown = WatchedRange(db, begin, end), WatchedRange(FaultyDatabase(db, lambda: ("after", 1021)), begin, end)

    assert [quiet.changed(), unknown.changed(), quiet.changed(), unknown.changed()] == [False, True, False, True]
    db[begin + b"x"] = db[begin + b"x"] or b""
    assert [quiet.changed(), quiet.changed()] == [True, True]
    assert [bytes(row.key) for row in db[check.CHECKS : check.CHECKS + b"\xff"]] == []


@pytest.mark.parametrize("inner", [(), ("items", "ann", 0), ("line",), ("lines", 1)])
def test_a_counter_that_no_queue_has_is_foreign_and_removed(db: Any, space: Subspace, inner: tuple[Any, ...]) -> None:
    queue = Queue(space, codec="str")
    Sessions(queue).enqueue(db, "x", session="ann")
    Leases(queue).enqueue(db, "y")
    junk = space.pack((*inner, "count", "junk"))
    db[junk] = b"junk"

    assert fdbqueue.check(db, queue).foreign == (junk,)
    report = fdbqueue.check(db, queue, remove_foreign=True)

    assert (report.removed, report.problems, db[junk]) == (1, (), None)
    assert queue.stats(db).available == 1


def test_a_counter_of_another_name_is_refused(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")

    @fdbqueue.transactional
    def add(tr: Transaction) -> None:
        count(tr, queue.layout, mine=1)

    with pytest.raises(ValueError, match="A queue has no counter 'mine'"):
        add(db)


def test_all_counters_that_the_library_reads_are_known() -> None:
    assert {field.name for field in dataclasses.fields(Stats)} - {"available"} <= COUNTERS
