"""A rename moves everything that a queue has under another name; the old name is refused, and its error has the new."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import FDBError, LeaseLost, Position, Queue, QueueRenamed, SubscriptionError, UnknownQueue, rename
from fdbqueue.engine import Subspace, steps, waiting
from fdbqueue.engine.directory import DirectoryLayer
from fdbqueue.engine.steps import value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import TransferError
from fdbqueue.layers import (
    Blobs,
    Groups,
    Leases,
    Results,
    Sessions,
    StagedQueue,
    Subscriptions,
    Watchdog,
)
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import keys_of_marks
from fdbqueue.transfer import copy_queue, export_items
from fdbqueue.verbs import renaming
from tests.helpers.names import registered_before
from tests.helpers.smart import Progress, smart_queue
from tests.helpers.staging import wait_until
from tests.transfer.histories import HISTORIES, live, queue_of


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Note how long a rename waits for old transactions, and do not wait."""
    seen: list[float] = []

    async def pause(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(renaming, "pause", pause)
    return seen


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a queue of a few items large: it is renamed in several transactions."""
    monkeypatch.setattr(renaming, "LAST_BYTES", 3_000)
    monkeypatch.setattr(renaming, "BATCH_ITEMS", 3)


def keys(db: Any, space: Subspace) -> dict[bytes, bytes]:
    """Return all that a queue has, by its key's end. Left out: commit markers, marks, and a counter that wakes."""
    layout = Layout(space)
    left_out = (layout.markers.key(), *keys_of_marks(layout), layout.count_key("returned"))
    line = Layout(space["line"]).count_key("returned")
    return {
        row.key[len(layout.prefix) :]: row.value
        for row in db.get_range(*layout.whole_range())
        if not row.key.startswith((*left_out, line))
    }


class Cut(Exception):
    """The process ends here."""


def cut_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let the `number`-th transaction of a rename fail, before or after its commit."""
    left = number

    async def cutting(db: Any, body: Any) -> Any:
        nonlocal left
        left -= 2
        if left == -2:
            raise Cut
        result = await attempts(db, body)
        if left == -1:
            raise Cut
        return result

    patch.setattr(renaming, "attempts", cutting)


@pytest.mark.parametrize("large", [False, True])
@settings(max_examples=10)
@given(HISTORIES, st.booleans(), st.lists(st.integers(0, 14), max_size=3))
@example([("enqueue", b"x" * 200_000, {"delay": 1e6, "ttl": 1e7, "headers": None})] * 5, False, [9, 11, 13, 15])
def test_a_history_is_renamed_as_it_is(db: Any, large: bool, history: Any, ordered: bool, cuts: list[int]) -> None:
    space = Subspace(("fdbqueue tests", os.urandom(8)))
    old, new = queue_of(space["old"], ordered=ordered), queue_of(space["the new name"], ordered=ordered)
    live(db, old, [step for step in history if step[0] != "claim"] + [("plain", b"last")])
    before, last = keys(db, space["old"]), max(row["index"] for row in old.to_arrow(db).to_pylist())
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(renaming, "LAST_BYTES", 3_000)
            patch.setattr(renaming, "BATCH_ITEMS", 2)
        for number in cuts:
            with pytest.MonkeyPatch.context() as cutting:
                cut_at(cutting, number)
                with contextlib.suppress(Cut, TransferError):
                    rename(db, space["old"], space["the new name"])
            here, there = keys(db, space["old"]), keys(db, space["the new name"])
            assert here.keys().isdisjoint(there)
            assert here | there == before  # each key is under one of the names
        with contextlib.suppress(TransferError):  # leased items that do not fit, in a transaction made that small
            rename(db, space["old"], space["the new name"])
    report = rename(db, space["old"], space["the new name"])
    assert keys(db, space["the new name"]) == before
    assert keys(db, space["old"]) == {}
    stats = new.stats(db)
    assert report.items == stats.available + stats.leased + stats.delayed + stats.dead
    assert Leases(new).check(db).problems == ()
    assert new.enqueue(db, b"later").index > last
    assert [info.name for info in fdbqueue.queues(db, within=space)] == [
        fdbqueue.lowlevel.fdb_tuple.unpack(space["the new name"].key())
    ]
    with pytest.raises(QueueRenamed):
        old.enqueue(db, b"x")
    db.clear_range_startswith(space.key())


def test_a_rename_waits_as_long_as_a_transaction_may_be_open(db: Any, space: Subspace, waits: list[float]) -> None:
    Queue(space["old"]).enqueue(db, b"x")
    rename(db, space["old"], space["new"])
    assert [seconds > 5.5 for seconds in waits] == [True]


def test_an_enqueue_that_was_open_when_the_rename_began_is_not_lost(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    old: Queue[str] = Queue(space["old"], codec="str")
    old.enqueue(db, "first")
    late = db.create_transaction()
    position = old.enqueue(late, "late")

    async def pause(seconds: float) -> None:
        await value_of(late.commit())

    monkeypatch.setattr(renaming, "pause", pause)
    assert rename(db, space["old"], space["new"]).items == 2
    new: Queue[str] = Queue(space["new"], codec="str")
    assert [item.value for item in new.browse(db)] == ["first", "late"]
    found = new.get(db, position)
    assert found is not None
    assert found.value == "late"
    assert new.check(db).problems == ()


@pytest.mark.slow
def test_an_enqueue_that_is_older_than_the_wait_can_not_commit(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renaming, "pause", waiting.pause)
    old: Queue[str] = Queue(space["old"], codec="str")
    old.enqueue(db, "first")
    late = db.create_transaction()
    old.enqueue(late, "late")
    assert rename(db, space["old"], space["new"]).items == 1
    with pytest.raises(FDBError) as caught:
        late.commit().wait()
    assert caught.value.code == 1007


def takers(old: Any) -> dict[str, Callable[[Any], Any]]:
    leases, sessions = Leases(old), Sessions(old)
    return {
        "dequeue": old.dequeue,
        "dequeue_many": old.dequeue_many,
        "lease": leases.lease,
        "staged": StagedQueue(old).dequeue,
        "waiting": lambda db: StagedQueue(old).lease(db, timeout=30),
        "pause": old.pause,
        "resume": old.resume,
        "enqueue": lambda db: old.enqueue(db, b"x"),
        "in a transaction": lambda db: fdbqueue.transactional(lambda tr: old.enqueue(tr, b"x"))(db),
        "enqueue_many": lambda db: old.enqueue_many(db, [b"x"]),
        "lease's enqueue": lambda db: leases.enqueue(db, b"x", delay=5),
        "staged enqueue": lambda db: StagedQueue(old).enqueue(db, b"x"),
        "session": lambda db: Sessions(old).enqueue(db, b"x", session="ann"),
        "session's lease": lambda db: Sessions(old).lease(db),
        "open": lambda db: Queue.open(db, old.layout.space),
        "group": lambda db: Groups(leases).open(db, "march"),
        "session's group": lambda db: Groups(sessions).open(db, "march"),
        "session's pause": lambda db: sessions.pause(db, "ann"),
        "session's concurrency": lambda db: sessions.set_concurrency(db, "ann", 3),
        "session's removal": lambda db: sessions.remove(db, "ann"),
        "gate's limit": lambda db: sessions.set_limit(db, "tenant", 3),
        "quota": lambda db: old.set_quota(db, 3),
    }


def readers(old: Any) -> dict[str, Callable[[Any], Any]]:
    leases, staged, sessions, subscriptions = Leases(old), StagedQueue(old), Sessions(old), Subscriptions(old)
    where, groups, blobs = Position(1, b"random"), Groups(leases), Blobs(leases)
    return {
        "stats": old.stats,
        "peek": old.peek,
        "is_empty": old.is_empty,
        "browse": lambda db: list(old.browse(db)),
        "browse in a transaction": lambda db: fdbqueue.transactional(lambda tr: list(old.browse(tr)))(db),
        "inspect": old.inspect,
        "check": old.check,
        "get": lambda db: old.get(db, where),
        "get_many": lambda db: old.get_many(db, [where, where]),
        "cancel": lambda db: old.cancel(db, where),
        "update": lambda db: old.update(db, where, value=b"2"),
        "reschedule": lambda db: old.reschedule(db, where, delay=1),
        "to_arrow": old.to_arrow,
        "to_arrow_batches": lambda db: list(old.to_arrow_batches(db)),
        "to_pandas": old.to_pandas,
        "leases' stats": leases.stats,
        "leases' check": leases.check,
        "dead": lambda db: list(leases.dead.browse(db)),
        "dead redrive": leases.dead.redrive,
        "dead purge": lambda db: leases.dead.purge(db, where),
        "leased": lambda db: list(leases.browse(db, state="leased")),
        "staged stats": staged.stats,
        "subscriptions' browse": lambda db: list(subscriptions.browse(db)),
        "sessions": lambda db: list(sessions.list(db)),
        "sessions' stats": sessions.stats,
        "export": lambda db: export_items(db, old, "/nowhere/out.jsonl"),
        "register": old.register,
        "quota": old.quota,
        "reclaim": leases.reclaim,
        "watchdog": Watchdog(leases).sweep,
        "subscriptions' stats": subscriptions.stats,
        "subscriptions' count": subscriptions.count,
        "unsubscribe": lambda db: subscriptions.unsubscribe(db, "eye"),
        "groups": lambda db: list(groups.list(db)),
        "blobs' stats": blobs.stats,
        "blobs' sweep": blobs.sweep,
        "sessions' groups": lambda db: list(Groups(sessions).list(db)),
        "sessions' watchdog": Watchdog(sessions).sweep,
        "sessions' reclaim": sessions.reclaim,
        "a session": lambda db: sessions.info(db, "ann"),
        "its state": lambda db: sessions.state(db, "ann"),
        "its items": lambda db: sessions.scheduled(db, "ann"),
        "its dead letters": lambda db: sessions.dead(db, "ann"),
        "its redrive": lambda db: sessions.redrive(db, "ann"),
        "its purge": lambda db: sessions.purge(db, "ann"),
        "its skip": lambda db: sessions.skip(db, "ann"),
        "its resume": lambda db: sessions.resume(db, "ann"),
        "gates": lambda db: list(sessions.gates(db)),
        "a gate": lambda db: sessions.gate(db, "tenant"),
    }


@pytest.mark.parametrize("verb", sorted(readers(Queue("x"))))
def test_a_queue_does_not_look_empty_under_its_old_name(db: Any, space: Subspace, verb: str) -> None:
    old: Any = Queue(space["old"])
    old.enqueue(db, b"1")
    rename(db, space["old"], space["new"])
    with pytest.raises(QueueRenamed, match=r"was renamed to .*new"):
        readers(old)[verb](db)
    old.clear(db)  # the old name is free again
    if verb != "export":
        readers(old)[verb](db)


@pytest.mark.parametrize("verb", sorted(takers(Queue("x"))))
def test_calls_with_the_old_name_get_an_error_with_the_new(db: Any, space: Subspace, verb: str) -> None:
    old: Any = Queue(space["old"])
    old.enqueue(db, b"1")
    rename(db, space["old"], space["new"])
    with pytest.raises(UnknownQueue if verb == "open" else QueueRenamed, match=r"was renamed to .*new") as caught:
        takers(old)[verb](db)
    if isinstance(caught.value, QueueRenamed):
        assert caught.value.name == fdbqueue.lowlevel.fdb_tuple.unpack(space["new"].key())
    assert keys(db, space["old"]) == {}


def test_a_subscription_goes_on_under_the_new_name(db: Any, space: Subspace) -> None:
    old, new = (Subscriptions(Leases(Queue(space[name], codec="str"))) for name in ("old", "new"))
    red = old.subscribe(db, "red", selector="color = 'red'")
    eye = old.follow(db, "eye", start="tail")
    for number, color in enumerate(("red", "blue", "red", "blue")):
        old.enqueue(db, f"{color} {number}", headers={"color": color})
    assert [next(eye).value for _ in range(2)] == ["red 0", "blue 1"]
    eye.close()
    silent = old.follow(db, "silent", start="tail")
    lease = red.lease(db)
    assert lease is not None

    rename(db, space["old"], space["new"])

    with pytest.raises(QueueRenamed):
        red.lease(db)
    with pytest.raises(QueueRenamed):
        silent.next_many(timeout=30)
    with pytest.raises(QueueRenamed):
        old.follow(db)
    with pytest.raises(QueueRenamed):
        old.enqueue(db, "x", headers={"color": "red"})
    new_red = new.open("red", function=None)
    following = new_red.lease(db)
    assert following is not None
    assert (lease.value, following.value) == ("red 0", "red 2")
    new.leases.ack(db, lease)
    with new.follow(db, "eye") as goes_on, new.follow(db, "silent") as silent:
        new.enqueue(db, "later", headers={"color": "blue"})
        told = [goes_on.next_many(limit=1, timeout=20)[0].value for _ in range(2)]
        assert told == ["blue 3", "later"]
        assert silent.next_many(timeout=20)[0].value == "later"
    assert new.check(db).problems == ()


def test_a_lease_is_valid_under_the_new_name_and_its_holder_learns_that(db: Any, space: Subspace) -> None:
    old, new = (Leases(Queue(space[name])) for name in ("old", "new"))
    old.enqueue(db, b"x")
    lease = old.lease(db)
    assert lease is not None
    rename(db, space["old"], space["new"])
    with pytest.raises(LeaseLost, match=r"was renamed to .*new.* its lease is valid there"):
        old.ack(db, lease)
    new.ack(db, lease)
    assert (new.stats(db).dequeued, new.check(db).problems) == (1, ())


@pytest.mark.usefixtures("few")
def test_holders_can_act_between_the_steps(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (Leases(Queue(space[name])) for name in ("old", "new"))
    old.enqueue_many(db, [b"%d" % number for number in range(30)])
    old.enqueue_many(db, [b"x" * 200_000])
    acked, back, kept, dropped = old.lease_many(db, limit=4)
    cancelled, there = (item.position for item in old.queue.browse(db, reverse=True, limit=2))

    async def pause(seconds: float) -> None:
        await old.ack.steps(db, acked)
        await old.nack.steps(db, back)
        with pytest.raises(QueueRenamed, match="is being renamed to"):
            await old.cancel.steps(db, cancelled)  # it has moved
        assert await new.cancel.steps(db, there)
        assert await old.cancel.steps(db, dropped.position)
        with pytest.raises(QueueRenamed, match="is being renamed to"):
            await new.lease.steps(db)
        with pytest.raises(QueueRenamed, match="is being renamed to"):
            await new.enqueue.steps(db, b"x")

    monkeypatch.setattr(renaming, "pause", pause)
    assert rename(db, space["old"], space["new"]).items == 28
    assert new.check(db).problems == ()
    assert (new.stats(db).deleted, new.stats(db).dequeued) == (2, 1)
    assert [item.value for item in new.queue.browse(db, limit=2)] == [b"1", b"4"]
    new.ack(db, kept)
    assert new.cancel(db, cancelled)
    assert new.check(db).problems == ()


def test_a_smart_queue_and_a_pause_and_blobs_are_renamed(db: Any, space: Subspace) -> None:
    smart = smart_queue(space["old"])
    smart.enqueue(db, Progress("a", 10))
    smart.queue.pause(db, reason="stocktaking", by="Ann")
    with Blobs(Leases(Queue(space["blob"]))).write(db) as blob:
        blob.write(bytes(1_200_000))
    rename(db, space["old"], space["new"])
    rename(db, space["blob"], space["new blob"])
    new = smart_queue(space["new"])
    pause = new.queue.paused(db)
    assert pause is not None
    assert (pause.by, pause.reason) == ("Ann", "stocktaking")
    new.queue.resume(db)
    new.enqueue(db, Progress("a", 20))
    assert new.check(db).problems == ()
    with pytest.raises(fdbqueue.ChecksBypassed):
        new.queue.enqueue(db, Progress("a", 20))
    with pytest.raises(QueueRenamed):
        smart.enqueue(db, Progress("a", 30))
    leases = Leases(Queue(space["new blob"]))
    lease = leases.lease(db)
    assert lease is not None
    with Blobs(leases).read(db, lease) as data:
        assert data.read() == bytes(1_200_000)
    assert Blobs(leases).check(db).problems == ()


def refused() -> dict[str, tuple[Callable[[Any, Subspace], Any], str]]:
    def stream(db: Any, space: Subspace) -> None:
        Stream(Queue(space), "s").claim(db, Terms(epoch="e", batch=1, run="", items=1, size_bytes=1_000))

    def copy(db: Any, space: Subspace) -> None:
        with fdbqueue.open("memory:") as target:
            copy_queue(db, target, Queue(space))

    return {
        "sessions": (lambda db, space: Sessions(Queue(space)).enqueue(db, b"x", session="ann"), "has sessions"),
        "stream": (stream, "a stream out of it"),
        "copy": (
            copy,
            r"the record of a copy .*: fdbqueue\.transfer\.release_copy\(source, Queue\(.*\), target=target\)\.$",
        ),
        "group": (lambda db, space: Groups(Leases(Queue(space))).open(db, "book"), "has groups"),
        "completion": (lambda db, space: Results(Leases(Queue(space))).enqueue(db, b"x"), "has a completion"),
        "inside": (lambda db, space: registered_before(db, space["inner"]), "is inside"),
    }


@pytest.mark.parametrize("what", sorted(refused()))
def test_what_can_not_be_renamed_is_refused_with_the_remedy(db: Any, space: Subspace, what: str) -> None:
    Queue(space["old"]).enqueue(db, b"x")
    make, told = refused()[what]
    make(db, space["old"])
    before = keys(db, space["old"])
    with pytest.raises(TransferError, match=told):
        rename(db, space["old"], space["new"])
    assert (keys(db, space["old"]), keys(db, space["new"])) == (before, {})
    assert Queue(space["old"]).enqueue(db, b"y").index


def test_wrong_names_are_refused(db: Any, space: Subspace) -> None:
    queue: Queue[bytes] = Queue(space["old"])
    queue.enqueue(db, b"x")
    Queue(space["other"]).enqueue(db, b"x")
    with pytest.raises(TransferError, match=r"There is a queue .* already"):
        rename(db, space["old"], space["other"])
    with pytest.raises(UnknownQueue, match=r"There is no queue .*\. Did you mean"):
        rename(db, space["olds"], space["new"])
    for new in (space["old"], space["old"]["inner"], space):
        with pytest.raises(TransferError, match="are one queue, or one is inside the other"):
            rename(db, space["old"], new)
    directories = DirectoryLayer(node_subspace=space["nodes"], content_subspace=space["content"])
    with pytest.raises(TransferError, match="is a directory"):
        rename(db, directories.create_or_open(db, ("shop",)), space["new"])
    Subscriptions(Leases(queue)).subscribe(db, "all", exclusive=True)
    with pytest.raises(SubscriptionError, match="only its owner takes items"):
        rename(db, space["old"], space["new"])
    assert queue.stats(db).available == 1


def test_a_queue_can_be_renamed_back_and_on_and_its_old_name_used_again(db: Any, space: Subspace) -> None:
    one, two, three = (Queue(space[name], codec="str") for name in ("one", "two", "three"))
    one.enqueue(db, "x")
    rename(db, space["one"], space["two"])
    assert rename(db, space["one"], space["two"]).items == 1  # it is done
    with pytest.raises(QueueRenamed):
        rename(db, space["one"], space["three"])
    rename(db, space["two"], space["one"])
    one.enqueue(db, "y")
    with pytest.raises(QueueRenamed, match=r"one"):
        two.enqueue(db, "z")
    rename(db, space["one"], space["three"])
    assert [item.value for item in three.browse(db)] == ["x", "y"]
    one.clear(db)
    one.enqueue(db, "of another queue")
    assert (one.stats(db).available, three.stats(db).available) == (1, 2)
    assert three.dequeue(db) is not None


def test_of_two_renames_to_two_names_one_is_refused(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    Queue(space["old"]).enqueue(db, b"x")

    async def pause(seconds: float) -> None:
        with pytest.raises(QueueRenamed, match="is being renamed"):
            await rename.steps(db, space["old"], space["other"])
        with pytest.raises(QueueRenamed, match="is being renamed"):
            await rename.steps(db, space["new"], space["old"])
        monkeypatch.setattr(renaming, "pause", lambda seconds: steps.finished(None))
        await rename.steps(db, space["old"], space["new"])  # the same one goes on, and ends

    monkeypatch.setattr(renaming, "pause", pause)
    assert rename(db, space["old"], space["new"]).items == 1
    assert Queue(space["new"]).check(db).problems == ()


def test_a_waiting_consumer_learns_the_new_name(db: Any, space: Subspace) -> None:
    old: Queue[bytes] = Queue(space["old"])
    old.enqueue(db, b"x")
    assert old.dequeue(db) is not None
    told: list[BaseException] = []

    def wait() -> None:
        try:
            StagedQueue(old).lease(db, timeout=60)
        except QueueRenamed as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    requests = Layout(space["old"]).requests.range()
    wait_until(lambda: [*db.get_range(requests.start, requests.stop, limit=1)])
    rename(db, space["old"], space["new"])
    waiting.join(30)
    assert len(told) == 1
