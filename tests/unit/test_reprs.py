"""Reprs: every object of the library as a short line and as HTML, without a read of the database."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any, cast

import pytest

import fdbqueue
from fdbqueue import BulkReport, CheckReport, Item, Position, Queue, Stats
from fdbqueue.base.reprs import bar, brief, sparkline, table
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    Consumer,
    Groups,
    Leases,
    PriorityQueue,
    Sessions,
    StagedQueue,
    Subscriptions,
    Watchdog,
    exponential,
)
from tests.helpers.reading import Reading

HERE = Position(7, b"random")


class Balanced(HTMLParser):
    """Reads HTML, and fails where a tag is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> str:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser.text


def leased(db: Any, space: Subspace) -> Any:
    leases = Leases(Queue(space, codec="str"))
    leases.enqueue(db, "cup")
    return leases.lease(db)


def session_of(db: Any, space: Subspace) -> Any:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue(db, "cup", session="Ann")
    return sessions.info(db, "Ann")


MADE: dict[str, Callable[[Any, Subspace], Any]] = {
    "Queue": lambda db, space: Queue(space),
    "Position": lambda db, space: HERE,
    "Item": lambda db, space: Item(HERE, "cup"),
    "Stats": lambda db, space: Queue(space).stats(db),
    "CheckReport": lambda db, space: Queue(space).check(db),
    "BulkReport": lambda db, space: Queue(space).enqueue_many(db, [b"cup"]),
    "Leases": lambda db, space: Leases(Queue(space)),
    "Lease": leased,
    "LeaseHandle": lambda db, space: leased(db, space).handle,
    "LeaseStats": lambda db, space: Leases(Queue(space)).stats(db),
    "StagedStats": lambda db, space: StagedQueue(Queue(space)).stats(db),
    "PriorityQueue": lambda db, space: PriorityQueue(Queue(space), levels=3),
    "Sessions": lambda db, space: Sessions(Queue(space)),
    "SessionInfo": session_of,
    "SessionStats": lambda db, space: Sessions(Queue(space)).stats(db),
    "Subscriptions": lambda db, space: Subscriptions(Queue(space)),
    "Subscription": lambda db, space: Subscriptions(Queue(space)).subscribe(db, "all"),
    "SubscriptionStats": lambda db, space: Subscriptions(Queue(space)).subscribe(db, "all").stats(db),
    "ConsumerReport": lambda db, space: Consumer(Leases(Queue(space)), print).drain(db),
    "Watchdog": lambda db, space: Watchdog(Leases(Queue(space))),
    "Groups": lambda db, space: Groups(Leases(Queue(space))),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_an_object_has_a_line_and_html_and_reads_nothing_for_them(db: Any, space: Subspace, name: str) -> None:
    reading = Reading(db)
    shown = MADE[name](reading, space)
    before = reading.reads
    line, html = repr(shown), shown._repr_html_()

    assert reading.reads == before
    assert line.startswith(name)
    assert "\n" not in line
    assert name in read(html)


def test_a_long_value_is_cut_in_the_line_and_in_html() -> None:
    for value in (b"x" * 8_000_000, "é" * 8_000_000, ["x" * 10] * 10_000, {"a": "x" * 1_000_000}):
        item = Item(HERE, value)
        assert len(repr(item)) < 500
        assert len(item._repr_html_()) < 1_000
    assert "8,000,000 bytes" in repr(Item(HERE, b"x" * 8_000_000))


def test_a_short_object_reads_as_a_dataclass_does() -> None:
    assert repr(Item(HERE, "cup", {"a": 1})) == (
        "Item(position=Position(index=7, random=b'random'), value='cup', headers={'a': 1})"
    )
    assert repr(BulkReport(1, 2, None, None)).startswith("BulkReport(items=1, size_bytes=2, first=None, last=None, ")


def test_a_check_report_shows_every_problem_in_full() -> None:
    problems = ("x" * 1_000, "<y>")
    report = CheckReport(1, problems, counted=True)

    assert all(problem in repr(report) for problem in problems)
    assert all(problem in read(report._repr_html_()) for problem in problems)


def test_html_of_a_value_is_escaped() -> None:
    html = Item(HERE, "<script>", {"<b>": "&"})._repr_html_()

    assert "<script>" not in html
    assert "<b>" not in html
    assert "<script>" in read(html)


def test_shown_objects_are_pickled_and_copied_as_before() -> None:
    for one in (HERE, Item(HERE, "cup"), Stats(*range(10))):
        assert pickle.loads(pickle.dumps(one)) == copy.copy(one) == one


def test_a_table_shows_items_and_leaves_out_empty_columns(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, [f"cup {number}" for number in range(5)])
    shown = table(queue.browse(db), title="cups", limit=3)
    lines = repr(shown).splitlines()

    assert lines[0] == "cups"
    assert lines[1].split() == ["position", "value"]
    assert lines[-1] == "…", "there are more"
    assert len(lines) == 6
    assert "cup 2" in read(shown._repr_html_())
    assert repr(table([])) == ""


@pytest.mark.parametrize("wrong", [None, "text", b"bytes", 3, [1, 2], {"a": 1}, [Item]])
def test_a_table_of_something_else_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="A table is made of items"):
        table(wrong)


@pytest.mark.parametrize("limit", [0, -1, None, "3", True, 2.5])
def test_a_table_has_at_least_one_row(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit"):
        table([], limit=limit)


def test_bars_and_sparklines_show_the_smallest_and_never_exceed_the_largest() -> None:
    assert [bar(share, 4).strip() for share in (0, 1e-9, 0.5, 1, 2)] == ["", "▏", "██", "████", "████"]
    assert {len(bar(share / 100, 7)) for share in range(101)} == {7}
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline(list(range(100)), width=3) == "███"


def test_brief_keeps_what_is_short() -> None:
    assert brief("cup") == "'cup'"
    assert brief(b"x" * 11, 10) == f"{b'x' * 10!r}".replace("xxxxxxxxxx'", "xxxxxxxxxx…'") + " (11 bytes)"
    assert fdbqueue.Position(1, b"").text == "1:"


def test_a_notebook_shows_queues_as_a_table(db: Any, space: Subspace) -> None:
    queue = Queue(space["a<b"], codec="str")
    queue.enqueue(db, "cup")
    queue.pause(db, reason="stock\ntaking", by="Ann")
    listed = fdbqueue.queues(db, within=space)
    text = read(cast(Any, listed)._repr_html_())
    for told in ("a<b", "str", "available", "by Ann"):
        assert told in text
    assert "a<b" in read(listed[0]._repr_html_())
    assert listed == [listed[0]]
    assert repr(listed[0]).startswith("QueueInfo(name=")


def test_a_notebook_shows_a_blobs_writer_and_reader(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    blobs = Blobs(leases)
    with blobs.write(db) as out:
        assert "size_bytes" in read(out._repr_html_())
        out.write(b"data")
    lease = leases.lease(db)
    assert lease is not None
    with blobs.read(db, lease) as reader:
        assert read(reader._repr_html_()) == repr(reader)


def test_a_star_import_leaves_pythons_open_alone() -> None:
    names: dict[str, Any] = {}
    exec("from fdbqueue import *", names)
    assert "Queue" in names
    assert "open" not in names
    with fdbqueue.open("memory:") as db:
        assert isinstance(db, fdbqueue.Database)


def test_a_function_is_shown_by_its_name_and_a_lambda_by_its_place() -> None:
    shown = repr(Leases(Queue("orders"), backoff=lambda attempt: attempt))

    assert re.search(r"backoff=lambda of test_reprs\.py:\d+\)$", shown)
    assert "backoff=exponential(first=1.0" in repr(Leases(Queue("orders"), backoff=exponential(first=1.0)))
