"""Every writer registers its queue, and refuses one that is registered with another codec before it writes an item."""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fdbqueue
from fdbqueue import NestedQueue, OtherCodec, Queue, rename
from fdbqueue.agents.queues import AgentQueue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import within
from fdbqueue.layers import (
    Blobs,
    FollowUp,
    Groups,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    Results,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
)
from fdbqueue.spark.appenders import writing_of
from fdbqueue.spark.columns import RowColumns
from fdbqueue.spark.options import LOAD, parse
from fdbqueue.spark.sink_batches import SinkBatch, SinkKeys, commit_batch, stage
from fdbqueue.transfer import copy_queue, export_items, import_items
from tests.helpers.names import beside

Write = Callable[[Any, Subspace, Path], object]
MESSAGE = {"type": "call"}


def strings(space: Subspace) -> Queue[str]:
    return Queue(space, codec="str")


def calls(space: Subspace) -> Queue[Any]:
    return Queue(space, codec=Messages(MessageType("call")))


def in_transaction(db: Any, write: Callable[[Any], object]) -> None:
    tr = db.create_transaction()
    write(tr)
    tr.commit().wait()


def followed(db: Any, space: Subspace, folder: Path) -> None:
    leases = Leases(Queue(beside(space, "before")))
    leases.enqueue(db, b"x")
    lease = leases.lease(db)
    assert lease is not None
    leases.ack(db, lease, then=FollowUp(strings(space), "a"))


def held(db: Any, space: Subspace, folder: Path) -> None:
    results = Results(Leases(Queue(beside(space, "before"))))
    results.enqueue(db, b"x", then=FollowUp(strings(space), "a"))


def blob(db: Any, space: Subspace, folder: Path) -> None:
    with Blobs(Leases(strings(space))).write(db, "a") as out:
        out.write(b"data")


def agents(size: int) -> Write:
    def write(db: Any, space: Subspace, folder: Path) -> None:
        async def send() -> None:
            upload = AgentQueue(db, Queue(space), lock=5.0).upload(size)
            await upload.write(b"x" * size)
            await upload.commit()

        asyncio.run(send())

    return write


def imported(db: Any, space: Subspace, folder: Path) -> None:
    if not (folder / "file.jsonl").exists():
        strings(beside(space, "other")).enqueue(db, "a")
        export_items(db, strings(beside(space, "other")), folder / "file.jsonl")
        strings(beside(space, "other")).clear(db)
    import_items(db, strings(space), folder / "file.jsonl")


def spark(codec: str = "str", *, staged: bool = False, value: Any = "a", **columns: Any) -> Write:
    """Return what a task of a sink does; `staged`: as a stream, which stores rows aside first."""
    given = {name: name for name in columns if name.endswith("Column")}
    options = {name: columns.pop(name) for name in list(columns) if name in ("smart", "sessions")}

    def write(db: Any, space: Subspace, folder: Path) -> None:
        plain = {"url": "file:/x", "queueKey": space.key().hex(), "jobId": "j", "codec": codec, "valueColumn": "value"}
        chosen = parse(LOAD, plain | given | options)
        batch = pa.record_batch({"value": [value], **{name: [cell] for name, cell in columns.items()}})
        rows = RowColumns(chosen, ["value"]).rows(batch)[0]
        appender = writing_of(chosen).appender
        if not staged:
            in_transaction(db, lambda tr: appender.prepare(tr, rows)())
            return
        first = SinkBatch(SinkKeys(chosen.layout(), "s"), "q", 0)
        staging = stage(db, first, 0, codec=codec)
        staging.add(rows)
        commit_batch(db, first, appender, [staging.finish()])

    return write


def spark_named_queue(db: Any, space: Subspace, folder: Path) -> None:
    """Rows that name their own queue; the name is a text, so that it is outside of the test's space."""
    chosen = parse(LOAD, {"url": "file:/x", "queueColumn": "queue", "jobId": "j", "codec": "str"})
    name = f"writers of {space.key().hex()}"
    batch = pa.record_batch({"value": ["a"], "queue": [name]})
    appender = writing_of(chosen).appender
    rows = RowColumns(chosen, ["value"]).rows(batch)[0]
    in_transaction(db, lambda tr: appender.prepare(tr, rows)())
    assert [info.codec for info in fdbqueue.queues(db, within=name)] == ["str"]
    Queue(name, codec="str").clear(db)
    strings(space).enqueue(db, "a")


WRITERS: dict[str, Write] = {
    "Queue.enqueue": lambda db, space, folder: strings(space).enqueue(db, "a"),
    "Queue.enqueue in a transaction": lambda db, space, folder: in_transaction(
        db, lambda tr: strings(space).enqueue(tr, "a")
    ),
    "Queue.enqueue_many": lambda db, space, folder: strings(space).enqueue_many(db, ["a"]),
    "Queue.enqueue_many in a transaction": lambda db, space, folder: in_transaction(
        db, lambda tr: strings(space).enqueue_many(tr, ["a"])
    ),
    "Queue.enqueue_many of a table": lambda db, space, folder: strings(space).enqueue_many(
        db, pa.table({"c": ["a"]}), column="c"
    ),
    "Leases.enqueue": lambda db, space, folder: Leases(strings(space)).enqueue(db, "a", delay=5),
    "Leases.enqueue_many": lambda db, space, folder: Leases(strings(space)).enqueue_many(db, ["a"]),
    "StagedQueue.enqueue": lambda db, space, folder: StagedQueue(strings(space)).enqueue(db, "a"),
    "PriorityQueue.enqueue": lambda db, space, folder: PriorityQueue(strings(space), levels=3).enqueue(db, "a"),
    "Subscriptions.enqueue": lambda db, space, folder: Subscriptions(strings(space)).enqueue(db, "a"),
    "SmartQueue.enqueue": lambda db, space, folder: SmartQueue(calls(space)).enqueue(db, MESSAGE),
    "SmartQueue.enqueue_many": lambda db, space, folder: SmartQueue(calls(space)).enqueue_many(db, [MESSAGE]),
    "Sessions.enqueue": lambda db, space, folder: Sessions(strings(space)).enqueue(db, "a", session="ann"),
    "Sessions.enqueue_many": lambda db, space, folder: Sessions(strings(space)).enqueue_many(db, ["a"], session="ann"),
    "SmartSessions.enqueue": lambda db, space, folder: SmartSessions(Sessions(calls(space))).enqueue(
        db, MESSAGE, session="ann"
    ),
    "Results.enqueue": lambda db, space, folder: Results(Leases(strings(space))).enqueue(db, "a"),
    "Group.enqueue": lambda db, space, folder: (
        Groups(Leases(strings(space))).open(db, "g" + os.urandom(4).hex()).enqueue(db, "a")
    ),
    "FollowUp of an ack": followed,
    "FollowUp that is held": held,
    "Blobs.write": blob,
    "an agent's small item": agents(10),
    "an agent's large item": agents(1_200_000),
    "import_items": imported,
    "Spark's batch sink": spark(),
    "Spark's batch sink with priorities": spark(priorityColumn=1),
    "Spark's batch sink with delays": spark(delayColumn=5.0),
    "Spark's batch sink into sessions": spark(sessionColumn="ann"),
    "Spark's batch sink through a smart queue": spark(
        "json", smart="tests.spark.shop:prices", value={"type": "price", "article": 1, "n": 1}
    ),
    "Spark's streaming sink": spark(staged=True),
}
"""All ways in which an item comes into a queue. Those that move items, with their bytes as they are, are below."""


def content(db: Any, space: Subspace) -> dict[bytes, bytes]:
    """Return the items of a queue, with all keys but markers of commits."""
    queue: Queue[Any] = Queue(space)
    places = [queue.layout.available, queue.layout.delayed]
    spaces = [(place.begin, place.end) for place in places]
    spans = [queue.layout.space[name].range() for name in ("items", "line", "count")]
    return {
        row.key: row.value
        for begin, end in [*spaces, *((one.start, one.stop) for one in spans)]
        for row in db.get_range(begin, end)
    }


def rows_of(db: Any, space: Subspace) -> list[tuple[bytes, bytes]]:
    """Return all rows below a name."""
    begin, end = within(space.key())
    return [(row.key, row.value) for row in db.get_range(begin, end)]


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_writer_registers_its_queue_once(db: Any, space: Subspace, name: str, tmp_path: Path) -> None:
    WRITERS[name](db, space["q"], tmp_path)

    [info] = [one for one in fdbqueue.queues(db, within=space["q"]) if one.name[-1] == "q"]
    assert info.codec in ("str", "json messages", "bytes")
    assert info.codec == "bytes" or "agent" not in name
    assert info.order == ("levels/3" if name.startswith("Pri") else "levels/10" if "priorities" in name else "")
    assert Queue(space["q"]).check(db).ok
    before = db[Queue(space["q"]).layout.catalogue_key]
    WRITERS[name](db, space["q"], tmp_path)
    assert db[Queue(space["q"]).layout.catalogue_key] == before


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_writer_refuses_a_queue_with_another_codec(db: Any, space: Subspace, name: str, tmp_path: Path) -> None:
    Queue(space["q"], codec="tuple").enqueue(db, (1,))
    before = content(db, space["q"])

    with pytest.raises(OtherCodec, match=r"is registered with the codec 'tuple', and not with '(str|json|bytes)"):
        WRITERS[name](db, space["q"], tmp_path)

    assert content(db, space["q"]) == before


@pytest.mark.parametrize("name", sorted(WRITERS))
@pytest.mark.parametrize("place", ["within", "around"])
def test_a_writer_refuses_a_name_within_another_one(
    db: Any, space: Subspace, name: str, place: str, tmp_path: Path
) -> None:
    other = space["a"]["q"]["x"] if place == "around" else space["a"]
    own = space["a"]["q"]
    Queue(other, codec="tuple").enqueue(db, (1,))
    before = content(db, other), rows_of(db, own)

    with pytest.raises(NestedQueue, match="lies within that of"):
        WRITERS[name](db, own, tmp_path)

    assert (content(db, other), rows_of(db, own)) == before
    Queue(other).clear(db)
    WRITERS[name](db, own, tmp_path)
    assert [info.name[-1] for info in fdbqueue.queues(db, within=space["a"]["q"])] == ["q"]


def test_rows_that_name_their_own_queue_register_it(db: Any, space: Subspace, tmp_path: Path) -> None:
    spark_named_queue(db, space, tmp_path)


@pytest.mark.slow
def test_a_rename_takes_the_record_along(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.verbs.renaming.LONGEST_SECONDS", 0.0)
    strings(space["old"]).enqueue(db, "a")
    record = db[strings(space["old"]).layout.catalogue_key]
    rename(db, space["old"], space["new"])
    assert db[strings(space["new"]).layout.catalogue_key] == record
    with pytest.raises(OtherCodec, match="registered with the codec 'str'"):
        Queue(space["new"], codec="json").enqueue(db, 1)


@pytest.mark.parametrize("registered", [True, False])
def test_a_copy_takes_the_record_along_and_not_the_codec_of_its_own_object(
    db: Any, space: Subspace, registered: bool
) -> None:
    queue = strings(space)
    queue.enqueue(db, "a")
    if not registered:
        del db[queue.layout.catalogue_key]
    with fdbqueue.open("memory:") as other:
        Queue(space, codec="json").register(other)  # of former items
        copy_queue(db, other, Queue(space))

        assert [info.codec for info in fdbqueue.queues(other)] == (["str"] if registered else [])
        assert strings(space).dequeue(other).value == "a"  # type: ignore[union-attr]


KNOWN = {
    "fdbqueue/verbs/queue.py": "Queue.enqueue",
    "fdbqueue/writes/bulk.py": "Queue.enqueue_many",
    "fdbqueue/writes/appending.py": "Queue.enqueue in a transaction",
    "fdbqueue/transfer/exports.py": "import_items",
    "fdbqueue/transfer/copying.py": "",
    "fdbqueue/spark/appenders.py": "Spark's batch sink",
    "layers/leases/enqueueing.py": "Leases.enqueue",
    "layers/leases/browsing.py": "",
    "layers/staged/_staged.py": "StagedQueue.enqueue",
    "layers/smart/admitting.py": "SmartQueue.enqueue",
    "layers/sessions/line/line.py": "Sessions.enqueue",
    "layers/subscriptions/waiters.py": "Subscriptions.enqueue",
}
"""The modules that number new items, each with a writer above; "": it moves items, with their bytes as they are."""
NUMBERS_OTHERS = {"fdbqueue/moves/admission.py", "fdbqueue/spark/claims.py", "fdbqueue/spark/draining.py"}
"""The definition, and modules that register Spark's format."""
NUMBERING = {"Admission", "next_index", "reserve", "ask_to_enter", "register"}


def numbers_items(file: Path) -> bool:
    """Return whether a module calls what gives new items their places, and registers their queue."""
    tree = ast.parse(file.read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if (node.module or "").startswith("fdbqueue")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called: Any = node.func
            if isinstance(called, ast.Name) and called.id in NUMBERING & imported:
                return True
            if isinstance(called, ast.Attribute) and called.attr == "next_index":
                return True
    return False


def modules() -> dict[str, Path]:
    """Return the library's modules by their paths in the repository."""
    package = Path(fdbqueue.__file__).parent
    layers = package / "layers"  # a link to the repository's folder, or a folder of an installed wheel
    own = (file for file in package.rglob("*.py") if layers not in file.parents)
    found = {f"fdbqueue/{file.relative_to(package)}": file for file in own}
    return found | {f"layers/{file.relative_to(layers)}": file for file in layers.rglob("*.py")}


@pytest.mark.slow
def test_no_writer_is_missing_from_this_list() -> None:
    numbering = {name for name, file in modules().items() if numbers_items(file)}
    assert numbering - NUMBERS_OTHERS == set(KNOWN)
    assert {writer for writer in KNOWN.values() if writer} <= set(WRITERS)
