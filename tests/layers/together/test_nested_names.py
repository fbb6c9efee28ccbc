"""No public verb commits a key under a name that lies within another queue's, or around it.

The verbs are those of the tables in `test_verbs_in_transactions.py`, which are found by reflection: a new verb is in
this test by itself. Each is called with all objects that it needs, made while their queues were registered. Then all
keys are removed, and other queues are registered: one around all names, or one within each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fdbqueue import NestedQueue, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import within
from fdbqueue.layers import Sessions
from fdbqueue.spark.loads import begin_job, report_job
from fdbqueue.spark.partition_log import JobHeader, JobKeys
from fdbqueue.spark.sink_batches import SinkBatch, SinkKeys, begin_batch
from fdbqueue.stored import known
from fdbqueue.stored.layout import CATALOGUE, Layout
from tests.helpers.faults import FaultyDatabase, FaultyTransaction
from tests.helpers.names import beside
from tests.helpers.verbs import Call, Scene
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER, POSITION

RUN_ON = {"Consumer.run", "Monitor.run", "Watchdog.run", "Worker.run"}
"""They return only when they are stopped. `running` and `drain` do the same."""
VERBS = {**DATABASE_ONLY, **EITHER}
NAMES = (
    "queue",
    "results",
    "groups",
    "jobs",
    "relaxed",
    "subscriptions",
    "smart",
    "sessions",
    "smart sessions",
    "tasks",
)
"""The names of the scene's queues."""


def _upload(scene: Scene) -> Call:
    def upload(db: Any) -> None:
        with scene.blobs.write(db, "new") as writer:
            for _ in range(30):
                writer.write(b"x" * 100_000)

    return Call(upload)


VERBS["Blobs.write"] = _upload


class Guarded(FaultyDatabase):
    """A database each of whose transactions is looked at before its commit."""

    def __init__(self, db: Any, look: Callable[[Any], None]) -> None:
        super().__init__(db, lambda: None)
        self.look = look

    def create_transaction(self) -> FaultyTransaction:
        return _Looked(self._db.create_transaction(), self)


class _Looked(FaultyTransaction):
    def commit(self) -> Any:
        self._db.look(self._tr)
        return super().commit()


def rows(tr: Any, space: Subspace) -> list[tuple[bytes, bytes]]:
    """Return all rows of the queues below a name, and their records."""
    spans = (within(space.key()), within(CATALOGUE + space.key()))
    return [(row.key, row.value) for begin, end in spans for row in tr.get_range(begin, end)]


def nest(db: Any, space: Subspace, place: str) -> None:
    """Remove all keys and records below a name, as another process would, and register other queues there."""
    for begin, end in (within(space.key()), within(CATALOGUE + space.key())):
        del db[begin:end]
    if place == "within":
        Queue(space, codec="str").enqueue(db, "first")
    else:
        for name in NAMES:
            Queue(space[name]["inner"], codec="str").enqueue(db, "first")


def says(call: Callable[[], Any]) -> str:
    """Return the name of the error of a call; "" if there is none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  the test is about keys; the verb may also lack its lease or its group
        return type(error).__name__
    return ""


@pytest.mark.engines("memory")
@pytest.mark.parametrize("place", ["within", "around"])
@pytest.mark.parametrize("name", sorted(set(VERBS) - RUN_ON))
def test_a_verb_commits_no_key_under_a_nested_name(
    db: Any, space: Subspace, name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "LOOK_SECONDS", -1.0)  # no object relies on a record
    scene = Scene(db, space)
    calls = [VERBS[name](scene)]
    if "timeout" in inspect.signature(calls[0].verb).parameters:
        calls.append(calls[0].waiting(timeout=0.01))
    nest(db, space, place)
    before = rows(db, space)
    left: list[tuple[bytes, bytes]] = []

    def look(tr: Any) -> None:
        left.extend(set(rows(tr, space)) ^ set(before))

    for form in [form for call in calls for form in call.forms()]:
        says(partial(form, Guarded(db, look)))
        assert left == []
        assert rows(db, space) == before
    if name in EITHER:
        tr = db.create_transaction()
        said = says(partial(calls[0], tr))
        assert rows(tr, space) == before or said == "NestedQueue"  # the caller's transaction ends with the error


@pytest.mark.parametrize("take", [lambda db, queue: queue.dequeue(db), lambda db, queue: queue.cancel(db, POSITION)])
def test_a_call_that_finds_nothing_does_no_harm_to_the_queue_around(
    db: Any, space: Subspace, take: Callable[[Any, Queue], object]
) -> None:
    outer = Queue(space, codec="str")
    outer.enqueue(db, "first")
    with pytest.raises(NestedQueue, match="Nothing was changed"):
        take(db, Queue(space[0]))
    assert outer.check(db).ok
    assert outer.dequeue(db) is not None


def test_a_consumer_looks_at_other_names_once_a_second(db: Any, space: Subspace) -> None:
    Queue(space).enqueue(db, b"x")
    taking = Queue(space)
    tr = db.create_transaction()
    assert not taking.layout.known.is_beside(tr)
    assert taking.cancel(db, POSITION) is False
    assert taking.layout.known.is_beside(tr)


def test_a_clear_of_sessions_keeps_a_queue_that_lies_within(db: Any, space: Subspace) -> None:
    inner = Queue(space["session"]["x"], codec="str")
    inner.enqueue(db, "first")
    with pytest.raises(NestedQueue, match="Nothing was changed"):
        Sessions(Queue(space, codec="str")).clear(db)
    assert inner.dequeue(db) is not None


HEADER = JobHeader(
    delivery="exactlyOnce",
    partitions=1,
    codec="str",
    value_column="value",
    queue_column=None,
    headers_column=None,
    columns=(),
)
SPARK: dict[str, Callable[[Any, Layout], object]] = {
    "job": lambda db, layout: begin_job(db, JobKeys(layout, "j"), HEADER),
    "report": lambda db, layout: report_job(db, JobKeys(layout, "j"), HEADER, 1, []),
    "batch": lambda db, layout: begin_batch(db, SinkBatch(SinkKeys(layout, "s"), "q", 0), "r"),
}


@pytest.mark.parametrize("record", SPARK)
def test_a_record_of_spark_is_not_written_under_a_nested_name(db: Any, space: Subspace, record: str) -> None:
    Queue(space, codec="str").enqueue(db, "first")
    before = rows(db, space)
    with pytest.raises(NestedQueue, match="Nothing was changed"):
        SPARK[record](db, Layout(space["inner"]))
    assert rows(db, space) == before
    SPARK[record](db, Layout(beside(space, "other")))
