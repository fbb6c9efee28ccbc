"""One room reads the figures of a queue, and all views show what it has read (docs/adr/0175)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions
from fdbqueue.layers.sessions.session.records import Keys
from fdbqueue.observe.troubles import listed
from fdbqueue.reads.queue_rows import PagePart, add_to_page, page_parts
from fdbqueue.web.sampling import Sampler
from tests.helpers.counted import Counted
from tests.helpers.troubles import PLANTS, plant

ROOT = Path(fdbqueue.__file__).parents[1]
READERS = {"read_counts", "read_stats", "read_own_stats", "read_level_counts", "read_session_stats", "stats_of"}
"""What reads counters, counters of levels, and totals of sessions, or makes numbers of them."""
ROOM = {
    "fdbqueue/stored/counters.py",
    "fdbqueue/reads/queue_rows.py",
    "fdbqueue/observe/reading.py",
}
OWN = {
    "fdbqueue/verbs/administered.py": "Queue.stats",
    "layers/blobs/blobs.py": "Blobs.stats",
    "layers/priority/_priority.py": "PriorityQueue.stats",
    "layers/sessions/reading/listing.py": "Sessions.stats and Sessions.list, and the section of sessions, for the room",
}
"""Verbs of layers that return the numbers of their own keys."""
DECIDES = {
    "fdbqueue/cli/items.py": "whether to ask before a clear",
    "fdbqueue/moves/admission.py": "whether an item fits",
    "fdbqueue/reads/check.py": "compares counters with items",
    "fdbqueue/spark/looks.py": "how many partitions read a queue",
    "fdbqueue/transfer/copying.py": "whether a target is empty",
    "fdbqueue/verbs/renaming.py": "whether all items have moved",
    "layers/blobs/blobs.py": "compares counters with blobs",
    "layers/leases/reports.py": "compares counters with outcomes",
    "layers/sessions/line/tracking.py": "whether a session is idle",
    "layers/sessions/reading/check.py": "compares totals with sessions",
    "layers/smart/capacity.py": "whether an item fits",
}
"""What reads counters to decide something, and shows none."""


AGES = {
    "fdbqueue/observe/figures.py": "makes the figures of what the room has read",
    "fdbqueue/observe/judging.py": "judges them",
    "fdbqueue/reads/inspecting.py": "the ages of a sample",
    "layers/leases/reports.py": "Leases.stats",
}
"""What computes the age of a stored item."""
REMEMBERS = {
    "fdbqueue/cli/looking.py": "top",
    "fdbqueue/observe/figures.py": "metrics",
    "fdbqueue/reads/inspecting.py": "Queue.inspect",
    "fdbqueue/web/sampling.py": "the page",
    "layers/leases/leases.py": "Leases.stats",
}
"""What keeps looks for rates, depths and ages, all by the classes of `fdbqueue/reads/remembering.py`."""


class EachKey(set[bytes]):
    """Keys that were read, with those that were read again."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[bytes] = []

    def add(self, key: bytes) -> None:
        self.all.append(key)
        super().add(key)


def names_in(path: Path) -> set[str]:
    text = path.read_text()
    if not any(name in text for name in READERS):
        return set()
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def test_no_view_reads_counters_beside_the_one_reader() -> None:
    files = [path for folder in ("fdbqueue", "layers") for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if not any(parent.is_symlink() for parent in path.parents) and READERS & names_in(path)
    }
    assert found - ROOM == OWN.keys() | DECIDES.keys()


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in (path for folder in ("fdbqueue", "layers") for path in (ROOT / folder).rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.parents):
            text = path.read_text()
            if "enqueued_at" in text or "Ages(" in text or "History(" in text:
                yield str(path.relative_to(ROOT)), ast.parse(text)


def test_ages_are_computed_and_looks_are_remembered_by_the_room_only() -> None:
    ages, remembers = set(), set()
    for name, tree in sources():
        for node in ast.walk(tree):
            text = ast.unparse(node) if isinstance(node, ast.BinOp | ast.Call) else ""
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and "enqueued_at" in text:
                ages.add(name)
            if isinstance(node, ast.Call) and text.startswith(("Ages(", "History(")):
                remembers.add(name)
    assert ages == AGES.keys()
    assert remembers == REMEMBERS.keys()


@pytest.fixture
def own() -> Iterator[Any]:
    """A database without the queues of other tests."""
    with fdbqueue.open("memory:") as db:
        yield db


@pytest.fixture
def planted(own: Any) -> Any:
    """A database with a queue for each trouble, and some that can't be read."""
    for kind in PLANTS:
        plant(own, Queue((kind, "q"), codec="json"), [kind])
    damaged, uncounted = Queue("damaged", codec="json"), Queue("uncounted", codec="json")
    Leases(damaged).enqueue_many(own, range(3))
    own[damaged.layout.count_key("expired")] = bytes(9)
    Sessions(uncounted).enqueue(own, 1, session="Ann")
    [total] = [row.key for row in own[Keys(uncounted.layout).summed.range()]]
    own[total] = bytes(9)
    return own


def test_a_list_with_troubles_has_the_figures_of_the_plain_list(planted: Any) -> None:
    found = list(listed(planted))
    plain = list(fdbqueue.queues(planted))
    assert [one.info for one in found] == plain
    assert [one.info.added for one in found] == [info.added for info in plain]
    problems = {one.info.text: one.info.problem for one in found}
    assert "9 bytes" in problems["damaged"]
    assert problems["uncounted"]


def test_a_layer_of_ones_own_is_in_both_lists(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def section(tr: Any, layout: Any) -> None:
        return None

    async def figures(tr: Any, layout: Any) -> int:
        return 7

    monkeypatch.setattr(page_parts, "parts", dict(page_parts.parts))
    add_to_page("own", PagePart(section, figures))
    Queue("orders", codec="str").enqueue(own, "a")
    [one] = listed(own)
    assert one.info.added == fdbqueue.queues(own)[0].added == {"sessions": None, "own": 7}


def test_each_view_of_many_queues_reads_a_queue_once(own: Any) -> None:
    for number in range(20):
        Leases(Queue(("shop", number), codec="str")).enqueue_many(own, ["a", "b"])
    counted = Counted(own)
    fdbqueue.troubles(counted)
    troubles = counted.did["reads"]
    views: list[Callable[[Any], object]] = [lambda db: list(listed(db)), lambda db: Sampler(db).sample()]
    for view in views:
        counted = Counted(own)
        view(counted)
        # Beside them it looks for names within each other, by a few reads for 100 queues.
        assert troubles <= counted.did["reads"] <= troubles + 20


def test_a_page_reads_the_counters_once(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, ["a", "b"])
    counted = Counted(db)
    counted.read = keys = EachKey()
    queue.inspect(counted)
    assert keys.all.count(queue.layout.counts.range().start) == 1
