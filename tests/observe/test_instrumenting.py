"""Telemetry is asked for, and costs nothing before."""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import fdbqueue.layers
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.errors import on_retry
from fdbqueue.engine.verb import Verb
from fdbqueue.layers import Consumer, Lease, Leases, Results
from fdbqueue.layers.common.handlers import around_all, on_acked
from fdbqueue.layers.leases.timers import on_reclaimed
from fdbqueue.observe import FdbqueueInstrumentor, instrument, uninstrument
from fdbqueue.observe.telemetry import LOOK_SECONDS, Telemetry
from tests.helpers.calls import entering
from tests.helpers.clock import Clock
from tests.observe.conftest import Heard

HOOKS: list[list[Any]] = [on_retry, around_all, on_acked, on_reclaimed]
REMOTE = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))


@pytest.fixture
def leases(space: Subspace) -> Leases:
    return Leases(Queue(space, codec="str"))


def verbs() -> dict[tuple[str, str], Any]:
    """Return every verb of the public classes."""
    kinds = [getattr(fdbqueue.layers, name) for name in fdbqueue.layers.__all__]
    return {
        (kind.__name__, name): value
        for kind in (Queue, *kinds)
        if isinstance(kind, type)
        for name, value in vars(kind).items()
        if isinstance(value, Verb)
    }


def test_uninstrument_leaves_all_as_it_was(silent: Heard) -> None:
    before = verbs()
    silent.instrument()
    assert verbs() != before
    assert all(HOOKS)
    uninstrument()
    assert verbs() == before
    assert not any(HOOKS)
    uninstrument()  # a second time changes nothing


def test_a_second_call_changes_nothing(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    before = verbs()
    with caplog.at_level(logging.WARNING):
        instrument()
    assert "instrumented already" in caplog.text
    assert verbs() == before


def test_an_instrumented_verb_keeps_its_name_signature_and_docstring(silent: Heard, leases: Leases) -> None:
    import inspect

    before = inspect.signature(leases.enqueue), leases.enqueue.__doc__, repr(leases.enqueue)
    silent.instrument()
    assert (inspect.signature(leases.enqueue), leases.enqueue.__doc__, repr(leases.enqueue)) == before
    assert inspect.signature(leases.enqueue.aio) == before[0]
    assert leases.enqueue.aio.__name__ == "enqueue"


def test_opentelemetry_finds_it() -> None:
    [found] = entry_points(group="opentelemetry_instrumentor", name="fdbqueue")
    assert found.value == "fdbqueue.observe:FdbqueueInstrumentor"


def test_the_instrumentor_takes_providers(silent: Heard, db: Any, leases: Leases) -> None:
    instrumentor = FdbqueueInstrumentor()
    instrumentor.instrument(tracer_provider=silent.tracers, meter_provider=silent.meters, skip_dep_check=True)
    leases.enqueue(db, "a")
    instrumentor.uninstrument()
    leases.enqueue(db, "b")
    assert len(silent.spans()) == 1
    assert instrumentor.instrumentation_dependencies() == ("fdbqueue",)


@pytest.fixture
def without_sdk() -> Any:
    instrument()
    yield
    uninstrument()


@pytest.mark.usefixtures("without_sdk")
def test_without_an_sdk_items_carry_nothing(db: Any, leases: Leases) -> None:
    leases.enqueue(db, "a")
    lease = leases.lease(db)
    assert lease is not None
    assert dict(lease.headers) == {}


@pytest.mark.usefixtures("without_sdk")
def test_without_an_sdk_a_span_of_somebody_else_is_carried_to_the_handler(db: Any, leases: Leases) -> None:
    seen = []

    async def handle(lease: Lease) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    with trace.use_span(NonRecordingSpan(REMOTE)):
        leases.enqueue(db, "a", headers={"color": "blue"})
        Results(leases).enqueue(db, "b")
    leases.enqueue(db, "c")
    assert Consumer(leases, handle, concurrency=1).drain(db).acked == 3
    assert seen == [2, 2, 0]


def test_without_an_sdk_a_call_enters_few_functions_more(
    untouched: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that costs in time, three percent at most, is measured by `python -m tests.benchmarks telemetry`."""
    # An example of the documents that ran in this process may have set up an SDK.
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    monkeypatch.setattr(metrics, "get_meter_provider", metrics.NoOpMeterProvider)
    db, leases = untouched, Leases(Queue(space, codec="str"))

    def entered(name: str) -> int:
        # Now and then a commit trims the log, or another thread makes it.
        return statistics.median_low(entered_once(name) for _ in range(9))

    def entered_once(name: str) -> int:
        leases.enqueue(db, "a")
        held = leases.lease(db)
        leases.enqueue(db, "b")
        arguments = {"enqueue": ("c",), "lease": (), "ack": (held,)}[name]
        with entering() as found:
            getattr(leases, name)(db, *arguments)
        leases.queue.clear(db)
        return len(found)

    for name in ("enqueue", "lease", "ack"):
        entered(name)
        plain = entered(name)
        instrument()
        try:
            entered(name)
            # The call, whether somebody listens and, of an enqueue, whether there is a context.
            assert entered(name) - plain <= 5
        finally:
            uninstrument()


def test_it_notices_within_a_second_that_an_sdk_was_set_up(
    silent: Heard, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry(clock=clock)
    assert telemetry.is_silent()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: silent.tracers)
    assert telemetry.is_silent()
    clock.now += LOOK_SECONDS
    assert not telemetry.is_silent()


def test_the_names_of_version_1_24_come_too_if_both_are_asked_for(
    silent: Heard, db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http, messaging/dup")
    silent.instrument()
    leases.enqueue(db, "a")
    Consumer(leases, lambda lease: None).drain(db)

    assert silent.total("messaging.publish.messages") == silent.total("messaging.client.sent.messages") == 1
    assert silent.total("messaging.receive.messages") == silent.total("messaging.client.consumed.messages") == 1
    assert silent.total("messaging.deliver.duration") == silent.total("messaging.process.duration") == 1
    operations = [(span.attributes or {}).get("messaging.operation") for span in silent.spans()]
    assert operations == ["publish", "receive", "process", None]


@pytest.mark.parametrize("opted", ["", "messaging", "http/dup"])
def test_they_do_not_come_otherwise(
    silent: Heard, db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch, opted: str
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opted)
    silent.instrument()
    leases.enqueue(db, "a")
    assert silent.points("messaging.publish.messages") == []
    assert "messaging.operation" not in (silent.span("enqueue").attributes or {})


@pytest.mark.slow
def test_nothing_is_imported_without_being_asked_for() -> None:
    code = (
        "import sys, fdbqueue; from fdbqueue.layers import *; import fdbqueue.observe; "
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_missing_package_is_named() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; from fdbqueue.observe import instrument"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'fdbqueue[otel]'" in ran.stderr.splitlines()[-1]
