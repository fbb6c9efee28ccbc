"""No key that the library writes is foreign, whatever calls are made of it, in any order."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

import fdbqueue
from fdbqueue import FdbQueueError, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import is_within
from fdbqueue.layers import Sessions
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from fdbqueue.layers.subscriptions.records import DISPATCHER
from fdbqueue.spark.partition_log import JobKeys
from fdbqueue.spark.sink_batches import SinkKeys
from fdbqueue.stored.layout import CATALOGUE, is_own
from tests.helpers.nightly import at_night
from tests.helpers.verbs import Scene
from tests.layers.together.test_once_in_transactions import CALLS

CALLS_AT_ONCE = 40


@pytest.mark.parametrize("seed", [*range(4), *at_night(*range(100, 150))])
def test_no_call_of_any_layer_writes_a_foreign_key(db: Any, space: Subspace, seed: int) -> None:
    dice = random.Random(seed)
    scene = Scene(db, space)
    for call in [CALLS[name](scene) for name in dice.sample(sorted(CALLS), CALLS_AT_ONCE)]:
        with suppress(FdbQueueError):  # another call has taken the item
            fdbqueue.transactional(lambda tr, call=call: call(tr))(db)
    queues = [row.key[len(CATALOGUE) :] for row in db.get_range_startswith(CATALOGUE)]
    for prefix in (prefix for prefix in queues if is_within(prefix, space.key())):
        report = fdbqueue.check(db, Queue(Subspace(rawPrefix=prefix)), remove_foreign=True)
        assert (report.foreign, report.removed) == ((), 0)


def test_keys_that_few_programs_write_are_own(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    layout, position = queue.layout, Position(7, b"r\x00", rank=3)
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session=("a", 7, None, 1.5))
    job, sink = JobKeys(layout, "load"), SinkKeys(layout, "s")
    logs = sink.logs("query", 3)
    for name in (7, None, ("a", 1.5), b"x"):
        TokenBucket(queue, name, count=1).take(db)
    keys = [
        *(job.record, job.owner(0), job.count(1), job.log_entry(2, 300), job.held(b"s", b"t", "rows", 0, 1)),
        *(sink.record, sink.part("query", 3, b"t", 0, 1), logs.owner(0), logs.count(1), logs.log_entry(2, 300)),
        *(
            layout.pointers.pack((DISPATCHER,)),
            layout.chunk_key(position, 0),
            layout.blob_key(b"id", 3),
            layout.type_key,
            layout.subscribed_key,
        ),
        *(row.key for row in db.get_range_startswith(layout.prefix)),
    ]
    foreign = [key for key in keys if not is_own(key[len(layout.prefix) :])]
    assert len(keys) > 20
    assert foreign == []
