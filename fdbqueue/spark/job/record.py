"""A job's record: the job's header, compared before its first row, and its outcome.

While the job runs, every transaction that writes its rows reads the record. It stops if the job is committed or the
record is gone. A late attempt would otherwise find no log, and write all rows again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fdbqueue.errors import JobError


class JobHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that must be the same at every submission of the job."""

    delivery: str
    partitions: int | None
    """How many partitions the rows are in; None: unknown."""
    codec: str
    value_column: str | None
    queue_column: str | None
    headers_column: str | None
    columns: tuple[tuple[str, str], ...]
    """The columns that are read, each with its Spark type."""
    smart: str | None = None
    """Names the function that makes the rows' smart queues. Records of earlier versions do not have it."""
    # Records of earlier versions do not have these either.
    priority_column: str | None = None
    levels: int | None = None
    delay_column: str | None = None
    ttl_column: str | None = None
    session_column: str | None = None
    sessions: str | None = None

    def expect(self, job_id: str, other: JobHeader) -> None:
        """Refuse a submission of the job as `other`, if the headers differ.

        Raises:
            JobError: they differ; the message names the difference.
        """
        differences = [
            f"{name.replace('_', ' ')} was {_shown(getattr(self, name))} and is now {_shown(getattr(other, name))}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        if differences:
            raise JobError(
                f"Job {job_id!r} was submitted before, and differs now: {'; '.join(differences)}. Submit it as it"
                " was, or give this one a job id of its own."
            )


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a committed job."""

    committed_us: int
    partitions: int
    rows: int
    skipped: int
    attempts: int
    size_bytes: int
    # Records of earlier versions do not have these.
    transactions: int = 0
    conflicts: int = 0
    retries: int = 0
    digest: bytes = b""
    """The digest of all rows, in any order (`digests.Met`); empty: unknown."""
    already_committed: bool = False


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value under the job's key."""

    header: JobHeader
    started_us: int
    outcome: JobOutcome | None = None
    """None until the job is committed."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The report of a job, final or so far."""

    job_id: str
    committed: bool
    """Whether the job is committed. Then all its rows are in, and another submission writes nothing."""
    delivery: str
    """``exactlyOnce`` or ``atLeastOnce``."""
    partitions: int | None
    """Partitions of the input; None if not known yet."""
    rows: int
    """Rows that this job put into the queue."""
    skipped: int
    """Of these, the rows that the last attempt of their partition found in already; 0 until the job is committed."""
    attempts: int
    """Attempts at all partitions in all runs. Without failures it equals the number of partitions."""
    size_bytes: int
    """Bytes of the rows' encoded values; 0 until the job is committed."""
    seconds: float
    """The time from the first submission to the commit, by the drivers' clocks; 0 until the job is committed."""
    transactions: int
    """Transactions that wrote its rows, in all attempts, including killed ones: each counts itself. With
    ``atLeastOnce``, only those of the attempts that finished."""
    conflicts: int
    """Commits that failed with 1020, in the attempts that finished. The conflicts of failed and killed attempts are
    unknown. 0 until the job is committed."""
    retries: int
    """How many times rows were written again, after these and other failed commits. It counts like `conflicts`, and
    includes them."""
    already_committed: bool = False
    """Whether the job was committed before its last submission. That submission had the same rows and wrote none."""


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, tuple):
        return "(" + ", ".join(" ".join(column) for column in value) + ")"
    return str(value)
