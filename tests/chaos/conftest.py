"""Scenes for the tests of the oracle."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import Subspace
from tests.chaos.kinds import Kind
from tests.chaos.scene import Scene


@pytest.fixture
def scene(space: Subspace) -> Any:
    with fdbqueue.open("memory:") as db:
        yield Scene(db, space, Kind.plain)


@pytest.fixture
def other(space: Subspace) -> Any:
    """Make a scene of another kind."""
    with fdbqueue.open("memory:") as db:
        yield lambda kind: Scene(db, space, kind)
