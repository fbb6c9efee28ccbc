"""A job id that is used again: the same rows are known as such, and other rows are refused before one is enqueued."""

from __future__ import annotations

import secrets
from random import Random
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import structs

from fdbqueue.engine import Subspace
from fdbqueue.errors import JobError
from fdbqueue.layers.streams.records import decode, encode
from fdbqueue.spark import forget_job, job_report
from fdbqueue.spark.attempts import PartitionReport
from fdbqueue.spark.partition_log import JobRecord
from tests.helpers.faults import FaultyDatabase
from tests.spark.simulated import Job, rows

VALUES = [b"%d" % (number // 2) for number in range(100)]
OTHERS = [*VALUES[1:], b"another"]
"""As many rows as `VALUES`."""

REFUSED = r"Job 'job' is committed, with 100 rows.*Nothing was enqueued.*job id of their own.*forget_job"


def submit(db: Any, space: Subspace, *partitions: list[bytes], said: int | None = None) -> Job:
    """Submit a job with these partitions, as the sink does."""
    job = Job(db, space, partitions=said)
    job.commit(*(job.task(values, number) for number, values in enumerate(partitions)))
    return job


def fail_in_the_middle(db: Any, space: Subspace, *partitions: list[bytes], said: int | None = None) -> Job:
    """Submit a job whose tasks write these rows, and of which one more fails before its first commit."""
    job = Job(db, space, partitions=said)
    for number, values in enumerate(partitions):
        job.run(values, number)
    return job


def test_the_same_rows_are_known_as_committed_in_any_order_and_any_partitions(db: Any, space: Subspace) -> None:
    job = submit(db, space, VALUES[:60], VALUES[60:], said=2)
    first = job_report(db, space, "job")
    assert first is not None
    assert not first.already_committed
    mixed = Random(1).sample(VALUES, k=len(VALUES))
    for parts in ([VALUES], [mixed[:10], mixed[10:20], mixed[20:]], [[], VALUES, []]):
        submit(db, space, *parts, said=len(parts))
        again = job_report(db, space, "job")
        assert again is not None
        assert (again.already_committed, again.rows, again.attempts) == (True, 100, first.attempts)
    assert job.values() == sorted(VALUES)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (OTHERS, "with 100 others, in part or all"),
        (VALUES[1:], "with 99"),
        ([*VALUES, VALUES[0]], "with 101"),
        ([*VALUES[1:], VALUES[2]], "with 100 others"),
        ([], "with 0"),
    ],
    ids=["one replaced", "one less", "one doubled", "one doubled for another", "none"],
)
def test_other_rows_of_a_committed_job_are_refused(db: Any, space: Subspace, others: list[bytes], told: str) -> None:
    job = submit(db, space, VALUES)
    before = job_report(db, space, "job")
    with pytest.raises(JobError, match=f"{REFUSED}") as refused:
        submit(db, space, others)
    assert told in str(refused.value)
    assert job_report(db, space, "job") == before
    assert job.values() == sorted(VALUES)


def test_an_empty_job_is_known_again_and_refuses_rows(db: Any, space: Subspace) -> None:
    submit(db, space)
    job = submit(db, space, [])
    with pytest.raises(JobError, match="is committed, with 0 rows, and was submitted again with 100"):
        submit(db, space, VALUES)
    assert job.values() == []
    forget_job(db, space, "job")
    assert submit(db, space, VALUES).values() == sorted(VALUES)


def test_a_record_of_an_earlier_version_is_compared_by_the_number_of_its_rows(db: Any, space: Subspace) -> None:
    job = submit(db, space, VALUES)
    record = decode(JobRecord, bytes(db[job.keys.record]), "job")
    assert record.outcome is not None
    db[job.keys.record] = encode(structs.replace(record, outcome=structs.replace(record.outcome, digest=b"")))
    with pytest.raises(JobError, match="with 100 rows, and was submitted again with 99"):
        submit(db, space, VALUES[1:])
    submit(db, space, OTHERS)  # as before: nobody can tell
    report = job_report(db, space, "job")
    assert report is not None
    assert report.already_committed
    assert job.values() == sorted(VALUES)


@pytest.mark.engines("memory", "cluster")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_with_an_unknown_commit_is_not_committed_already(db: Any, space: Subspace, when: Any) -> None:
    job = Job(db, space)
    report = job.run(VALUES)
    job.db = FaultyDatabase.failing_at(db, {0}, (when, 1021))
    assert not job.commit(report).already_committed


def test_rows_that_a_failed_job_has_yet_to_write_wait_until_all_were_met(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, VALUES[:30], [])
    job = Job(db, space)
    reports = [job.task(VALUES[:50], 0), job.task(VALUES[50:], 1)]
    assert job.values() == sorted(VALUES[:30])
    done = job.commit(*reports)
    assert (done.rows, done.skipped, done.attempts, done.already_committed) == (100, 30, 4, False)
    assert job.values() == sorted(VALUES)
    assert job.queue.check(db).ok
    span = job.queue.layout.jobs.range()
    assert [row.key for row in db.get_range(span.start, span.stop)] == [job.keys.record]


def test_other_rows_of_a_failed_job_are_refused_before_one_is_enqueued(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, VALUES[:30], [], said=2)
    others = Job(db, space, partitions=2)
    others.task(OTHERS, 1)  # a partition of which nothing is in yet
    with pytest.raises(JobError, match=r"30 rows in the queue.*not among.*checkpoint\(\).*new job id"):
        others.task([b"other"] * 100, 0)
    assert others.values() == sorted(VALUES[:30])
    assert submit(db, space, VALUES[:50], VALUES[50:], said=2).values() == sorted(VALUES)


def test_a_failed_job_in_fewer_partitions_is_refused_before_one_row_is_enqueued(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, [], VALUES[:30])
    with pytest.raises(JobError, match=r"in 1 partitions, and its partitions \[1\] have rows.*Nothing new was written"):
        submit(db, space, VALUES)
    assert submit(db, space, [], VALUES).values() == sorted(VALUES)


def test_a_job_without_rows_starts_as_a_new_one(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, [])
    job = Job(db, space)
    job.task(VALUES)
    assert job.values() == sorted(VALUES)


def test_a_submission_that_ends_while_it_releases_its_rows_leaves_the_rest_to_the_next(
    db: Any, space: Subspace
) -> None:
    fail_in_the_middle(db, space, VALUES[:10], VALUES[10:20])
    parts = [VALUES[:10] + VALUES[20:60], VALUES[10:20] + VALUES[60:]]
    job = Job(db, space)
    reports = [job.task(values, number) for number, values in enumerate(parts)]
    whole, job.db = job.db, FaultyDatabase.failing_at(db, {12}, ("before", 2000))
    with pytest.raises(Exception, match="2000"):
        job.commit(*reports)
    job.db = whole
    assert 20 < len(job.values()) < 100
    assert submit(db, space, *parts).values() == sorted(VALUES)


def test_a_concurrent_second_submission_finds_the_rows_of_the_first(db: Any, space: Subspace) -> None:
    first = Job(db, space)
    begun = first.attempt()
    begun.add(rows(VALUES[:50]))
    second = Job(db, space)
    late = second.task(VALUES)
    begun.add(rows(VALUES[50:]))
    assert not first.commit(begun.finish()).already_committed
    assert second.commit(late).already_committed
    assert first.values() == sorted(VALUES)


def test_of_two_submissions_at_once_with_other_rows_the_second_is_refused(db: Any, space: Subspace) -> None:
    first = Job(db, space)
    begun = first.attempt()
    begun.add(rows(VALUES[:50]))
    second = Job(db, space)
    with pytest.raises(JobError, match="rows in the queue"):
        second.task(OTHERS[60:])
    with_all = second.task([*VALUES, b"one more"])
    begun.add(rows(VALUES[50:]))
    first.commit(begun.finish())
    with pytest.raises(JobError, match="was submitted again with 101"):
        second.commit(with_all)
    assert first.values() == sorted(VALUES)


def test_a_task_of_a_submission_ends_well_when_another_commits_the_job(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, VALUES[:30])
    first, second = Job(db, space), Job(db, space)
    first.commit(first.task(VALUES))
    report = second.task(VALUES)
    assert report.stopped
    assert second.commit(report).already_committed
    assert first.values() == sorted(VALUES)


def test_forgetting_a_job_removes_all_its_keys(db: Any, space: Subspace) -> None:
    fail_in_the_middle(db, space, VALUES[:30])
    job = Job(db, space)
    job.task(VALUES)
    with_chunks = [bytes(200_000), *VALUES]
    Job(db, space).task(with_chunks)
    forget_job(db, space, "job")
    span = job.queue.layout.jobs.range()
    assert list(db.get_range(span.start, span.stop)) == []


FEW = st.lists(st.sampled_from([b"a", b"b", b"c", *(b"%d" % n for n in range(12))]), max_size=20)
CHANCES = st.integers(0, 2**64).map(Random)


def cut(chance: Random, values: list[bytes], partitions: int) -> list[list[bytes]]:
    """Partition values by their contents, as a submission does each time, with an order of its own."""
    mixed = chance.sample(values, k=len(values))
    return [[value for value in mixed if sum(value) % partitions == number] for number in range(partitions)]


@given(chance=CHANCES, values=FEW, others=FEW, partitions=st.integers(1, 3), same=st.booleans())
def test_other_rows_change_nothing_and_a_jobs_own_rows_complete_it(
    db: Any, space: Subspace, chance: Random, values: list[bytes], others: list[bytes], partitions: int, same: bool
) -> None:
    space = space[secrets.token_hex(4)]
    job = Job(db, space)
    for number, part in enumerate(cut(chance, values, partitions)):
        if chance.random() < 0.7:
            job.run(part[: chance.randint(0, len(part))], number, batch_rows=chance.randint(1, 5))
    before = job.values()
    other = [*before, *others] if same else others

    again = Job(db, space)
    reports: list[PartitionReport] = []
    try:
        for number, part in enumerate(cut(chance, other, partitions)):
            reports.append(again.task(part, number))
        again.commit(*reports)
    except JobError:
        event("refused")
        assert again.values() == before
    else:
        event("completed by other rows that have all of the first ones among them" if before else "begun anew")
        values = other

    last = submit(db, space, *cut(chance, values, partitions))
    assert last.values() == sorted(values)
    report = job_report(db, space, "job")
    assert report is not None
    assert (report.committed, report.rows) == (True, len(values))
    if sorted(values) != sorted(other):
        with pytest.raises(JobError):
            submit(db, space, *cut(chance, other, partitions))
        assert last.values() == sorted(values)
    assert last.queue.check(db).ok
