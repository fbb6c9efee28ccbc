"""What the tests of tasks share."""

from __future__ import annotations

import pytest

from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks, constant
from tests.helpers.clock import Clock


@pytest.fixture
def app(space: Subspace, clock: Clock) -> Tasks:
    return Tasks(space, clock=clock, retries=2, backoff=constant(10))
