"""From a queue through the simulated Spark into a queue: both protocols together, with kills at every step."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from tests.spark import test_sink_model
from tests.spark.simulated_stream import Checkpoint, Killer, Query, dying, stream_options

pytestmark = pytest.mark.slow

HISTORIES = 60


class Piped(Query):
    """A query whose sink is a queue, in any number of partitions."""

    def __init__(self, db: Any, out: Queue[bytes], draw: random.Random, *given: Any) -> None:
        super().__init__(db, *given)
        self._out = out
        self._draw = draw

    def write(self, number: int, rows: list[bytes]) -> None:
        test_sink_model.write(self._db, self._out.layout, number, rows, self._draw.randint(1, 4))


def history(db: Any, space: Subspace, seed: int) -> None:
    draw = random.Random(seed)
    killer = Killer(draw, draw.choice((0.01, 0.05, 0.15)))
    queue, out = Queue(space["in"]), Queue(space["out"])
    checkpoint = Checkpoint()
    values: list[bytes] = []
    for _ in range(draw.randint(2, 8)):
        some = [b"%d" % (len(values) + at) for at in range(draw.randint(0, 9))]
        queue.enqueue_many(db, some)
        values += some
        options = stream_options(
            queue.layout, max_items_per_trigger=draw.randint(1, 9), min_partitions=draw.randint(1, 3)
        )
        with dying():
            Piped(killer.database(db), out, draw, options, checkpoint, killer.at).until_dry(3)
    Piped(db, out, draw, stream_options(queue.layout), checkpoint).until_dry()
    assert [item.value for item in out.browse(db)] == values, f"seed {seed}"
    assert out.check(db).ok
    assert queue.check(db).ok
    assert (queue.stats(db).claimed, queue.stats(db).dequeued) == (0, len(values))


@pytest.mark.engines("memory")
def test_random_histories_move_each_item_once_and_in_order(db: Any, space: Subspace) -> None:
    for seed in range(HISTORIES):
        history(db, space[seed], seed)


@pytest.mark.engines("file", "cluster")
def test_random_histories_do_so_on_disk_and_on_a_cluster(db: Any, space: Subspace) -> None:
    for seed in range(10):
        history(db, space[seed], seed)
