"""Fixtures for tests of layers, and on which engines those run by day."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.results import Results
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.subscriptions import Subscriptions
from tests.helpers.clock import Clock
from tests.helpers.smart import smart_queue

HERE = Path(__file__).parent
NIGHTLY = bool(os.environ.get("FDBQUEUE_NIGHTLY"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what runs on `memory` too to the night on `file`, unless the caller names the engine.

    Both are the embedded engine, and tests/conformance and tests/queue run on both: a layer sees no difference. What
    needs a folder, such as processes, names its engines, and runs there by day.
    """
    again = [item for item in items if _runs_on_memory_too(item)]
    if NIGHTLY:
        for item in again:
            item.add_marker(pytest.mark.nightly)
    elif again and "file" not in config.option.keyword and not any("[" in name for name in config.args):
        config.hook.pytest_deselected(items=again)
        left_out = set(again)
        items[:] = [item for item in items if item not in left_out]


def _runs_on_memory_too(item: pytest.Item) -> bool:
    """Tell whether a test of layers is the run on `file` of one that also runs on `memory`."""
    if not item.path.is_relative_to(HERE) or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    engines = item.get_closest_marker("engines")
    return item.callspec.params.get("engine") == "file" and (engines is None or "memory" in engines.args)


@pytest.fixture
def clock() -> Clock:
    """The clock of what is tested."""
    return Clock()


@pytest.fixture
def smart(space: Subspace) -> SmartQueue:
    """A queue of the messages that tests of smart checks share."""
    return smart_queue(space)


@pytest.fixture
def queue(space: Subspace) -> Queue:
    """An empty queue of texts."""
    return Queue(space, codec="str")


@pytest.fixture
def leases(queue: Queue, clock: Clock) -> Leases:
    """Its items' leases, by the clock."""
    return Leases(queue, clock=clock)


@pytest.fixture
def subscriptions(leases: Leases) -> Subscriptions:
    """Subscriptions to the queue of the test's leases."""
    return Subscriptions(leases)


@pytest.fixture
def results(leases: Leases) -> Results[Any]:
    """Results of the items of the test's leases."""
    return Results(leases, keep=60)
