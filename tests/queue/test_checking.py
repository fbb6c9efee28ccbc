"""`check`: one pass over a queue's items feeds the parts of all layers, and a layer of one's own adds its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, StagedQueue, Subscriptions
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, KeyValue, Notes, Transaction, add_to_check
from fdbqueue.reads.registry import check_parts
from tests.helpers.smart import Progress, smart_queue
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

    for check, rows in (smart.check, 50 * 2), (sessions.check, ITEMS):  # each smart item has an entry in the index
        counted = Counted(db)
        assert check(counted).ok
        assert rows <= counted.rows < rows + 60


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


def test_the_whole_check_is_of_a_queue(db: Any, space: Subspace) -> None:
    wrong: Any = Leases(Queue(space))
    with pytest.raises(TypeError, match=r"check is of a Queue, as in .*, not of Leases"):
        fdbqueue.check(db, wrong)


class NoBananas(ItemCheck):
    """A stranger's part of a check."""

    def __init__(self, tr: Transaction | Database, queue: Queue[Any]) -> None:
        self.bananas = 0

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        self.bananas += b"banana" in row.value

    def problems(self) -> list[str]:
        return [f"There are {self.bananas} bananas."] if self.bananas else []


def test_a_layer_of_ones_own_adds_its_part(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_parts, "_parts", dict(check_parts._parts))
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


class Moved(NoBananas):
    """Finds something at its first look only, as if an item had moved meanwhile."""

    looks = 0

    def problems(self) -> list[str]:
        Moved.looks += 1
        return ["It moved.", "It is a stray."] if Moved.looks == 1 else ["It is a stray.", "It has come."]


def test_what_a_part_finds_in_a_database_once_only_is_no_problem(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_parts, "_parts", dict(check_parts._parts))
    monkeypatch.setattr(Moved, "looks", 0)
    add_to_check("moving", CheckPart(Moved, ()))

    assert fdbqueue.check(db, Queue(space)).problems == ("It is a stray.",)
    assert Moved.looks == 2
