"""Trimming old notes of arrivals never takes away what the same transaction notes."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from layers.pointing import LAG_SECONDS, Habit, Pointing
from layers.subscriptions import Subscriptions


@pytest.mark.parametrize(("came_back", "trims"), [([], True), ([b"a packed position"], False)])
def test_a_transaction_in_which_something_came_back_does_not_trim(
    db: Any, space: Subspace, came_back: list[bytes], trims: bool
) -> None:
    queue = Queue(space)
    subscriptions = Subscriptions(queue)
    subscriptions.subscribe(db, "blue")
    tr = db.create_transaction()
    later_us = subscriptions.leases.now_us() + int(2 * LAG_SECONDS * 1e6)
    head = Pointing(queue.layout, "blue", now_us=later_us, habit=Habit())
    run(head.prepare(tr, alone=True))
    head.came_back(came_back)

    run(head._trim(tr))

    assert tr.get(queue.layout.trimmed_key).wait().present() == trims
