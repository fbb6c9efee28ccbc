"""`inspect`: one page about a queue in any state, from a bounded number of reads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Gate, Leases, PriorityQueue, Sessions, StagedQueue
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.lowlevel import Layout, PagePart, Section, TextTable, Transaction, add_to_page, value_of
from fdbqueue.reads.inspecting import SMALL_QUEUE, Inspection
from fdbqueue.reads.queue_rows import page_parts
from fdbqueue.stored.items import Blob, envelope, with_blob
from tests.helpers.reading import Reading, ReadingTransaction


class Counted(Reading):
    """Counts the reads by snapshot, and their rows."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.rows = 0

    def create_transaction(self) -> Any:
        return CountedTransaction(self._db.create_transaction(), self)


class CountedTransaction(ReadingTransaction):
    @property
    def snapshot(self) -> Any:
        return CountedView(self._tr.snapshot, self._reading)


class CountedView:
    def __init__(self, view: Any, counted: Any) -> None:
        self._view, self._counted = view, counted

    def get(self, key: bytes) -> Any:
        self._counted.reads += 1
        return self._view.get(key)

    def get_range(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        self._counted.reads += 1
        found = list(self._view.get_range(*args, **kwargs))
        self._counted.rows += len(found)
        return iter(found)


def reads_of(db: Any, queue: Queue[Any]) -> tuple[int, int]:
    counted = Counted(db)
    queue.inspect(counted)
    return counted.reads, counted.rows


@pytest.mark.slow
def test_an_empty_queue_has_a_page(db: Any, space: Subspace) -> None:
    page = Queue(space).inspect(db)

    assert isinstance(page, Inspection)
    assert (page.head, page.tail, page.holders, page.errors, page.ages_s) == ((), (), (), (), ())
    assert "available" in repr(page)
    assert "0 enqueued" in page._repr_html_()


def test_a_page_tells_of_every_state(db: Any, space: Subspace) -> None:
    now = [1_000_000.0]
    leases = Leases(Queue(space, codec="json"), max_attempts=1, clock=lambda: now[0])
    leases.enqueue_many(db, [{"n": number} for number in range(9)], headers={"color": "red"})
    for consumer in ("Ann", "Ann", "Bob"):
        leases.lease(db, consumer=consumer, duration=60)
    for error in ("no stock\nmore of it", "no stock", "timeout"):
        failed = leases.lease(db)
        assert failed is not None
        leases.nack(db, failed, error=error)
    leases.enqueue(db, {"n": 10}, delay=30)
    page = leases.queue.inspect(db)

    assert (page.stats.available, page.stats.leased, page.stats.dead, page.stats.delayed) == (3, 3, 3, 1)
    assert [one.value["n"] for one in page.head] == [6, 7, 8]
    assert page.head[0].headers == {"color": "red"}
    assert page.tail == (), "the head has them all"
    assert [(one.consumer, one.items, one.attempts) for one in page.holders] == [("Ann", 2, 1), ("Bob", 1, 1)]
    assert [(one.error, one.items) for one in page.errors] == [("no stock", 2), ("timeout", 1)]
    assert page.overdue == 4, "by this machine's clock all of them are due"
    text = repr(page)
    for told in ("Ann", "no stock", "'n': 6", "{'color': 'red'}", "dead letters by error", "4 timers overdue"):
        assert told in text
    assert "more of it" not in text


def test_the_last_items_are_shown_in_order_without_those_of_the_head(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, [str(number) for number in range(12)])
    page = queue.inspect(db, limit=2)

    assert [one.value for one in (*page.head, *page.tail)] == ["0", "1", "10", "11"]
    assert [one.value for one in queue.inspect(db, limit=7).tail] == ["7", "8", "9", "10", "11"]


def test_ages_are_counted_in_ranges_and_are_unknown_after_a_plain_enqueue(db: Any, space: Subspace) -> None:
    now = [time.time() - 3_000.0]
    leases = Leases(Queue(space, codec="str"), clock=lambda: now[0])
    leases.enqueue(db, "old")
    now[0] += 2_990.0
    leases.enqueue(db, "new")
    assert {name: count for name, count in leases.queue.inspect(db).age_counts.items() if count} == {
        "< 1 min": 1,
        "< 1 h": 1,
    }

    leases.queue.enqueue(db, "plain")
    page = leases.queue.inspect(db)
    assert len(page.ages_s) == 2
    assert "1 store no time" in page.ages_title
    assert page.head[2].age_s is None


def test_a_page_reads_as_much_of_a_large_queue_as_of_a_small_one(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, (b"x" for _ in range(SMALL_QUEUE + 1)))
    small_reads, _ = reads_of(db, queue)
    queue.enqueue_many(db, (b"x" for _ in range(20_000)))
    reads, rows = reads_of(db, queue)

    assert reads == small_reads <= 56
    assert rows < 200


@pytest.mark.slow
def test_the_reads_of_a_page_do_not_grow_from_a_thousand_items_to_a_hundred_thousand(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, (b"x" for _ in range(1_000)))
    small = reads_of(db, queue)
    queue.enqueue_many(db, (b"x" for _ in range(99_000)))
    large = reads_of(db, queue)
    queue.clear(db)
    assert large[0] == small[0] <= 56
    assert large[1] <= small[1] + 1


@pytest.mark.slow
@pytest.mark.engines("memory")
def test_a_queue_of_a_million_items_is_inspected_by_a_few_reads(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, (b"x" for _ in range(1_000_000)))
    reads, rows = reads_of(db, queue)
    queue.clear(db)

    assert reads <= 56
    assert rows < 200


def test_the_sample_reaches_every_part_of_a_queue(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space["many"]))
    leases.enqueue_many(db, [b"x"] * 3_000)
    page = leases.queue.inspect(db)
    assert 100 <= page.sampled == len(page.ages_s) <= SMALL_QUEUE

    urgent = PriorityQueue(Queue(space["urgent"]), levels=3)
    for priority in range(3):
        urgent.enqueue_many(db, [b"x"] * 100, priority=priority)
    page = Queue(space["urgent"]).inspect(db)
    assert page.sampled >= 30
    assert "order 'levels/3'" in page.title


def test_unreadable_large_and_foreign_items_do_not_spoil_the_page(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, "x" * 200_000)
    db[queue.layout.item_key(Position(2, b"a"))] = envelope(b"{not json")
    db[queue.layout.item_key(Position(3, b"b"))] = b"\xff\xff"
    data = Blob(b"i" * 16, 4_000, 0, is_value=True)
    db[queue.layout.item_key(Position(4, b"c"))] = with_blob(envelope(b""), data)
    notes = [one.note for one in queue.inspect(db).head]

    assert notes[0] == "200,002 bytes"
    assert notes[1].startswith("can't be read")
    assert notes[2].startswith("can't be read")
    assert notes[3] == "a blob of 4,000 bytes"
    assert "200,002 bytes" in repr(queue.inspect(db))


def test_a_process_remembers_the_depth_until_the_queue_is_cleared(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    assert len(queue.inspect(db).history) == 1
    queue.enqueue_many(db, [b"x"] * 10)
    queue.inspect(db)
    queue.dequeue(db)
    page = Queue(space).inspect(db)
    assert [one.stats.available for one in page.history] == [0, 10, 9]
    assert len(page.rates["in"]) == 2
    assert page.rates["in"][0] > 0 < page.rates["out"][1]
    assert "depth in the last" in repr(page)

    queue.clear(db)
    assert len(queue.inspect(db).history) == 1


def test_in_a_transaction_it_sees_that_transaction_and_remembers_nothing(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")

    @fdbqueue.transactional
    def look(tr: fdbqueue.Transaction) -> Inspection:
        queue.enqueue(tr, "mine")
        return queue.inspect(tr)

    assert [one.value for one in look(db).head] == ["mine"]
    assert len(queue.inspect(db).history) == 1
    page = asyncio.run(queue.inspect.aio(db))
    assert page.stats.available == 1


def test_an_inspection_conflicts_with_nothing(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "first")
    tr = db.create_transaction()
    queue.inspect(tr)
    tr.set(space.pack(("mine",)), b"")
    queue.dequeue(db)
    queue.enqueue(db, "second")

    tr.commit().wait()


def test_waiting_processes_are_counted(db: Any, space: Subspace) -> None:
    staged = StagedQueue(Queue(space))

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(staged.dequeue, db, timeout=30)
        while not (page := staged.queue.inspect(db)).waiting:
            assert not waiting.done()
        staged.enqueue(db, b"x")
        assert (taken := waiting.result())
        assert taken.value == b"x"

    assert page.waiting == 1
    assert "1 waiting request" in repr(page)


@pytest.mark.slow
def test_the_page_has_charts_as_a_picture_or_as_text_without_matplotlib(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "<b>")
    queue.inspect(db)
    page = queue.inspect(db)
    assert "data:image/png;base64," in page._repr_html_()
    assert "<b>'" not in page._repr_html_()

    monkeypatch.setattr("fdbqueue.reads.figures.find_spec", lambda name: None)
    assert "<pre>available" in page._repr_html_()
    with pytest.raises(ModuleNotFoundError, match=r"fdbqueue\[notebook\]"):
        page.figure()


@pytest.mark.slow
def test_importing_the_library_imports_no_matplotlib(repository: Any) -> None:
    code = "import sys, fdbqueue.cli; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_page_tells_of_sessions_with_a_bounded_number_of_reads(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    assert queue.inspect(db).sessions is None
    sessions = Sessions(queue, max_attempts=1, consumer="worker")
    sessions.enqueue_many(db, [f"{n}" for n in range(120)], session=lambda value: ("shop", int(value)))
    sessions.enqueue_many(db, ["a", "b", "c", "d"], session=("shop", 3))
    sessions.enqueue(db, "later", session=("shop", 3), delay=1_000)
    first = sessions.lease(db)
    assert first is not None
    sessions.nack(db, first)
    sessions.lease(db)
    counted = Counted(db)

    found = queue.inspect(counted).sessions

    assert counted.reads <= 160
    assert found is not None
    assert (found.totals.ready, found.totals.busy, found.totals.waiting) == (118, 1, 0)
    assert (found.totals.available, found.totals.delayed, found.totals.dead) == (123, 1, 1)
    assert [one.consumer for one in found.busy] == ["worker"]
    largest = found.largest[0]
    assert (largest.session, largest.available, largest.delayed) == (("shop", 3), 5, 1)
    assert (found.counted, found.more, len(found.largest)) == (100, True, 10)
    text = repr(queue.inspect(db))
    for told in ("118 ready, 1 busy", "who works on what", "largest sessions, of 100 that were counted"):
        assert told in text
    assert "who works on what" in queue.inspect(db)._repr_html_()
    [listed] = [info for info in fdbqueue.queues(db, within=space) if info.sessions is not None]
    assert listed.sessions == found.totals


def test_a_page_tells_how_many_slots_wait_at_gates_as_the_stats_do(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space, codec="str"), gates=lambda name: [Gate("acme", limit=1)])
    for name in "abcd":
        sessions.enqueue(db, "x", session=name)

    page = sessions.queue.inspect(db)

    assert page.sessions.totals == sessions.stats(db)
    assert page.sessions.totals.gated == 3
    assert "1 ready, 0 busy, 0 waiting, 3 slots at a gate" in repr(page)


def test_a_layer_of_ones_own_adds_a_section_to_the_page(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rate:
        def facts(self) -> str:
            return "at most 5 a second"

        def tables(self) -> Iterator[TextTable]:
            yield TextTable("who takes", ("consumer", "items"), (("ann", 7),))

    async def section(tr: Transaction, layout: Layout) -> Section | None:
        stored = await value_of(tr.snapshot.get(layout.space.pack(("rate",))))
        return Rate() if stored.present() else None

    monkeypatch.setattr(page_parts, "parts", dict(page_parts.parts))
    add_to_page("rates", PagePart(section))
    queue = Queue(space, codec="str")
    assert queue.inspect(db).sections == {}
    db[queue.layout.space.pack(("rate",))] = b"5"

    page = queue.inspect(db)

    assert isinstance(page.sections["rates"], Rate)
    assert "at most 5 a second" in page.facts
    assert "who takes" in repr(page)
    with pytest.raises(ValueError, match="does not use, not 'sessions'"):
        add_to_page("sessions", PagePart(section))


def test_a_section_that_cannot_be_read_is_named_and_the_rest_is_told(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    Sessions(queue).enqueue(db, "a", session="ann")
    db[queue.layout.space.pack(("summed", "enqueued", 0))] = b"damaged"

    page = queue.inspect(db)

    assert (page.sessions, "sessions: The value of the key" in page.facts) == (None, True)
    assert page.stats.available == 0


def test_a_page_leaves_out_sessions_that_it_cannot_read(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    sessions = Sessions(queue)
    for name in ("ann", "bob"):
        sessions.enqueue(db, "a", session=name)
    db[sessions.line.session(pack_name("ann")).record_key] = b"\xc1"

    found = queue.inspect(db).sessions

    assert found is not None
    assert [one.session for one in found.largest] == ["bob"]
    sessions.clear(db)


@pytest.mark.parametrize("draws", [True, False], ids=["a picture", "text"])
def test_a_page_says_who_paused_the_queue_and_why(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch, draws: bool
) -> None:
    if not draws:
        monkeypatch.setattr("fdbqueue.reads.figures.find_spec", lambda name: None)
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    assert "paused" not in repr(queue.inspect(db)) + queue.inspect(db)._repr_html_()

    queue.pause(db, by="Ann <ann@shop>", reason="stock\ntaking")

    page = queue.inspect(db)
    assert page.paused
    assert page.paused == queue.paused(db)
    [note] = [one for one in page.troubles if one.kind == "paused_queue"]
    assert (note.text, note.since) == ("It is paused by Ann <ann@shop>: stock taking.", page.paused.since)
    assert f"note: {note.text} Since " in repr(page).split("\n\n")[1]
    assert "It is paused by Ann &lt;ann@shop&gt;: stock taking." in page._repr_html_()
    queue.resume(db)
    assert queue.inspect(db).paused is None
