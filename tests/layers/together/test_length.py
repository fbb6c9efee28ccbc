"""What an operator looks at, and a call, reads as many keys among many as among few, whatever a queue has many of.

The keys are counted where the embedded engine reads them: counts are exact, where times are noisy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.embedded.store.snapshot import Snapshot
from fdbqueue.engine.steps import run
from fdbqueue.layers import Leases, Sessions, Subscriptions
from fdbqueue.layers.subscriptions.head import Habit
from fdbqueue.layers.subscriptions.waiters import Waiters
from fdbqueue.observe.figures import Wanted
from fdbqueue.observe.serving import Figures, scraped
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import name_text
from fdbqueue.web import AdminApp
from tests.helpers.subscribing import stand_in_line
from tests.web.conftest import Browser

DEAD = 1_200
"""Dead letters at least: a page groups the errors of the first 1,000."""
PAGES = ("queue", "items", "dead", "sessions", "parts")


@contextmanager
def keys_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the keys that are read: those of ranges, and single ones, whether they are there or not."""
    counted = [0]
    get, rows, last_below = Snapshot.get, Snapshot.rows, Snapshot.last_below

    def counting_get(self: Snapshot, key: bytes) -> bytes | None:
        counted[0] += 1
        return get(self, key)

    def counting_rows(self: Snapshot, *args: Any, **terms: Any) -> Any:
        found = rows(self, *args, **terms)
        counted[0] += len(found) + 1
        return found

    def counting_last_below(self: Snapshot, end: bytes) -> bytes | None:
        counted[0] += 1
        return last_below(self, end)

    with monkeypatch.context() as patched:
        patched.setattr(Snapshot, "get", counting_get)
        patched.setattr(Snapshot, "rows", counting_rows)
        patched.setattr(Snapshot, "last_below", counting_last_below)
        yield counted


def items(db: Any, queue: Queue[str], number: int) -> None:
    """Fill a queue with items in all states."""
    leases = Leases(queue, max_attempts=1)
    leases.enqueue_many(db, map(str, range(number)))
    leases.enqueue_many(db, map(str, range(number)), delay=3600)
    leases.enqueue_many(db, map(str, range(DEAD)))
    for _ in range((DEAD + number // 5) // 200):
        leases.nack_many(db, leases.lease_many(db, limit=200), error="ValueError: no such cup")
    leases.lease_many(db, limit=number // 5)


def sessions(db: Any, queue: Queue[str], number: int) -> None:
    """Fill a queue with sessions of two items each."""
    for _ in range(2):
        Sessions(queue).enqueue_many(db, map(str, range(number)), session=str)


def subscriptions(db: Any, queue: Queue[str], number: int) -> None:
    """Give a queue many subscriptions, and some items."""
    all_of_them = Subscriptions(queue)
    for begin in range(0, number, 100):
        tr = db.create_transaction()
        for each in range(begin, begin + 100):
            all_of_them.subscribe(tr, f"s{each:06}")
        tr.commit().wait()
    Leases(queue).enqueue_many(db, map(str, range(100)))


Fill = Callable[[Any, Queue[str], int], None]
LENGTHS: list[tuple[Fill, int, int]] = [(items, 1_000, 3_000), (sessions, 300, 1_000), (subscriptions, 1_000, 3_000)]
LONGER: list[tuple[Fill, int, int]] = [(items, 1_000, 100_000), (sessions, 300, 3_000), (subscriptions, 1_000, 10_000)]


def looks(db: Any, queue: Queue[str]) -> dict[str, Callable[[], object]]:
    """Return what looks at a queue, by name."""
    name = name_text(name_of(queue.layout.prefix))
    browser = Browser(AdminApp(db))
    pages = {f"page {page}": partial(browser.text, page, queue=name) for page in PAGES}
    return {
        "stats": lambda: queue.stats(db),
        "inspect": lambda: queue.inspect(db),
        "queues": lambda: list(fdbqueue.queues(db)),
        "scrape": lambda: scraped(Figures(db, Wanted())),
        "first page": lambda: first_page(db),
        **pages,
    }


def first_page(db: Any) -> str:
    """Return the page of all queues. It is read by a thread, which would read again a moment later."""
    app = AdminApp(db)
    try:
        return Browser(app).text("")
    finally:
        app.close()


def reads_of(db: Any, fill: Fill, number: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how many keys each look reads of a queue that has so many of something."""
    queue = Queue(Subspace(("long",)), codec="str")
    queue.enqueue(db, "first")
    fill(db, queue, number)
    found = {}
    for name, look in looks(db, queue).items():
        look()  # it learns what does not change
        with keys_read(monkeypatch) as counted:
            look()
        found[name] = counted[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fill", "few", "many"), [*LENGTHS, *(pytest.param(*longer, marks=pytest.mark.nightly) for longer in LONGER)]
)
def test_a_look_reads_no_more_of_a_long_queue(fill: Fill, few: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in (few, many):
        with fdbqueue.open("memory:") as db:
            found.append(reads_of(db, fill, number, monkeypatch))

    of_few, of_many = found
    assert {name: keys for name, keys in of_many.items() if keys > 1.1 * of_few[name]} == {}


def leased(found: Any) -> Any:
    """Return a lease that is there."""
    assert found is not None
    return found


def catalogue(db: Any, number: int) -> dict[str, Callable[[], object]]:
    """Return calls in a database that has so many queues."""
    for each in range(number):
        Queue(f"q{each:06}", codec="str").enqueue(db, "x")
    queue = Queue("q000003", codec="str")
    app = AdminApp(db)
    return {
        "enqueue": lambda: queue.enqueue(db, "x"),
        "open": lambda: Queue.open(db, "q000003"),
        "stats": lambda: queue.stats(db),
        "inspect": lambda: queue.inspect(db),
        "some queues": lambda: fdbqueue.queues(db, after="q000003", limit=5),
        "page queue": lambda: Browser(app).text("queue", queue="q000003"),
    }


def of_sessions(db: Any, number: int) -> dict[str, Callable[[], object]]:
    """Return calls of a queue that has so many sessions."""
    queue = Queue(Subspace(("long",)), codec="str")
    sessions(db, queue, number)
    own, names = Sessions(queue), map(str, range(number, 2 * number))
    return {
        "enqueue": lambda: own.enqueue(db, "x", session="7"),
        "new session": lambda: own.enqueue(db, "x", session=next(names)),
        "lease and ack": lambda: own.ack(db, leased(own.lease(db))),
        "info": lambda: own.info(db, "7"),
    }


def of_subscriptions(db: Any, number: int) -> dict[str, Callable[[], object]]:
    """Return calls of a queue that has so many subscriptions."""
    queue = Queue(Subspace(("long",)), codec="str")
    subscriptions(db, queue, number)
    own = Subscriptions(queue)
    one = own.subscribe(db, "s000050")
    return {
        "enqueue": lambda: own.enqueue(db, "x"),
        "plain enqueue": lambda: queue.enqueue(db, "x"),
        "lease and ack": lambda: one.ack(db, leased(one.lease(db))),
        "stats of one": lambda: one.stats(db),
        "stats of some": lambda: own.stats(db, after="s000050", limit=5),
    }


def of_waiters(db: Any, number: int) -> dict[str, Callable[[], object]]:
    """Return what gives an item to a consumer while so many wait, of two subscriptions."""
    own = Subscriptions(Queue(Subspace(("long",)), codec="str"))
    for name in ("one", "other"):
        own.subscribe(db, name)
    for each in range(number):
        stand_in_line(own, db, str(each).encode(), ("one", "other")[each % 2])

    def arrival() -> None:
        own.leases.enqueue(db, "x")
        tr = db.create_transaction()
        run(Waiters(own.leases.layout).dispatch(tr, own.leases.now_us(), Habit()))
        tr.commit().wait()

    return {"enqueue": lambda: own.enqueue(db, "x", immediate=True), "arrival": arrival}


@pytest.mark.parametrize("calls", [catalogue, of_sessions, of_subscriptions, of_waiters])
def test_a_call_reads_no_more_among_many(
    calls: Callable[[Any, int], dict[str, Callable[[], object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, float]] = []
    for number in (100, 1_000):
        with fdbqueue.open("memory:") as db:
            keys: dict[str, float] = {}
            for name, call in calls(db, number).items():
                for _ in range(3):
                    call()  # it learns what does not change
                with keys_read(monkeypatch) as counted:
                    for _ in range(10):
                        call()
                keys[name] = counted[0] / 10
            found.append(keys)

    of_few, of_many = found
    assert {name: keys for name, keys in of_many.items() if keys > 1.2 * of_few[name] + 1} == {}
