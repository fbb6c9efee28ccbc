"""Fixtures for tests of layers."""

from __future__ import annotations

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
