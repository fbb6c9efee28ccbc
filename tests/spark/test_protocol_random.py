"""Random jobs: several attempts at a partition at once, in any order, killed and failing anywhere.

What must come out is said in one line each: a job that was committed has put in exactly the rows of the attempt that
its commit went by, and no late attempt adds to them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fdbqueue.engine import Subspace
from fdbqueue.errors import JobError
from fdbqueue.spark.attempts import At, PartitionReport
from tests.helpers.faults import Fault
from tests.spark.simulated import Actor, HastyDatabase, Job, Killed, in_pieces, rows

CHANCES = st.integers(0, 2**64).map(Random)
FEW_VALUES = st.lists(st.sampled_from([b"a", b"b", b"c", b"dd", b"eee", *(b"%d" % n for n in range(30))]), max_size=40)
FAULTS: list[Fault] = [("before", 1020), ("before", 1021), ("after", 1021), ("before", 1007)]

pytestmark = pytest.mark.engines("memory", "cluster")


def attempt_of(job: Job, chance: Random, values: list[bytes], fault_share: float = 0.0) -> Actor:
    """Return an attempt that meets `values` in an order and in pieces of its own."""
    pieces = in_pieces(chance.sample(values, k=len(values)), chance.randint(1, 20))
    batch_rows, memory_bytes = chance.randint(1, 8), chance.choice([0, 300, 100_000])

    def fault() -> Fault | None:
        return chance.choice(FAULTS) if chance.random() < fault_share else None

    def play(at: At) -> PartitionReport:
        attempt = job.attempt(db=HastyDatabase(job.db, fault), batch_rows=batch_rows, memory_bytes=memory_bytes, at=at)
        with closing(attempt):
            for piece in pieces:
                at("input")
                attempt.add(rows(piece))
            return attempt.finish()

    return Actor(play)


def play_on(chance: Random, actors: list[Actor]) -> None:
    """Let the actors go on, one step of any at a time, for a while, and kill some."""
    for _ in range(chance.randint(0, 60 * len(actors))):
        alive = [actor for actor in actors if actor.alive]
        if not alive:
            return
        actor = chance.choice(alive)
        if chance.random() < 0.01:
            actor.kill()
        else:
            actor.step()


@contextmanager
def cast() -> Iterator[list[Actor]]:
    """A list for actors; those that still play at the end are killed."""
    actors: list[Actor] = []
    try:
        yield actors
    finally:
        for actor in actors:
            actor.kill()


@given(chance=CHANCES, values=FEW_VALUES, crowd=st.integers(1, 3), fault_share=st.sampled_from([0.0, 0.2]))
def test_each_row_is_in_once_whatever_happens_to_attempts(
    db: Any, space: Subspace, chance: Random, values: list[bytes], crowd: int, fault_share: float
) -> None:
    job = Job(db, space[secrets.token_hex(4)])
    with cast() as actors:
        actors += [attempt_of(job, chance, values, fault_share) for _ in range(crowd)]
        play_on(chance, actors)
        last = attempt_of(job, chance, values, fault_share)
        actors.append(last)
        play_on(chance, actors)
        report = job.run(values) if isinstance(last.error, Killed) else last.finish()
        event(f"skipped: {report.skipped > 0}, repeated: {report.retries > 0}")
        assert job.commit(report).rows == len(values)
        assert job.values() == sorted(values)
        for actor in actors:
            if actor.alive and actor.finish().stopped:
                event("stopped a late attempt")
        assert job.values() == sorted(values)
        assert job.queue.check(db).ok


@given(chance=CHANCES, values=FEW_VALUES, others=FEW_VALUES)
def test_attempts_with_other_rows_are_never_mixed_in_a_committed_job(
    db: Any, space: Subspace, chance: Random, values: list[bytes], others: list[bytes]
) -> None:
    job = Job(db, space[secrets.token_hex(4)])
    inputs = [values, others, values[: len(values) // 2], values + others]
    with cast() as actors:
        actors += [attempt_of(job, chance, some) for some in inputs]
        play_on(chance, actors)
        for some, actor in chance.sample(list(zip(inputs, actors, strict=True)), k=len(inputs)):
            if isinstance(actor.error, Killed):
                continue
            try:
                job.commit(actor.finish())
            except JobError as error:
                event("not committed" if "not committed" in str(error) else "refused")
                continue
            event("committed")
            assert job.values() == sorted(some)
            return
