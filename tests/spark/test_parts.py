"""The parts of a job: digests, the backlog, the record, the options."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.errors import FormatError
from fdbqueue.layers.streams.records import decode, encode
from fdbqueue.spark.options import LOAD, parse, url_of
from fdbqueue.spark.partition_log import JobRecord
from fdbqueue.spark.waiting_rows import DIGEST_BYTES, ROW_OVERHEAD_BYTES, Backlog, Multiset, SparkRows, digests_of
from tests.spark.simulated import header, rows

# Two bytes in all, so that buckets fill up and that a digest is often found across the border of two others.
ALIKE = st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\1\0"]), min_size=DIGEST_BYTES // 2, max_size=DIGEST_BYTES // 2)
DIGESTS = st.lists(ALIKE.map(b"".join), max_size=30)


@given(DIGESTS, DIGESTS)
def test_a_multiset_removes_each_digest_as_often_as_it_was_added(added: list[bytes], met: list[bytes]) -> None:
    ahead = Multiset()
    ahead.add(b"".join(added))
    unmatched = [met[place] for place in ahead.unmatched(met)]
    assert Counter(unmatched) == Counter(met) - Counter(added)
    assert len(ahead) == (Counter(added) - Counter(met)).total()


def test_a_digest_across_the_border_of_two_others_is_not_found() -> None:
    ahead = Multiset()
    ahead.add((b"ab" * 8) + (b"ab" + b"c" * 14))
    across = b"ab" * 7 + b"ab"
    assert ahead.unmatched([b"ab" + b"d" * 14, across]) == [0]
    assert ahead.unmatched([b"ab" * 7 + b"ac"]) == [0]


def test_a_row_digest_of_a_wrong_length_is_damaged() -> None:
    with pytest.raises(FormatError, match="17 bytes is damaged"):
        Multiset().add(bytes(17))


PIECES = st.lists(st.lists(st.binary(max_size=40), max_size=12), max_size=8)


@given(PIECES, st.integers(0, 400), st.integers(1, 9), st.integers(1, 600))
def test_a_backlog_gives_back_what_came_in_order(
    pieces: list[list[bytes]], memory_bytes: int, batch_rows: int, batch_bytes: int
) -> None:
    backlog = Backlog(memory_bytes=memory_bytes)
    for piece in pieces:
        backlog.append(rows(piece))
    taken: list[SparkRows] = []
    while batch := backlog.take(rows=batch_rows, size_bytes=batch_bytes, rest=True):
        assert 1 <= len(batch) <= batch_rows
        assert len(batch) == 1 or sum(batch.sizes()) + ROW_OVERHEAD_BYTES * len(batch) <= batch_bytes
        taken.append(batch)
    everything = rows([value for piece in pieces for value in piece])
    assert [stored for batch in taken for stored in batch.stored] == everything.stored
    assert [one for batch in taken for one in batch.digests] == everything.digests
    assert (backlog.rows, backlog.size_bytes) == (0, 0)
    backlog.close()


@given(PIECES, st.integers(0, 400))
def test_a_backlog_drains_what_was_put_back_first(pieces: list[list[bytes]], memory_bytes: int) -> None:
    backlog = Backlog(memory_bytes=memory_bytes)
    for piece in pieces:
        backlog.append(rows(piece))
    first = backlog.take(rows=5, size_bytes=10_000, rest=True)
    if first is not None:
        backlog.put_back(first)
    drained = [stored for some in backlog.drain() for stored in some.stored]
    assert drained == rows([value for piece in pieces for value in piece]).stored
    assert (backlog.rows, backlog.size_bytes) == (0, 0)
    backlog.close()


def test_a_backlog_keeps_queues_and_large_payloads_beside_their_rows() -> None:
    backlog = Backlog(memory_bytes=0)
    for number in range(4):
        large = [None, b"large %d" % number] if number % 2 else None
        backlog.append(SparkRows([b"a", b"b"], digests_of([b"a", b"b"]), [f"q{number}", None], large))
    batch = backlog.take(rows=100, size_bytes=100_000, rest=True)
    assert batch is not None
    assert batch.queues == ["q0", None, "q1", None, "q2", None, "q3", None]
    assert batch.large == [None, None, None, b"large 1", None, None, None, b"large 3"]
    backlog.close()


def test_less_than_a_batch_waits_for_more() -> None:
    backlog = Backlog()
    backlog.append(rows([b"a", b"b"]))
    assert backlog.take(rows=3, size_bytes=10_000, rest=False) is None
    backlog.append(rows([b"c"]))
    batch = backlog.take(rows=3, size_bytes=10_000, rest=False)
    assert batch is not None
    assert len(batch) == 3


RECORD = encode(JobRecord(header=header(4), started_us=1))


def test_a_record_reads_back() -> None:
    assert decode(JobRecord, RECORD, "job 'job'") == JobRecord(header=header(4), started_us=1)


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(FormatError, match=r"job 'job' was written in format 2 by a newer version"):
        decode(JobRecord, b"\x20" + RECORD[1:], "job 'job'")


def test_a_record_with_a_bad_first_byte_is_refused() -> None:
    with pytest.raises(FormatError, match="does not begin as one"):
        decode(JobRecord, b"\x0f" + RECORD[1:], "job 'job'")


FOREIGN = st.binary() | st.binary().map(lambda tail: RECORD[:1] + tail)
TRUNCATED = st.integers(0, len(RECORD) - 1).map(lambda size: RECORD[:size])


@given(FOREIGN | TRUNCATED)
def test_foreign_and_truncated_records_are_refused_clearly(stored: bytes) -> None:
    with pytest.raises(FormatError, match="record of job 'job'"):
        decode(JobRecord, stored, "job 'job'")


@given(st.integers(1, len(RECORD) - 1), st.integers(0, 255))
def test_a_record_with_a_changed_byte_reads_or_is_refused(at: int, byte: int) -> None:
    changed = RECORD[:at] + bytes((byte,)) + RECORD[at + 1 :]
    try:
        decode(JobRecord, changed, "job 'job'")
    except FormatError as error:
        assert "damaged" in str(error)  # noqa: PT017 - it need not fail


def test_options_are_known_in_any_case() -> None:
    options = parse(LOAD, {"URL": "fdb:", "Queue": "q", "JOBID": "j", "valuecolumn": "v"})
    assert (options.url, options.queue, options.job_id, options.value_column) == ("fdb:", "q", "j", "v")


def test_a_relative_path_is_the_drivers(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"queue": "q", "jobId": "j"}
    assert (
        parse(LOAD, {"url": "file:here?durability=relaxed", **plain}).url == f"file:{tmp_path}/here?durability=relaxed"
    )
    assert parse(LOAD, {"url": "file:///tea%20shop", **plain}).url == "file:///tea%20shop"
    assert parse(LOAD, {"url": "fdb:my.cluster", **plain}).url == f"fdb:{tmp_path}/my.cluster"


def test_a_path_from_the_home_folder_is_the_one_that_open_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    plain = {"queue": "q", "jobId": "j"}
    assert (
        parse(LOAD, {"url": "file:~/here?durability=relaxed", **plain}).url
        == f"file:{tmp_path}/here?durability=relaxed"
    )
    assert parse(LOAD, {"url": "fdb:~/my.cluster", **plain}).url == f"fdb:{tmp_path}/my.cluster"


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="url is missing"):
        parse(LOAD, {"queue": "q", "jobId": "j"})
    monkeypatch.setenv("FDBQUEUE_URL", "fdb:")
    assert parse(LOAD, {"queue": "q", "jobId": "j"}).url == "fdb:"


@pytest.mark.parametrize("given", [object(), 5, b"file:x"])
def test_a_database_where_a_url_is_wanted_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"url is a str, not \w+: tasks open the database themselves"):
        url_of(given)


def test_rows_go_to_a_file_and_back_as_they_are() -> None:
    backlog = Backlog(memory_bytes=0)
    whole = SparkRows([b"\x10v"], digests_of([b"v"]), [None], [b"large"])
    backlog.append(rows([]))
    backlog.append(whole)
    assert list(backlog.drain()) == [whole]
    backlog.close()
