"""From Arrow's batches to rows, without Spark."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from fdbqueue.errors import CodecError, ItemTooLarge
from fdbqueue.spark.columns import RowColumns
from fdbqueue.spark.options import LOAD
from fdbqueue.spark.options import parse as parse_options
from fdbqueue.spark.waiting_rows import SparkRows
from fdbqueue.stored.items import MAX_ITEM_BYTES, parse


def rows_of(batch: Any, names: list[str], **options: str) -> SparkRows:
    given = {"url": "fdb:", "queue": "q", "jobId": "j", **options}
    return RowColumns(parse_options(LOAD, given), names).rows(batch)[0]


def payloads(rows: SparkRows) -> list[bytes]:
    return [parse(stored).payload for stored in rows.stored]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_strings_of_either_size_are_utf8(kind: Any) -> None:
    batch = pa.record_batch({"value": pa.array(["a", "ü"], kind)})
    assert payloads(rows_of(batch, ["value"], codec="str")) == [b"a", "ü".encode()]


@pytest.mark.parametrize(("name", "options"), [("value", {"codec": "str"}), ("to", {"queueColumn": "to"})])
def test_a_string_that_is_no_text_is_refused_by_its_column(name: str, options: dict[str, str]) -> None:
    text = pa.array([b"a", b"a\xffb"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"value": [b"v", b"w"], "to": ["a", "b"]} | {name: text})
    with pytest.raises(CodecError, match=f"'{name}', string, has a value that is not valid text"):
        rows_of(batch, ["value"], **options)


def test_the_session_s_time_zone_changes_no_row() -> None:
    moment = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)
    found = set()
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        plain = pa.timestamp("us", zone)
        nested = pa.struct([("list", pa.list_(plain)), ("map", pa.map_(pa.string(), plain))])
        columns = [pa.array([moment], plain), pa.array([{"list": [moment], "map": [("k", moment)]}], nested)]
        batch = pa.record_batch(columns, names=["at", "more"])
        found.add(rows_of(batch, ["at", "more"], codec="json").stored[0])
    when = "2013-01-01T12:00:00Z"
    assert [msgspec.json.decode(stored[1:]) for stored in found] == [
        {"at": when, "more": {"list": [when], "map": {"k": when}}}
    ]


@pytest.mark.parametrize("depth", range(4))
def test_a_map_is_a_record_however_deep_it_is(depth: int) -> None:
    kind: Any = pa.map_(pa.string(), pa.int64())
    value: Any = [("k", 1)]
    expected: Any = {"k": 1}
    for level in range(depth):
        if level % 2:
            kind, value, expected = pa.struct([("in", kind)]), {"in": value}, {"in": expected}
        else:
            kind, value, expected = pa.list_(kind), [value], [expected]
    batch = pa.record_batch([pa.array([value, None], kind)], names=["value"])
    rows = rows_of(batch, ["value"], codec="json", valueColumn="value")
    assert [msgspec.json.decode(payload) for payload in payloads(rows)] == [expected, None]


def test_one_column_can_be_the_value_of_a_record_codec() -> None:
    batch = pa.record_batch({"value": pa.array([[1, 2], None])})
    assert payloads(rows_of(batch, ["value"], codec="json", valueColumn="value")) == [b"[1,2]", b"null"]


def test_rows_that_differ_in_queue_or_headers_only_have_other_digests() -> None:
    headers = pa.array([[("k", "v")], [("k", "w")], [("k", "v")], None], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch([pa.array([b"v"] * 4), pa.array(["a", "a", "b", "a"]), headers], names=["value", "q", "h"])
    for options in ({"queueColumn": "q"}, {"headersColumn": "h"}, {"queueColumn": "q", "headersColumn": "h"}):
        digests = rows_of(batch, ["value"], **options).digests
        assert len(set(digests)) == {"q": 2, "h": 3, "qh": 4}["".join(options.values())]


def test_large_payloads_are_stored_beside_their_rows() -> None:
    rows = rows_of(pa.record_batch({"value": [b"small", bytes(100_000)]}), ["value"])
    assert rows.large == [None, bytes(100_000)]
    assert parse(rows.stored[1]).chunked is not None


def test_a_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(ItemTooLarge):
        rows_of(pa.record_batch({"value": [bytes(MAX_ITEM_BYTES + 1)]}), ["value"])


def test_a_value_that_the_codec_refuses_is_refused() -> None:
    with pytest.raises(CodecError, match="codec tuple does not take a row"):
        rows_of(pa.record_batch({"n": [datetime.date(2013, 1, 1)]}), ["n"], codec="tuple", valueColumn="n")


def test_a_moment_that_python_has_not_is_refused_by_its_column() -> None:
    batch = pa.record_batch({"at": pa.array([2**60], pa.timestamp("us", "UTC"))})
    with pytest.raises(CodecError, match=r"'at', timestamp.*has a value that Python has not"):
        rows_of(batch, ["at"], codec="json")


def test_a_queue_without_a_name_is_refused() -> None:
    batch = pa.record_batch({"value": [b"v", b"w"], "to": ["shop", ""]})
    with pytest.raises(CodecError, match="'to' names a queue by an empty text"):
        rows_of(batch, ["value"], queueColumn="to")


def test_calls_that_need_spark_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("dataframe", "source", "schema"):
        monkeypatch.delitem(sys.modules, f"fdbqueue.spark.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    import fdbqueue.spark

    assert fdbqueue.spark.job_report is not None
    with pytest.raises(ModuleNotFoundError, match=r"register needs Spark: pip install 'fdbqueue\[spark\]'"):
        _ = fdbqueue.spark.register
    with pytest.raises(AttributeError):
        _ = fdbqueue.spark.nothing


def test_the_trace_of_a_row_travels_in_its_headers() -> None:
    """So a DataFrame that was read from a queue, and is written into another one, keeps the spans of its items."""
    trace = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "vendor=1"}
    kind = pa.map_(pa.string(), pa.string())
    batch = pa.record_batch([pa.array(["a", "b"]), pa.array([list(trace.items()), None], kind)], names=["value", "h"])
    first, second = rows_of(batch, ["value"], codec="str", headersColumn="h").stored
    assert dict(parse(first).headers) == trace
    assert dict(parse(second).headers) == {}
