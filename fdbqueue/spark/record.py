"""A job's record: what the job is, compared before its first row, and what became of it.

While the job runs, every transaction that writes its rows reads the record, and stops when it says that the job is
committed, or when it is gone: a late attempt then finds the marks removed, and would write everything again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fdbqueue.codecs import UNREADABLE
from fdbqueue.errors import FormatError, JobError

FORMAT_VERSION = 1
_FIRST_BYTE = bytes((FORMAT_VERSION << 4,))


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same whenever the job is submitted."""

    delivery: str
    partitions: int | None
    """How many partitions the rows are in; None: unknown, it was not said."""
    codec: str
    value_column: str | None
    queue_column: str | None
    headers_column: str | None
    columns: tuple[tuple[str, str], ...]
    """The columns that are read, each with its Spark type."""
    smart: str | None = None
    """What makes the smart queues that rows go through. Not in records of earlier versions."""

    def expect(self, job_id: str, other: Header) -> None:
        """Refuse the job's being submitted again as `other`, if that is not the same.

        Raises:
            JobError: it differs; the message says in what.
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


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a committed job did."""

    committed_us: int
    partitions: int
    rows: int
    skipped: int
    attempts: int
    size_bytes: int
    # Not in records of earlier versions.
    transactions: int = 0
    conflicts: int = 0
    retries: int = 0
    digest: bytes = b""
    """Of all rows, in any order (`digests.Met`); empty: not known."""
    already_committed: bool = False


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What stands under the job's key."""

    header: Header
    started_us: int
    outcome: Outcome | None = None
    """None until the job is committed."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did, or has done so far."""

    job_id: str
    committed: bool
    """Whether it is done: then all its rows are in, and submitting it again writes nothing."""
    delivery: str
    """``exactlyOnce`` or ``atLeastOnce``."""
    partitions: int | None
    """Partitions of the input; None if that is not known yet."""
    rows: int
    """Rows that are in the queue through this job."""
    skipped: int
    """Of these, how many the last attempt of their partition found in already; 0 until the job is committed."""
    attempts: int
    """Attempts of all partitions in all runs: as many as there are partitions, if nothing went wrong."""
    size_bytes: int
    """Bytes of the rows' encoded values; 0 until the job is committed."""
    seconds: float
    """From the first submission to the commit, by the clocks of the drivers; 0 until the job is committed."""
    transactions: int
    """Transactions that wrote its rows, in all attempts, killed ones too: each counts itself. With ``atLeastOnce``,
    only those of the attempts that finished."""
    conflicts: int
    """Commits that failed with 1020, in the attempts that finished; what an attempt met that failed or was killed is
    not known. 0 until the job is committed."""
    retries: int
    """How often rows were written again, after such and other failed commits; as `conflicts`, which it includes."""
    already_committed: bool = False
    """Whether the job was committed when it was last submitted. That submission had the same rows and wrote none."""


def encode(record: JobRecord) -> bytes:
    """Return the stored bytes of a record: one byte with the format's version, and MessagePack."""
    return _FIRST_BYTE + msgspec.msgpack.encode(record)


def decode(job_id: str, stored: bytes) -> JobRecord:
    """Return the record in stored bytes.

    Raises:
        FormatError: they are none that this version of the library can read.
    """
    version = stored[0] >> 4 if stored else 0
    if version > FORMAT_VERSION:
        raise FormatError(
            f"The record of job {job_id!r} was written in format {version} by a newer version of fdbqueue; this one"
            f" reads formats up to {FORMAT_VERSION}. Update fdbqueue here."
        )
    if stored[:1] != _FIRST_BYTE:
        raise FormatError(f"The record of job {job_id!r} does not begin as one: it was not written by fdbqueue.")
    try:
        return msgspec.msgpack.decode(stored[1:], type=JobRecord)
    except UNREADABLE as error:
        raise FormatError(f"The record of job {job_id!r} is damaged: {error}.") from error


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    if isinstance(value, tuple):
        return "(" + ", ".join(" ".join(column) for column in value) + ")"
    return str(value)
