"""Telemetry into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fdbqueue.observe import instrument, uninstrument
from tests.helpers.clock import Clock


class Heard:
    """What a process has told so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("test")

    def instrument(self) -> None:
        instrument(tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        """Return the finished spans whose names begin with `name`, in the order of their starts."""
        found = [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def span(self, name: str) -> Any:
        [span] = self.spans(name)
        return span

    def points(self, metric: str) -> list[Any]:
        """Return the points of a metric so far."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        ]

    def total(self, metric: str, **attributes: object) -> float:
        """Return the sum of a counter, or the count of a histogram, over the points with these attributes.

        A dot in an attribute's name is two underscores here.
        """
        wanted = {name.replace("__", "."): value for name, value in attributes.items()}
        found = 0.0
        for point in self.points(metric):
            if wanted.items() <= dict(point.attributes).items():
                found += point.value if hasattr(point, "value") else point.count
        return found

    def close(self) -> None:
        uninstrument()
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def silent() -> Iterator[Heard]:
    """Providers of OpenTelemetry's SDK. Nothing is instrumented before `instrument` is called."""
    heard = Heard()
    yield heard
    heard.close()


@pytest.fixture
def heard(silent: Heard) -> Heard:
    """The same, and this process is instrumented."""
    silent.instrument()
    return silent
