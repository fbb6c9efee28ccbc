"""Every engine answers a random program over the queue and its layers as the one in memory does."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine import Subspace
from tests.chaos.same import answered_differently


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("seed", range(8))
def test_every_engine_answers_the_same(db: Any, space: Subspace, seed: int) -> None:
    with fdbqueue.open("memory:") as memory:
        assert answered_differently([memory, db], space, f"{seed}", steps=60) == []
