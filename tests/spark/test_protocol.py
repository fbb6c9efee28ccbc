"""The protocol of a bulk job, without Spark: what is in stays in once, whoever tries again, in whatever order."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.errors import JobError, OrderError
from fdbqueue.layers.priority import EarliestDeadline
from fdbqueue.spark import forget_job, job_report, jobs
from fdbqueue.spark.loads import begin_job
from fdbqueue.spark.partition_log import JobKeys
from fdbqueue.spark.waiting_rows import SparkRows, digests_of
from fdbqueue.stored.items import INLINE_BYTES, envelope
from fdbqueue.stored.positions import pack
from tests.helpers.faults import Failed, Fault, FaultyDatabase, FaultyTransaction
from tests.spark.simulated import Actor, Job, header, in_pieces, rows

VALUES = [b"%d" % (number // 2) for number in range(100)]
"""Each twice: equal rows count."""


@pytest.fixture
def job(db: Any, space: Subspace) -> Job:
    return Job(db, space)


def test_an_undisturbed_attempt_writes_all_rows_once(job: Job) -> None:
    report = job.run(VALUES)
    assert (report.rows, report.skipped, report.retries) == (100, 0, 0)
    assert job.commit(report).rows == 100
    assert job.values() == sorted(VALUES)
    assert job.queue.check(job.db).ok


def test_rows_of_one_attempt_keep_their_order(job: Job) -> None:
    job.run(VALUES)
    assert [item.value for item in job.queue.browse(job.db)] == VALUES


def test_a_retry_in_any_order_skips_enqueued_rows(job: Job) -> None:
    first = job.attempt()
    first.add(rows(VALUES[:50]))
    shuffled = random.Random(1).sample(VALUES, k=len(VALUES))
    report = job.run(shuffled)
    assert report.skipped > 0
    assert job.commit(report).attempts == 2
    assert job.values() == sorted(VALUES)


def test_a_retry_learns_of_more_transactions_than_it_reads_at_once(job: Job) -> None:
    values = [b"%d" % number for number in range(80)]
    job.run(values, batch_rows=2)
    assert job.run(values, batch_rows=2).skipped == 80
    assert job.values() == sorted(values)


def test_rows_come_behind_what_was_there_and_in_their_order(job: Job) -> None:
    for number in range(30):
        job.queue.enqueue(job.db, b"before %d" % number)
    job.run(VALUES)
    assert [item.value for item in job.queue.browse(job.db)] == [b"before %d" % n for n in range(30)] + VALUES


def test_rows_go_to_the_queues_that_they_name_and_large_ones_with_their_chunks(job: Job) -> None:
    name = f"fdbqueue tests {secrets.token_hex(8)}"
    named = Queue(name)
    values = [b"%d" % number for number in range(50)]
    values[31] = bytes(range(256)) * 1_000
    large = [value if len(value) > INLINE_BYTES else None for value in values]
    queues = [name if number % 3 else None for number in range(50)]
    attempt = job.attempt()
    attempt.add(SparkRows([envelope(value) for value in values], digests_of(values), queues, large))
    attempt.finish()
    try:
        for queue, own in (named, name), (job.queue, None):
            found = [item.value for item in queue.browse(job.db)]
            assert found == [value for value, goes_to in zip(values, queues, strict=True) if goes_to == own]
            assert queue.check(job.db).ok
    finally:
        named.clear(job.db)


def test_rows_are_noted_as_arrivals_for_subscriptions(job: Job) -> None:
    job.db[job.queue.layout.subscribed_key] = b""
    job.run(VALUES[:25])
    positions = [pack(item.position) for item in job.queue.browse(job.db)]
    begin, end = job.queue.layout.arrivals_since(0)
    spans = [job.queue.layout.arrival_of(row.key) for row in job.db.get_range(begin, end)]
    assert spans == [(positions[0], positions[9]), (positions[10], positions[19]), (positions[20], positions[24])]


def test_new_rows_wait_until_a_retry_has_met_all_earlier_ones(job: Job) -> None:
    job.run(VALUES[:10])
    retry = job.attempt()
    retry.add(rows(VALUES[10:]))
    assert job.values() == sorted(VALUES[:10])
    retry.add(rows(VALUES[:10]))
    assert retry.finish().skipped == 10
    assert job.values() == sorted(VALUES)


def test_rows_held_back_beyond_the_memory_limit_wait_in_a_file(job: Job) -> None:
    job.run(VALUES[:10])
    retry = job.attempt(memory_bytes=0)
    for piece in in_pieces(VALUES[10:], 7):
        retry.add(rows(piece))
    retry.add(rows(VALUES[:10]))
    retry.finish()
    assert job.values() == sorted(VALUES)


def test_one_row_more_of_the_same_is_written(job: Job) -> None:
    job.run([b"same", b"same"])
    report = job.run([b"same", b"same", b"same"])
    assert (report.rows, report.skipped) == (3, 2)
    assert job.values() == [b"same"] * 3


def test_one_row_less_of_the_same_is_refused(job: Job) -> None:
    job.run([b"same", b"same"])
    with pytest.raises(JobError, match=r"1 rows in the queue.*checkpoint\(\)"):
        job.run([b"same"])


def test_rows_that_differ_between_attempts_are_refused_and_not_written(job: Job) -> None:
    job.run(VALUES[:50])
    with pytest.raises(JobError, match="checkpoint"):
        job.run([b"other %d" % number for number in range(100)])
    assert job.values() == sorted(VALUES[:50])


def test_a_queue_with_an_order_refuses_rows_which_have_no_rank(job: Job) -> None:
    ordered = Queue(job.queue.layout.space, codec="bytes", order=EarliestDeadline())
    ordered.enqueue(job.db, b"first", headers={"deadline": 1})
    with pytest.raises(OrderError, match="'earliest deadline'"):
        job.run(VALUES[:10])
    assert job.values() == [b"first"]


def test_an_empty_retry_of_a_partition_with_rows_is_refused(job: Job) -> None:
    job.run([b"row"])
    with pytest.raises(JobError):
        job.run([])


def test_partitions_know_nothing_of_each_other(job: Job) -> None:
    reports = [job.run(VALUES, partition) for partition in range(3)]
    assert job.commit(*reports).rows == 300
    assert job.values() == sorted(VALUES * 3)


def test_rows_may_name_the_queue_that_rows_without_a_name_go_to(db: Any) -> None:
    name, other = (f"fdbqueue test {secrets.token_hex(8)}" for _ in range(2))
    job = Job(db, name)
    attempt = job.attempt(batch_rows=4)
    attempt.add(rows(VALUES[:9], queues=[name, None, other] * 3))
    job.commit(attempt.finish())
    assert [item.value for item in job.queue.browse(db)] == [b"0", b"0", b"1", b"2", b"3", b"3"]
    assert [item.value for item in Queue(other).browse(db)] == [b"1", b"2", b"4"]
    for queue in job.queue, Queue(other):
        assert queue.check(db).ok
        queue.clear(db)


def test_two_attempts_at_once_take_turns_and_both_end_well(job: Job) -> None:
    first, second = job.attempt(), job.attempt()
    for piece, other in zip(in_pieces(VALUES, 20), in_pieces(reversed(VALUES), 20), strict=True):
        first.add(rows(piece))
        second.add(rows(other))
    reports = [second.finish(), first.finish()]
    assert sum(report.rows - report.skipped for report in reports) == 100
    assert job.commit(reports[0]).rows == 100
    assert job.values() == sorted(VALUES)


def test_a_transaction_under_way_fails_when_another_attempt_claims_the_partition(job: Job) -> None:
    def play(at: Any) -> Any:
        attempt = job.attempt(at=at)
        attempt.add(rows(VALUES[:10]))
        return attempt.finish()

    slow = Actor(play)
    assert slow.until("marked") == "marked"
    assert job.run(VALUES[:10]).skipped == 0
    report = slow.finish()
    assert (report.skipped, report.retries) == (10, 1)
    assert job.commit(report).attempts == 2
    assert job.values() == sorted(VALUES[:10])


def test_a_late_attempt_stops_when_the_job_is_committed(job: Job) -> None:
    late = job.attempt()
    late.add(rows(VALUES[:30]))
    job.commit(job.run(VALUES))
    late.add(rows(VALUES[30:]))
    assert late.finish().stopped
    assert job.values() == sorted(VALUES)


def test_a_late_attempt_that_has_not_begun_stops_too(job: Job) -> None:
    job.commit(job.run(VALUES))
    assert job.run(VALUES).stopped
    assert job.values() == sorted(VALUES)


def test_a_late_transaction_under_way_fails_when_the_job_is_committed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also before the log is removed, which would make it fail anyhow.
    monkeypatch.setattr("fdbqueue.spark.loads.remove_log", lambda db, keys: None)

    def play(at: Any) -> Any:
        return job.run(VALUES, at=at)

    report = job.run(VALUES[:90])
    late = Actor(play)
    assert late.until("marked") == "marked"
    job.commit(report)
    assert late.finish().stopped
    assert job.values() == sorted(VALUES[:90])


def test_an_attempt_stops_with_an_error_when_its_job_is_forgotten(job: Job) -> None:
    attempt = job.attempt()
    attempt.add(rows(VALUES[:30]))
    assert forget_job(job.db, job.queue.layout.space, "job")
    with pytest.raises(JobError, match="gone"):
        attempt.add(rows(VALUES[30:]))


def test_an_attempt_of_a_restarted_job_does_not_write_into_it(job: Job) -> None:
    attempt = job.attempt()
    attempt.add(rows(VALUES[:10]))
    forget_job(job.db, job.queue.layout.space, "job")
    begin_job(job.db, job.keys, job.header, clock=lambda: 7)
    with pytest.raises(JobError, match="started again"):
        attempt.add(rows(VALUES[10:]))


def test_a_cleared_queue_forgets_its_jobs(job: Job) -> None:
    job.commit(job.run(VALUES))
    job.queue.clear(job.db)
    assert job_report(job.db, job.queue.layout.space, "job") is None


def test_a_job_is_compared_with_its_header_before_its_first_row(db: Any, space: Subspace) -> None:
    job = Job(db, space, partitions=4)
    assert begin_job(db, job.keys, header(4))[0] == job.record
    with pytest.raises(JobError, match="partitions was 4 and is now 5"):
        begin_job(db, job.keys, header(5))
    with pytest.raises(JobError, match=r"columns was \(value binary\) and is now \(value string\).*id of its own"):
        begin_job(db, job.keys, header(4, columns=(("value", "string"),)))
    with pytest.raises(JobError, match="smart was not given and is now shop:prices"):
        begin_job(db, job.keys, header(4, smart="shop:prices"))


@pytest.mark.parametrize("values", [VALUES, []])
def test_a_job_that_has_all_its_rows_in_fewer_partitions_than_were_said_is_committed(
    db: Any, space: Subspace, values: list[bytes]
) -> None:
    job = Job(db, space, partitions=2)
    report = job.commit(job.run(values))
    assert (report.committed, report.partitions, report.rows) == (True, 1, len(values))
    assert begin_job(db, job.keys, header(2))[1].outcome is not None


def test_a_commit_notices_rows_of_a_run_with_more_partitions(job: Job) -> None:
    job.run(VALUES, 3)
    with pytest.raises(JobError, match=r"\[3\] have rows of an earlier run"):
        job.commit(job.run(VALUES, 0))


def test_a_commit_notices_that_a_later_attempt_had_more_rows(job: Job) -> None:
    report = job.run(VALUES)
    job.run([*VALUES, b"one more"])
    with pytest.raises(JobError, match="100 rows, but 101 are in"):
        job.commit(report)


def test_committing_twice_gives_the_same_report(job: Job) -> None:
    report = job.run(VALUES)
    first = job.commit(report)
    assert job.commit(report) == replace(first, already_committed=True)


def test_a_committed_job_leaves_its_record_only(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.spark.loads.ENTRIES_A_REMOVAL", 3)
    job.commit(job.run(VALUES, 0), job.run(VALUES, 1))
    span = job.queue.layout.jobs.range()
    assert [row.key for row in job.db.get_range(span.start, span.stop)] == [job.keys.record]


def test_an_unfinished_job_reports_how_far_it_is(job: Job) -> None:
    job.run(VALUES, 0)
    job.run(VALUES[:30], 1)
    job.run(VALUES[:30], 1)
    report = job_report(job.db, job.queue.layout.space, "job")
    assert report is not None
    assert (report.committed, report.rows, report.attempts, report.transactions) == (False, 130, 3, 13)


def test_transactions_of_all_attempts_are_counted_also_of_unreported_ones(job: Job) -> None:
    job.run(VALUES[:30])
    before = job_report(job.db, job.queue.layout.space, "job")
    assert before is not None
    report = job.run(VALUES)
    done = job.commit(report)
    assert done.transactions == before.transactions + report.transactions
    assert before.transactions == 3
    assert report.skipped == before.rows
    assert done == job_report(job.db, job.queue.layout.space, "job")


@pytest.mark.engines("memory", "cluster")
def test_a_transaction_whose_outcome_is_unknown_counts_once_if_it_took_effect(db: Any, space: Subspace) -> None:
    faults: list[Fault] = [("before", 1021), ("after", 1021)]
    for number, fault in enumerate(faults):
        job = Job(db, space[number])
        report = job.run(VALUES[:60], db=FaultyDatabase.failing_at(db, {2}, fault))
        done = job.commit(report)
        assert (done.transactions, done.conflicts) == (6, 0)
        assert done.retries == report.retries > 0


def test_conflicts_of_attempts_that_finished_are_in_the_report(job: Job) -> None:
    undisturbed = job.run(VALUES, 0)
    disturbed = job.run(VALUES, 1, db=FaultyDatabase.failing_at(job.db, {2}, ("before", 1020)))
    done = job.commit(undisturbed, disturbed)
    assert (undisturbed.conflicts, undisturbed.retries) == (0, 0)
    assert done.conflicts == disturbed.conflicts > 0
    assert done.retries == disturbed.retries >= done.conflicts


def test_concurrent_transactions_are_counted_with_their_conflicts(job: Job) -> None:
    report = job.run(VALUES, db=FaultyDatabase.failing_at(job.db, {3, 5}, ("before", 1020)))
    assert (report.conflicts, report.transactions) == (2, 10)
    assert job.commit(report).rows == 100


def test_a_job_begun_by_a_version_that_counted_rows_only_goes_on(job: Job) -> None:
    job.db[job.keys.count(0)] = (0).to_bytes(8, "little")
    before = job_report(job.db, job.queue.layout.space, "job")
    assert before is not None
    assert (before.rows, before.transactions) == (0, 0)
    done = job.commit(job.run(VALUES))
    assert (done.rows, done.transactions) == (100, 10)


def test_a_queue_lists_its_jobs(db: Any, space: Subspace) -> None:
    names = ["a", "a\x00b", "b", "ü"]
    for name in names:
        job = Job(db, space, name)
        job.run(VALUES[:10])
    assert [report.job_id for report in jobs(db, space)] == names


def test_a_job_that_was_never_begun_has_no_report_and_can_not_be_forgotten(db: Any, space: Subspace) -> None:
    assert job_report(db, space, "none") is None
    assert not forget_job(db, space, "none")


def test_forgetting_a_job_with_an_unknown_outcome_reports_that_it_existed(job: Job) -> None:
    assert forget_job(FaultyDatabase.failing_at(job.db, {0}, ("after", 1021)), job.queue.layout.space, "job")
    assert not forget_job(job.db, job.queue.layout.space, "job")


def test_a_job_id_is_neither_empty_nor_endless(job: Job) -> None:
    wrong: Any
    for wrong in (None, 5, b"job"):
        with pytest.raises(TypeError, match="A job id is a str, not"):
            JobKeys(job.queue.layout, wrong)
    for bad in ("", "x" * 1001):
        with pytest.raises(ValueError, match="1 to 1,000 bytes"):
            JobKeys(job.queue.layout, bad)
    with pytest.raises(ValueError, match=r"'ü{40}' has 1,200"):
        JobKeys(job.queue.layout, "ü" * 600)


FAULTS: list[Fault] = [("before", 1020), ("before", 1021), ("after", 1021), ("before", 1007)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[1]} {fault[0]}")
@pytest.mark.engines("memory", "cluster")
def test_a_failed_or_unknown_commit_neither_loses_nor_duplicates_rows(db: Any, space: Subspace, fault: Fault) -> None:
    for number in range(8):
        faulty = FaultyDatabase.failing_at(db, {number}, fault)
        job = Job(db, space[number])
        report = job.run(VALUES[:60], db=faulty)
        assert faulty.faults == 1
        assert job.commit(report).rows == 60
        assert job.values() == sorted(VALUES[:60])


class SmallTransactions(FaultyDatabase):
    """Refuses transactions with more than five rows, as too large or, time after time, as too old."""

    def __init__(self, db: Any, code: int) -> None:
        super().__init__(db, lambda: None)
        self.code = code

    def create_transaction(self) -> FaultyTransaction:
        return SmallTransaction(self._db.create_transaction(), self)


class SmallTransaction(FaultyTransaction):
    def __init__(self, tr: Any, db: SmallTransactions) -> None:
        super().__init__(tr, db)
        self._code = db.code
        self._sets = 0

    def set(self, key: bytes, value: bytes) -> None:
        self._sets += 1
        self._tr.set(key, value)

    def commit(self) -> Any:
        return Failed(self._code) if self._sets > 6 else super().commit()


@pytest.mark.parametrize("code", [2101, 1007])
def test_a_transaction_that_is_too_large_or_too_slow_is_halved(job: Job, code: int) -> None:
    report = job.run(VALUES[:60], db=SmallTransactions(job.db, code))
    assert report.retries > 0
    assert job.values() == sorted(VALUES[:60])


def test_a_single_row_that_is_too_large_fails(job: Job) -> None:
    with pytest.raises(FDBError) as failed:
        job.run(VALUES, db=FaultyDatabase(job.db, lambda: ("before", 2101) if job.values() else None), batch_rows=1)
    assert failed.value.code == 2101


def test_an_error_that_is_not_retryable_is_raised(job: Job) -> None:
    with pytest.raises(FDBError) as failed:
        job.run(VALUES, db=FaultyDatabase.failing_at(job.db, {2}, ("before", 2000)))
    assert failed.value.code == 2000
