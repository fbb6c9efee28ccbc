"""What tests of layers have beside what every test has."""

from __future__ import annotations

import pytest

from fdbqueue.engine import Subspace
from layers.smart import SmartQueue
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
