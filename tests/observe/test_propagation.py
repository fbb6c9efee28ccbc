"""A trace goes on where an item goes: to another name, another database, agents, and a collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import fdbqueue
from fdbqueue import Queue, rename
from fdbqueue.agents import AgentWatchdog
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Lease, Leases
from fdbqueue.observe import instrument, uninstrument
from fdbqueue.transfer import copy_queue
from tests.helpers.agents import sending
from tests.helpers.agentservers import leases_of, said_by, serving
from tests.observe.conftest import Heard
from tests.observe.test_telemetry import ids, linked


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="str")


def nothing(lease: Lease) -> None:
    """Do nothing."""


def follows(heard: Heard, producer: Any) -> bool:
    """Return whether the only handler's span is a child of this one, and linked to it."""
    process = heard.span("process")
    return process.parent.span_id == producer.context.span_id and linked(process) == [ids(producer)]


def test_through_a_rename(db: Any, heard: Heard, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.verbs.renaming.LONGEST_SECONDS", 0.0)
    Leases(Queue(space["old"], codec="str")).enqueue(db, "a")
    rename(db, space["old"], space["new"])
    Consumer(Leases(Queue(space["new"], codec="str")), nothing).drain(db)
    assert follows(heard, heard.span("enqueue"))


def test_through_a_copy(db: Any, heard: Heard, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, "a")
    with fdbqueue.open("memory:") as other:
        copy_queue(db, other, queue)
        Consumer(leases, nothing).drain(other)
    assert follows(heard, heard.span("enqueue"))


def test_an_agent_server_begins_a_trace_for_what_an_agent_sends(db: Any, heard: Heard, space: Subspace) -> None:
    async def body() -> None:
        async with serving(db, space) as server:
            await said_by(server, sending(5, b"data"))

    asyncio.run(body())
    Consumer(leases_of(space), nothing).drain(db)
    [sent, *_] = heard.spans("enqueue")
    assert follows(heard, sent)


def test_an_agents_command_gets_the_trace_of_the_program_that_enqueued(
    db: Any, heard: Heard, space: Subspace, tmp_path: Path
) -> None:
    leases = leases_of(space)
    with heard.tracer.start_as_current_span("request"):
        leases.enqueue(db, b"data")
    command = ["sh", "-c", 'printf %s "$TRACEPARENT" >"$0"', str(tmp_path / "got")]
    AgentWatchdog(leases, command, signals=False).drain(db)
    trace_id, span_id = ids(heard.span("enqueue"))
    assert (tmp_path / "got").read_text().startswith(f"00-{trace_id:032x}-{span_id:016x}-")


class Receiver:
    """Receives what OTLP exporters send over HTTP, as a collector does, and parses it.

    No package index has the collector itself, so this stands in its place.
    """

    def __init__(self) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    received.traces.append(ExportTraceServiceRequest.FromString(body))
                else:
                    received.metrics.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def test_a_collector_gets_spans_and_metrics_over_the_wire(db: Any, queue: Queue, receiver: Receiver) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.address}/v1/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.address}/v1/metrics"))])
    instrument(tracer_provider=tracers, meter_provider=meters)
    try:
        leases = Leases(queue)
        leases.enqueue_many(db, ["a", "b", "c"])
        Consumer(leases, nothing).drain(db)
    finally:
        uninstrument()
        tracers.shutdown()
        meters.shutdown()

    spans = [
        span
        for sent in receiver.traces
        for one in sent.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]
    [producer] = [span for span in spans if span.name.startswith("enqueue_many")]
    process = [span for span in spans if span.name.startswith("process")]
    assert {(span.trace_id, span.parent_span_id) for span in process} == {(producer.trace_id, producer.span_id)}
    assert [link.span_id for span in process for link in span.links] == [producer.span_id] * 3
    assert {span.kind for span in process} == {5}  # CONSUMER
    told = {
        metric.name: metric
        for sent in receiver.metrics
        for one in sent.resource_metrics
        for scope in one.scope_metrics
        for metric in scope.metrics
    }
    sent_points = told["messaging.client.sent.messages"].sum.data_points
    assert [point.as_int for point in sent_points] == [3]
    assert {one.key for one in sent_points[0].attributes} >= {"messaging.system", "messaging.destination.name"}
    buckets = told["messaging.process.duration"].histogram.data_points[0]
    assert buckets.count == 3
    assert list(buckets.explicit_bounds)[:3] == [0.005, 0.01, 0.025]
