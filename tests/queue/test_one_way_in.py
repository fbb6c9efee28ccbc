"""All ways into a queue pass one place: what is added there, every way obeys (docs/adr/0174)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import FdbQueueError
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.layers import FollowUp, Leases, Results, Sessions, StagedQueue, Subscriptions, Tasks
from fdbqueue.moves import admission
from fdbqueue.stored.items import envelope
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import Quota, pack_quota
from fdbqueue.transfer import copy_queue, export_items, import_items
from fdbqueue.writes import appending
from tests.helpers.clock import Clock
from tests.helpers.names import beside
from tests.helpers.subscribing import stand_in_line
from tests.queue.test_writers import WRITERS, Write, modules, spark, strings

Rule = Callable[[Any, Layout, list[bytes]], object]


def edit(patch: pytest.MonkeyPatch, place: Callable[..., Any], edited: Callable[..., Any]) -> None:
    """Put another function in the place of one, wherever it is imported, as an edit of its text would."""
    for module in list(sys.modules.values()):
        if vars(module).get(place.__name__) is place:
            patch.setattr(module, place.__name__, edited)


def add_rule(patch: pytest.MonkeyPatch, rule: Rule) -> None:
    """Add a rule to the one place that writes new items."""
    place = appending.append_items

    def append_items(tr: Any, layout: Layout, index: int, random: bytes, stored: Any, *args: Any, **terms: Any) -> None:
        rule(tr, layout, list(stored))
        place(tr, layout, index, random, stored, *args, **terms)

    edit(patch, place, append_items)


def delivered(db: Any, space: Subspace, folder: Path) -> None:
    subscriptions = Subscriptions(strings(space))
    subscriptions.subscribe(db, "ann")
    stand_in_line(subscriptions, db, b"client", "ann")
    found = subscriptions.enqueue(db, "a")
    assert found is not None
    assert found.subscription == "ann"


def by_task(**options: Any) -> Write:
    def write(db: Any, space: Subspace, folder: Path) -> None:
        @Tasks(space).task(**options)
        def work(name: str) -> None:
            """Do nothing."""

        work.enqueue(db, "ann")

    return write


def by_schedule(db: Any, space: Subspace, folder: Path) -> None:
    clock = Clock(1e9)
    app = Tasks(space, clock=clock)

    @app.periodic(every=60)
    @app.task
    def work() -> None:
        """Do nothing."""

    app.schedules.note_plans(db, app.plans)
    clock.now += 60
    app.schedules.fire(db, app.plans)


def restored(ending: str, *, beside_others: bool = False) -> Write:
    def write(db: Any, space: Subspace, folder: Path) -> None:
        source = Leases(strings(beside(space, "other")), max_attempts=1)
        source.enqueue_many(db, ["a", "b"])
        source.enqueue(db, "c", delay=1e6)
        lease = source.lease(db)
        assert lease is not None
        source.nack(db, lease)
        export_items(db, source.queue, folder / f"file.{ending}")
        source.queue.clear(db)
        if beside_others:
            strings(space).enqueue(db, "d")
        import_items(db, strings(space), folder / f"file.{ending}")

    return write


MORE: dict[str, Write] = {
    "Leases.enqueue with all terms": lambda db, space, folder: Leases(strings(space)).enqueue(
        db, "a" * 200_000, delay=5, ttl=90, headers={"n": 1}
    ),
    "Results.enqueue with a follow-up": lambda db, space, folder: Results(Leases(strings(space))).enqueue(
        db, "a", ttl=90, then=FollowUp(Leases(strings(space)), "b")
    ),
    "Sessions.enqueue of large and delayed items": lambda db, space, folder: [
        Sessions(strings(space)).enqueue_many(db, ["a" * 200_000, "b"], session=name, delay=delay)
        for name in ("ann", "bob")
        for delay in (None, 5)
    ],
    "immediate delivery": delivered,
    "a task": by_task(),
    "a task that is unique": by_task(unique=True, keep_result=60.0),
    "a task in a session": by_task(session="name"),
    "a schedule": by_schedule,
    "import_items of Parquet": restored("parquet"),
    "import_items beside others": restored("jsonl", beside_others=True),
    "a bulk load of many batches": lambda db, space, folder: strings(space).enqueue_many(db, ["a"] * 2_500),
    "Spark's batch sink with large rows": spark(value="a" * 200_000),
    "Spark's streaming sink with times": spark(staged=True, ttlColumn=90.0),
}
WAYS = WRITERS | MORE


def counted(db: Any, space: Subspace) -> int:
    """Return how many items all counters below a space count as enqueued."""
    span, end = space.range(), fdb_tuple.pack(("count", "enqueued"))
    return sum(
        int.from_bytes(row.value, "little") for row in db.get_range(span.start, span.stop) if row.key.endswith(end)
    )


@pytest.mark.parametrize("name", sorted(WAYS))
def test_each_item_that_enters_is_noted_by_a_new_rule(
    db: Any, space: Subspace, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(tr: Any, layout: Layout, stored: list[bytes]) -> None:
        if layout.prefix.startswith(space["q"].key()):
            tr.add(space.pack(("noted",)), len(stored).to_bytes(8, "little"))

    add_rule(monkeypatch, note)
    WAYS[name](db, space["q"], tmp_path)

    assert int.from_bytes(db[space.pack(("noted",))], "little") == counted(db, space["q"]) > 0


class Refused(FdbQueueError):
    """What an imaginary rule raises."""


@pytest.mark.parametrize("name", sorted(WAYS))
def test_what_a_rule_refuses_enters_by_no_way(
    db: Any, space: Subspace, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tr: Any, layout: Layout, stored: list[bytes]) -> None:
        if layout.prefix.startswith(space["q"].key()) and stored != [envelope(b"d")]:
            raise Refused("no item may enter")

    add_rule(monkeypatch, refuse)
    with pytest.raises(Refused, match="no item may enter"):
        WAYS[name](db, space["q"], tmp_path)

    assert counted(db, space["q"]) == ("beside others" in name)


@pytest.mark.parametrize("name", sorted(WAYS))
def test_terms_that_refuse_are_asked_by_every_way(
    db: Any, space: Subspace, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = admission.check_terms

    async def check_terms(tr: Any, layout: Layout, *args: Any) -> None:
        if layout.prefix == space["q"].key():
            raise Refused("the queue takes no items")
        await place(tr, layout, *args)

    edit(monkeypatch, place, check_terms)
    db[strings(space["q"]).layout.type_key] = pack_quota(Quota(1_000_000))
    with pytest.raises(Refused, match="the queue takes no items"):
        WAYS[name](db, space["q"], tmp_path)

    assert counted(db, space["q"]) == 0


def test_what_comes_back_or_moves_on_is_not_new(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(strings(space["q"]), max_attempts=1)
    sessions = Sessions(strings(space["s"]), max_attempts=1)
    leases.enqueue_many(db, ["a", "b"])
    sessions.enqueue(db, "c", session="ann")

    def refuse(tr: Any, layout: Layout, stored: list[bytes]) -> None:
        if not layout.prefix.endswith(fdb_tuple.pack(("line",))):  # a session that goes on has a new pointer
            raise Refused("no item may enter")

    add_rule(monkeypatch, refuse)
    for to in ("place", "tail"):
        lease = StagedQueue(leases).lease(db)
        assert lease is not None
        leases.nack(db, lease)
        leases.dead.redrive(db, to=to)
    leases.queue.reschedule(db, leases.queue.peek(db).position, delay=1e6)  # type: ignore[union-attr]
    session = sessions.lease(db)
    assert session is not None
    sessions.nack(db, session)
    sessions.redrive(db, "ann")

    assert leases.stats(db).enqueued == 2
    assert sessions.stats(db).enqueued == 1


def test_a_copy_passes_the_place_at_its_target(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = strings(space)
    queue.enqueue_many(db, ["a", "b"])

    def refuse(tr: Any, layout: Layout, stored: list[bytes]) -> None:
        raise Refused("no item may enter")

    with fdbqueue.open("memory:") as other:
        add_rule(monkeypatch, refuse)
        with pytest.raises(Refused):
            copy_queue(db, other, queue)
        assert queue.stats(other).enqueued == 0
        monkeypatch.undo()
        copy_queue(db, other, queue)
        assert queue.stats(other).enqueued == 2


PLACE = "fdbqueue/writes/appending.py"
WRITES = {"chunk_key", "tally", "add", "enter_new", "item_keys", "set", "set_rows"}
AVAILABLE = ("layout.available", "self._layout.available", "session.layout.available")
STATES = {"fdbqueue/moves/moves.py"}
"""The modules that define how an item gets into a state."""


def ways_past(name: str, tree: ast.AST) -> list[str]:
    """Return the lines of a module that write new items, or count them, beside the one place."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        verb = node.func.attr
        if verb not in WRITES:
            continue
        given = ast.unparse(node).partition(f".{verb}(")[2]
        counts = verb in ("tally", "add") and ("'enqueued'" in given or "enqueued_key" in given)
        enters = verb in ("chunk_key", "enter_new", "item_keys") and name not in STATES
        writes = verb in ("set", "set_rows") and given.startswith(AVAILABLE) and name not in STATES
        if counts or enters or writes:
            found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.slow
def test_no_other_module_writes_or_counts_new_items() -> None:
    past = {name: ways_past(name, ast.parse(file.read_text())) for name, file in modules().items()}

    assert past.pop(PLACE)
    assert [line for lines in past.values() for line in lines] == []
