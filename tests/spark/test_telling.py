"""Errors reach the user as one sentence first. These tests need no running Spark."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.util import handle_worker_exception

from fdbqueue import Queue, QueuePaused, StreamError, UnknownQueue
from fdbqueue.errors import CodecError, JobError, StorageError
from fdbqueue.spark import drain_to_table, redrive, register, started
from fdbqueue.spark import telling as module
from fdbqueue.spark.source import FdbQueueDataSource
from fdbqueue.spark.telling import HIDE, own_errors, tells

MASTERS = (("local[2]", True), ("local-cluster[2,1,1024]", True), ("spark://host:7077", False), ("yarn", False))


@tells("call", "generate")
class Called:
    """What Spark calls."""

    def call(self, wrong: bool = True) -> str:
        """Fail, or not."""
        if wrong:
            try:
                raise KeyError("k")
            except KeyError as error:
                raise JobError("The job is refused.") from error
        return "done"

    def generate(self, wrong: bool = True) -> Iterator[int]:
        """Yield something, and fail, or not."""
        yield 1
        if wrong:
            raise CodecError("The row is refused.")


@pytest.fixture
def in_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be one of Spark's processes."""
    monkeypatch.setenv(HIDE, "")
    monkeypatch.setattr(module, "_is_sparks", lambda: True)


def sent(call: Callable[[], Any]) -> list[str]:
    """Return the lines that Spark sends to the driver for a call that fails."""
    file = io.BytesIO()
    try:
        call()
    except Exception as error:  # noqa: BLE001  as Spark does
        handle_worker_exception(error, file)
    return file.getvalue()[8:].decode().splitlines()


@pytest.mark.usefixtures("in_spark")
def test_spark_sends_the_sentence_then_the_whole_traceback() -> None:
    for call, sentence in (
        (Called().call, "fdbqueue.errors.JobError: The job is refused."),
        (lambda: list(Called().generate()), "fdbqueue.errors.CodecError: The row is refused."),
    ):
        lines = sent(call)
        assert lines[0] == sentence
        assert lines[2] == "Traceback (most recent call last):"
        assert lines[-1] == sentence
    assert "KeyError: 'k'" in sent(Called().call)
    assert Called().call(wrong=False) == "done"
    assert list(Called().generate(wrong=False)) == [1]


def test_elsewhere_an_error_is_left_as_it_is() -> None:
    with pytest.raises(JobError) as refused:
        Called().call()
    assert not getattr(refused.value, "__notes__", ())
    assert HIDE not in os.environ


@pytest.mark.usefixtures("in_spark")
def test_the_format_tells_its_errors_so() -> None:
    lines = sent(lambda: FdbQueueDataSource({"url": "fdb:", "queue": "q", "quue": "typo"}).schema())
    assert lines[0].startswith("ValueError: There is no option 'quue'.")


def test_a_stream_reader_tells_at_its_first_call_what_was_refused(tmp_path: Path) -> None:
    # PySpark's process stops a reader that it does not have if `streamReader` raises, and reports that.
    schema = t.StructType([t.StructField("valeu", t.StringType())])
    for options, kind, told in (
        ({"url": "fdb:", "queue": "q"}, ValueError, "option streamName is missing"),
        ({"url": "fdb:", "queue": "q", "streamName": "s"}, ValueError, "no column 'valeu'"),
        ({"url": f"file:{tmp_path}", "queue": "q", "streamName": "s"}, ValueError, "no column 'valeu'"),
        ({"url": f"file:{tmp_path}", "queue": "q", "streamName": "s"}, StorageError, "there is no database"),
    ):
        good = t.StructType([t.StructField("position", t.StringType())])
        reader: Any = FdbQueueDataSource(options).streamReader(good if kind is StorageError else schema)
        for call in (
            reader.initialOffset,
            reader.latestOffset,
            lambda reader=reader: reader.partitions({}, {}),
            lambda reader=reader: reader.read(None),
        ):
            with pytest.raises(kind, match=told):
                call()
        reader.stop()


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("[X] Failed: fdbqueue.errors.JobError: It is refused.\n\nTraceback …", JobError, "It is refused."),
        ("Job aborted\n: y: fdbqueue.errors.CodecError: Bad row.\nmore", CodecError, "Bad row."),
        ("[STREAM_FAILED] … fdbqueue.errors.StreamError: Older.\n", StreamError, None),
        ("x: fdbqueue.errors.QueuePaused: It is paused.\n", QueuePaused, "It is paused."),
        ("in Python: ValueError: There is no option.\n\nTraceback (most", ValueError, "There is no option."),
        ("Traceback …\nValueError: the user's own\nSQLSTATE", PySparkException, None),
        ("ModuleNotFoundError: No module named 'fdbqueue'\n", ModuleNotFoundError, "Set PYSPARK_PYTHON"),
    ],
)
def test_the_library_raises_its_own_error_again(text: str, kind: type[Exception], sentence: str | None) -> None:
    with pytest.raises(Exception) as raised, own_errors():
        raise PySparkException(text)
    if sentence is not None:
        assert type(raised.value) is kind
        assert sentence in str(raised.value)
        assert isinstance(raised.value.__cause__, PySparkException)
    else:
        assert type(raised.value) in (kind, PySparkException)


def fake_session(master: str, noted: list[Any]) -> Any:
    """Return what `register` uses of a session."""
    jvm = SimpleNamespace()
    path = jvm
    for name in ("org", "apache", "spark", "sql", "classic", "SparkSession"):
        setattr(path, name, SimpleNamespace())
        path = getattr(path, name)
    path.setActiveSession = noted.append
    context = SimpleNamespace(master=master, pythonExec="python3")
    source = SimpleNamespace(register=noted.append)
    return SimpleNamespace(dataSource=source, _jvm=jvm, _jsparkSession="the session", sparkContext=context)


@pytest.mark.parametrize(("master", "local"), MASTERS)
@pytest.mark.parametrize("given", [None, "", "/usr/bin/python3"])
def test_workers_on_this_machine_get_the_drivers_python(
    monkeypatch: pytest.MonkeyPatch, master: str, local: bool, given: str | None
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if given is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    noted: list[Any] = []
    session = fake_session(master, noted)
    register(session)
    assert session.sparkContext.pythonExec == (sys.executable if local and not given else "python3")
    assert noted == ["the session", FdbQueueDataSource]


def test_a_session_of_spark_connect_is_registered_without_a_jvm() -> None:
    noted: list[Any] = []
    register(SimpleNamespace(dataSource=SimpleNamespace(register=noted.append)))  # type: ignore[arg-type]
    assert noted == [FdbQueueDataSource]


@pytest.mark.engines("file")
def test_a_drain_is_refused_before_spark_is_asked(db: Any, url: str, queue_name: str, tmp_path: Path) -> None:
    spark: Any = SimpleNamespace(readStream=None)
    given: dict[str, Any] = {"url": url, "queue": queue_name, "checkpoint": tmp_path / "c", "path": tmp_path / "o"}
    with pytest.raises(ValueError, match=r"codec is one of .*, not 'pickle'"):
        drain_to_table(spark, **given, codec="pickle")
    with pytest.raises(ValueError, match="There is no option 'quue'"):
        drain_to_table(spark, **given, quue="typo")
    with pytest.raises(UnknownQueue, match="There is no queue"):
        drain_to_table(spark, **given)
    Queue(queue_name).enqueue(db, b"a")
    with pytest.raises(StorageError, match="there is no database"):
        drain_to_table(spark, **{**given, "url": f"file:{tmp_path}/none"})
    assert not (tmp_path / "none").exists()
    frame: Any = SimpleNamespace(sparkSession=spark, columns=["position"])
    with pytest.raises(StorageError, match="there is no database"):
        redrive(frame, url=f"file:{tmp_path}/none", queue=queue_name)
    with pytest.raises(UnknownQueue, match=f"Did you mean '{queue_name}'"):
        redrive(frame, url=url, queue=queue_name[:-1])


def test_only_a_query_has_started() -> None:
    with pytest.raises(TypeError, match=r"takes what start\(\) returns, a StreamingQuery, not str"):
        started("query")  # type: ignore[arg-type]


class FakeQuery:
    """A query, as its status shows it at each look."""

    def __init__(self, *messages: str, progress: int | None = None, ends: Exception | None = None) -> None:
        self.messages = list(messages)
        self.looks = 0
        self.progress = progress
        self.ends = ends

    def awaitTermination(self, timeout: float) -> bool:
        """Look once."""
        self.looks += 1
        if self.ends is not None and self.looks > len(self.messages):
            raise self.ends
        return False

    @property
    def status(self) -> dict[str, str]:
        """What it does."""
        return {"message": self.messages[min(self.looks, len(self.messages)) - 1]}

    @property
    def lastProgress(self) -> object:
        """Its first batch, if it is through."""
        return None if self.progress is None or self.looks < self.progress else object()


def test_a_query_has_started_when_it_waits_or_a_batch_is_through() -> None:
    waiting: Any = FakeQuery("Initializing sources", "Getting offsets from x", "Waiting for data to arrive")
    assert (started(waiting) is waiting, waiting.looks) == (True, 3)
    busy: Any = FakeQuery("Initializing sources", "Processing new data", progress=5)
    assert (started(busy) is busy, busy.looks) == (True, 5)
    slow: Any = FakeQuery("Initializing sources")
    assert (started(slow, timeout=0) is slow, slow.looks) == (True, 1)
    told = "[STREAM_FAILED] x: ValueError: The option streamName is missing.\n\nTraceback (most recent call last):"
    refused: Any = FakeQuery("Initializing sources", ends=PySparkException(told))
    with pytest.raises(ValueError, match=r"^The option streamName is missing\.$"):
        started(refused)
    with pytest.raises(TypeError, match="timeout is a number of seconds, not '1'"):
        started(slow, timeout="1")  # type: ignore[arg-type]
