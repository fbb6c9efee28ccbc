"""Subscriptions: who gets what, from where on, and on whose credit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from fdbqueue import FormatError, Position, Queue, SelectorError, SubscriptionError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscriptions
from fdbqueue.layers.subscriptions import head as _check
from fdbqueue.layers.subscriptions.records import VERSION, SubscriptionRecord, pack_record
from fdbqueue.reads.browse import pages
from fdbqueue.stored.positions import pack
from tests.helpers.clock import Clock
from tests.helpers.subscribing import fill, of_color, values


def test_each_subscription_gets_what_it_selects_in_order(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    red, blue = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue")
    fill(leases, db, "red", "blue", "green", "red", "blue")
    assert values(red.lease_many(db, limit=1)) == ["red0"]
    assert values(blue.lease_many(db)) == ["blue1", "blue4"]
    assert values(red.lease_many(db)) == ["red3"]
    assert red.lease(db) is None
    assert values(leases.lease_many(db)) == ["green2"]
    assert subscriptions.check(db).problems == ()


def test_a_new_subscription_begins_at_the_head(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    fill(leases, db, "red", "red")
    assert values(of_color(subscriptions, db, "red").lease_many(db)) == ["red0", "red1"]


def test_an_item_given_back_is_delivered_before_later_items(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red", "blue", "red", "red", "red")
    first, second, third = red.lease_many(db, limit=3, duration=10)
    leases.nack(db, second)
    assert values(red.lease_many(db, limit=2)) == ["red2", "red4"]
    leases.snooze(db, first, delay=5)
    clock.now += 6
    assert values(red.lease_many(db)) == ["red0"]
    clock.now += 5
    assert values(red.lease_many(db)) == ["red3"]
    assert third.attempt == 1
    assert subscriptions.check(db).problems == ()


def test_an_item_given_back_by_one_subscription_is_available_to_others(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red, all_ = of_color(subscriptions, db, "red"), subscriptions.subscribe(db, "all")
    fill(leases, db, "red", "red")
    lease = red.lease(db)
    assert lease is not None
    assert values(all_.lease_many(db)) == ["red1"]
    leases.nack(db, lease)
    assert values(all_.lease_many(db)) == ["red0"]
    assert red.lease(db) is None


def test_a_pointer_survives_restarted_indices(db: Any, space: Subspace) -> None:
    subscriptions = Subscriptions(Queue(space, codec="str"))
    queue = subscriptions.leases.queue
    subscription = subscriptions.subscribe(db, "odd", selector="n IN (1, 3)")
    for n in range(5):
        queue.enqueue(db, f"{n}", headers={"n": n})
    while (item := queue.dequeue(db)) is not None:
        assert item.position.index <= 5
    assert subscription.lease(db) is None
    for n in range(5):
        assert queue.enqueue(db, f"again {n}", headers={"n": n}).index == n + 1
    assert values(subscription.lease_many(db)) == ["again 1", "again 3"]


def test_a_slow_producer_behind_the_pointer_is_not_missed(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red = of_color(subscriptions, db, "red")
    slow = db.create_transaction()
    leases.enqueue(slow, "slow", headers={"color": "red"})
    fill(leases, db, "red", "red", "red", "red")
    assert values(red.lease_many(db, limit=3)) == ["red0", "red1", "red2"]
    slow.commit().wait()
    assert values(red.lease_many(db)) == ["slow", "red3"]


def test_a_producer_from_before_the_first_subscription_is_not_missed(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    slow = db.create_transaction()
    leases.queue.enqueue(slow, "slow")
    everything = subscriptions.subscribe(db, "all")
    fill(leases, db, "red", "red", "red")
    assert values(everything.lease_many(db, limit=2)) == ["red0", "red1"]
    slow.commit().wait()
    assert values(everything.lease_many(db)) == ["slow", "red2"]
    assert subscriptions.check(db).problems == ()


def test_bulk_loads_and_staged_enqueues_are_delivered(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    subscription = subscriptions.subscribe(db, "all")
    leases.queue.enqueue_many(db, ["0", "1"])
    assert values(subscription.lease_many(db)) == ["0", "1"]
    StagedQueue(leases).enqueue(db, "2")
    leases.enqueue_many(db, ["3", "4"])
    tr = db.create_transaction()
    leases.queue.enqueue(tr, "5")
    leases.queue.enqueue_many(tr, ["6", "7"])
    tr.commit().wait()
    assert values(subscription.lease_many(db)) == ["2", "3", "4", "5", "6", "7"]


class ByUrgency:
    """An order whose ranks the headers name."""

    name = "by urgency"

    def rank(self, value: Any, headers: Any) -> int:
        return int(headers["urgency"])


def test_a_smaller_rank_is_delivered_first_even_behind_the_pointer(db: Any, space: Subspace, clock: Clock) -> None:
    leases = Leases(Queue(space, codec="str", order=ByUrgency()), clock=clock)
    subscriptions = Subscriptions(leases)
    red = of_color(subscriptions, db, "red")
    for n, (color, urgency) in enumerate([("red", 1), ("blue", 2), ("red", 2), ("red", 1)]):
        leases.enqueue(db, f"{color}{n}", headers={"color": color, "urgency": urgency})
    assert values(red.lease_many(db, limit=2)) == ["red0", "red3"]
    leases.enqueue(db, "first", headers={"color": "red", "urgency": 0})
    leases.queue.enqueue(db, "not mine", headers={"color": "blue", "urgency": 0})
    assert values(red.lease_many(db)) == ["first", "red2"]
    assert subscriptions.check(db).problems == ()
    ranked = subscriptions.subscribe(db, "by rank", selector="fdbqueue_rank IN (0, 2)")
    assert values(ranked.lease_many(db)) == ["not mine", "blue1"]


def test_a_selector_may_be_a_function(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    short = subscriptions.subscribe(db, "short", selector=lambda headers: len(headers["color"]) <= 3)
    fill(leases, db, "blue", "red")
    assert values(short.lease_many(db)) == ["red1"]
    other = subscriptions.subscribe(db, "other", selector=None)
    other.name = "short"
    with pytest.raises(SubscriptionError, match="is a function"):
        other.lease(db)


async def selects(headers: Mapping[str, Any]) -> bool:
    """Accept nothing, some time."""
    return False


def test_a_selector_that_changes_begins_at_the_head(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    subscription = subscriptions.subscribe(db, "s", selector="color = 'red'")
    fill(leases, db, "blue", *["green"] * 40, "red")
    assert values(subscription.lease_many(db)) == ["red41"]
    same = subscriptions.subscribe(db, "s", selector="color = 'red'")
    assert same.lease(db) is None
    changed = subscriptions.subscribe(db, "s", selector="color = 'blue'")
    assert values(changed.lease_many(db)) == ["blue0"]


def test_a_bad_selector_is_refused_at_subscription_and_nothing_is_written(
    db: Any, subscriptions: Subscriptions
) -> None:
    with pytest.raises(SelectorError) as refused:
        subscriptions.subscribe(db, "bad", selector="color = ")
    assert (refused.value.line, refused.value.column) == (1, 9)
    assert subscriptions.stats(db) == []


def test_a_suspended_subscription_delivers_nothing_until_it_resumes(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red")
    red.suspend(db)
    assert red.lease(db) is None
    assert subscriptions.stats(db)[0].suspended
    red.resume(db)
    assert values(red.lease_many(db)) == ["red0"]


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        (pack_record(SubscriptionRecord(version=VERSION + 1)), "'red'.*newer version"),
        (b"\xc1", "can't be read.*'red', and subscribe again"),
    ],
)
def test_a_subscription_that_can_not_be_read_says_so(
    db: Any, subscriptions: Subscriptions, leases: Leases, stored: bytes, told: str
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red")
    db[leases.layout.subscriptions.pack(("red",))] = stored
    with pytest.raises(FormatError, match=told):
        red.lease(db)
    assert leases.stats(db).available == 1


def test_an_unsubscribed_consumer_gets_an_error_and_items_stay(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red", "red")
    lease = red.lease(db)
    assert lease is not None
    assert subscriptions.unsubscribe(db, "red")
    assert not subscriptions.unsubscribe(db, "red")
    for refused in (red.lease, red.suspend, red.credit):
        with pytest.raises(SubscriptionError, match="ubscribe"):
            refused(db)
    leases.ack(db, lease)
    assert [item.value for item in leases.queue.browse(db)] == ["red1"]
    assert subscriptions.check(db).problems == ()


def test_the_last_unsubscribe_leaves_no_notes_behind(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    of_color(subscriptions, db, "red")
    fill(leases, db, "red")
    subscriptions.unsubscribe(db, "red")
    fill(leases, db, "red")
    space = leases.layout.space
    left = {space.unpack(row.key)[0] for row in db.get_range_startswith(space.key())}
    assert not left & {"arrival", "subscription", "pointer", "held"}
    assert db.get(leases.layout.subscribed_key) is None


def test_an_exclusive_subscription_has_one_owner_while_it_lives(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    mine = subscriptions.subscribe(db, "one", exclusive=True, ownership=10)
    fill(leases, db, "red", "red", "red")
    for name, exclusive in (("one", True), ("one", False), ("two", False), ("two", True)):
        with pytest.raises(SubscriptionError, match="exclusive"):
            subscriptions.subscribe(db, name, exclusive=exclusive)
    clock.now += 6
    assert values(mine.lease_many(db, limit=1, duration=100)) == ["red0"]  # renewed by the way
    clock.now += 6
    with pytest.raises(SubscriptionError, match="exclusive"):
        subscriptions.subscribe(db, "one", exclusive=True)
    clock.now += 6
    heir = subscriptions.subscribe(db, "one", exclusive=True)
    with pytest.raises(SubscriptionError, match="another's"):
        mine.lease(db)
    assert values(heir.lease_many(db)) == ["red1", "red2"]
    assert subscriptions.stats(db)[0].exclusive
    heir.close(db)
    assert not subscriptions.stats(db)[0].exclusive
    subscriptions.subscribe(db, "two")
    with pytest.raises(SubscriptionError, match="another's"):
        mine.lease(db)


@pytest.mark.parametrize("change", ["grant", "suspend", "resume"])
def test_a_change_by_the_owner_keeps_an_exclusive_subscription(
    db: Any, subscriptions: Subscriptions, clock: Clock, change: str
) -> None:
    mine = subscriptions.subscribe(db, "one", exclusive=True, ownership=10)
    clock.now += 6
    getattr(mine, change)(db, **({"items": 3} if change == "grant" else {}))
    clock.now += 6
    with pytest.raises(SubscriptionError, match="exclusive"):
        subscriptions.subscribe(db, "one", exclusive=True)


def test_no_subscription_can_be_exclusive_while_there_are_others(db: Any, subscriptions: Subscriptions) -> None:
    subscriptions.subscribe(db, "shared")
    with pytest.raises(SubscriptionError, match="'shared'"):
        subscriptions.subscribe(db, "mine", exclusive=True)


def test_a_browser_sees_what_it_selects_and_takes_nothing(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    fill(leases, db, "red", "blue", "red", "red")
    seen = [item.value for item in subscriptions.browse(db, selector="color = 'red'", limit=2)]
    assert seen == ["red0", "red2"]
    browser = subscriptions.browse(db, selector=lambda headers: headers["color"] == "red")
    first = next(browser)
    red = of_color(subscriptions, db, "red")
    assert values(red.lease_many(db, limit=1)) == ["red0"]
    assert [item.value for item in browser] == ["red2", "red3"]
    after = subscriptions.browse(db, selector="color = 'red'", after=first.position)
    assert [item.value for item in after] == ["red2", "red3"]


def test_items_that_match_no_selector_are_checked_once(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    red = of_color(subscriptions, db, "red")
    leases.queue.enqueue_many(db, (str(n) for n in range(25_000)))
    asked = 0

    def wants(headers: Any) -> bool:
        nonlocal asked
        asked += 1
        return bool(headers)

    counting = subscriptions.subscribe(db, "counting", selector=wants)
    assert counting.lease(db) is None
    assert asked == 25_000
    position = leases.enqueue(db, "red", headers={"color": "red"})
    lease = counting.lease(db)
    assert lease is not None
    assert (lease.position, asked) == (position, 25_001)
    leases.nack(db, lease)
    assert values(red.lease_many(db)) == ["red"]


def test_in_a_callers_transaction_it_sees_what_that_enqueued_and_gave_back(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red", "blue", "red")
    lease = red.lease(db)
    assert lease is not None
    tr = db.create_transaction()
    leases.nack(tr, lease)
    leases.enqueue(tr, "own", headers={"color": "red"})
    assert values(red.lease_many(tr, limit=2)) == ["red0", "red2"]
    assert values(red.lease_many(tr)) == ["own"]
    tr.commit().wait()
    assert red.lease(db) is None
    assert subscriptions.check(db).problems == ()


def test_an_expired_item_is_not_delivered(db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock) -> None:
    red = of_color(subscriptions, db, "red")
    for ttl in (5, 100, 5):
        leases.enqueue(db, f"{ttl}", ttl=ttl, headers={"color": "red"})
    clock.now += 10
    assert values(red.lease_many(db)) == ["100"]
    assert leases.stats(db).expired == 2


def test_an_unreadable_item_blocks_only_subscriptions_without_a_selector(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red, everything = of_color(subscriptions, db, "red"), subscriptions.subscribe(db, "all")
    db[leases.layout.item_key(leases.queue.enqueue(db, "x"))] = b"\xf0"
    fill(leases, db, "red")
    with pytest.raises(FormatError, match="can't be read"):
        everything.lease(db)
    assert values(red.lease_many(db)) == ["red0"]


def test_a_subscription_that_was_idle_for_long_looks_at_everything(
    db: Any, subscriptions: Subscriptions, leases: Leases, clock: Clock
) -> None:
    lazy, busy = of_color(subscriptions, db, "red"), of_color(subscriptions, db, "blue")
    fill(leases, db, "red", *["blue"] * 40)
    first = leases.lease(db, duration=1_000)
    assert first is not None
    assert lazy.lease(db) is None  # it passed by all of them
    clock.now += 100
    leases.nack(db, first)
    assert len(busy.lease_many(db)) == 40
    assert db.get(leases.layout.trimmed_key) is not None, "arrivals were forgotten"
    assert values(lazy.lease_many(db)) == ["red0"]
    assert subscriptions.check(db).problems == ()


def test_the_check_finds_what_was_passed_by_and_credit_that_is_wrong(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red", "red", "red")
    lease = red.lease(db)
    assert lease is not None
    layout = leases.layout
    hidden = Position(0, b"hidden")
    db[layout.item_key(hidden)] = db[layout.item_key(next(iter(leases.queue.browse(db))).position)]
    db.clear(layout.held_key("red", pack(lease.position)))
    db[layout.pointers.pack(("stray",))] = b""
    problems = "\n".join(subscriptions.check(db).problems)
    for told in ("was passed by", "whose credit does not know", "belongs to no subscription"):
        assert told in problems


def test_the_check_continues_after_unreadable_items_and_failing_selectors(
    db: Any, subscriptions: Subscriptions, leases: Leases
) -> None:
    short = subscriptions.subscribe(db, "short", selector=lambda headers: len(headers["color"]) <= 3)
    fill(leases, db, "red", "blue", "red")
    unreadable, other = short.lease_many(db)
    assert subscriptions.check(db).problems == ()
    layout = leases.layout
    db[layout.leased.key(pack(unreadable.position))] = b"\xf0from the future"
    db.clear(layout.held_key("short", pack(other.position)))
    problems = "\n".join(subscriptions.check(db).problems)
    for told in ("newer version", f"The item {other.position} is leased for 'short', whose credit does not know"):
        assert told in problems


def test_the_check_reports_no_item_that_moved_during_the_check(
    db: Any, subscriptions: Subscriptions, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    red = of_color(subscriptions, db, "red")
    fill(leases, db, "red")
    lease = red.lease(db)
    assert lease is not None
    acked: list[Lease] = []

    def acking(tr: Any, begin: bytes, end: bytes) -> Any:
        if begin == leases.layout.held.range().start and not acked:
            acked.append(lease)
            red.ack(db, lease)
        return pages(tr, begin, end)

    monkeypatch.setattr(_check, "pages", acking)
    assert subscriptions.check(db).problems == ()
    assert acked


def test_it_can_be_awaited(db: Any, subscriptions: Subscriptions, leases: Leases) -> None:
    async def session() -> list[str]:
        red = await subscriptions.subscribe.aio(db, "red", selector="color = 'red'")
        await leases.enqueue.aio(db, "x", headers={"color": "red"})
        taken = await red.lease_many.aio(db)
        await red.ack.aio(db, taken[0])
        return values(taken)

    assert asyncio.run(session()) == ["x"]


@pytest.mark.parametrize("selector", [None, "n = 1"])
def test_an_owner_that_waits_keeps_its_subscription(
    db: Any, subscriptions: Subscriptions, clock: Clock, monkeypatch: pytest.MonkeyPatch, selector: str | None
) -> None:
    own = subscriptions.subscribe(db, "own", selector=selector, exclusive=True, ownership=3.0)
    rests = 0

    async def rest(alarms: Any, *limits: float | None) -> None:
        nonlocal rests
        rests += 1
        clock.now += min(limit for limit in limits if limit is not None)
        with pytest.raises(SubscriptionError, match="exclusive until"):
            subscriptions.subscribe(db, "rival")
        if rests == 10:
            subscriptions.leases.enqueue(db, "x", headers={"n": 1})

    monkeypatch.setattr("fdbqueue.layers.common.batcher.until_changed", rest)
    lease = own.lease(db, timeout=100)
    assert lease is not None
    assert lease.value == "x"
