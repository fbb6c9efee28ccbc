"""The instruments: OpenTelemetry's for messaging systems, and some of our own.

The names are those of the semantic conventions for messaging, version 1.30 and later. OTEL_SEMCONV_STABILITY_OPT_IN is
for libraries that have names of an older version to leave behind. This one has none, so it emits the new names in any
case; with ``messaging/dup`` those of version 1.24 too, for programs that still read these.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode

from fdbqueue import __version__
from fdbqueue.engine.errors import COMMIT_UNKNOWN_RESULT, NOT_COMMITTED, FDBError, text_of
from fdbqueue.layers.common.handlers import Next, Snooze, cause_of
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Lease
from fdbqueue.stored.names import queue_text, session_text

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
SYSTEM = "fdbqueue"
DURATIONS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
"""The buckets of durations that the conventions ask for, in seconds."""
WAITS = [*DURATIONS, 30, 60, 300, 1_800, 3_600, 21_600, 86_400]
"""The buckets of the time that an item waits: items wait for days."""
LOOK_SECONDS = 1.0
"""How often to look whether the program has set up an SDK meanwhile."""
_KINDS = {
    "send": SpanKind.PRODUCER,
    "receive": SpanKind.CLIENT,
    "process": SpanKind.CONSUMER,
    "settle": SpanKind.CLIENT,
}
_OLD_OPERATIONS = {"send": "publish", "receive": "receive", "process": "process"}
_OLD_NAMES = {"send": "publish", "receive": "receive", "process": "deliver"}
_SILENT = {"ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider"}
Attributes = dict[str, Any]


class Telemetry:
    """The tracer and the instruments of this process.

    Args:
        tracer_provider, meter_provider: where they are from; None: the global ones, also if they are set later.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tracer = trace.get_tracer(SYSTEM, __version__, tracer_provider, schema_url=SCHEMA_URL)
        meter = metrics.get_meter(SYSTEM, __version__, meter_provider, schema_url=SCHEMA_URL)
        self._own = tracer_provider is not None or meter_provider is not None
        self.clock = clock
        self._look_at = -1.0
        self.silent_until = -1.0
        """Until when nobody listens, by `clock`, as far as the last look knows; -1: somebody does."""
        self.dup = "messaging/dup" in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").replace(" ", "").split(",")

        def durations(name: str, told: str, buckets: list[float] = DURATIONS) -> metrics.Histogram:
            return meter.create_histogram(name, "s", told, explicit_bucket_boundaries_advisory=buckets)

        self._operations = durations(
            "messaging.client.operation.duration", "Duration of a call that enqueues, takes or settles items."
        )
        self._processes = durations("messaging.process.duration", "Duration of a handler.")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Items that calls tried to enqueue."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Items that were taken."
        )
        self.waits = durations("fdbqueue.item.wait.duration", "Time from an item's enqueue to its lease.", WAITS)
        self._retries = meter.create_counter("fdbqueue.transaction.retries", "{retry}", "Transactions tried again.")
        self._conflicts = meter.create_counter(
            "fdbqueue.transaction.conflicts", "{conflict}", "Conflicts (error 1020)."
        )
        self._unknown = meter.create_counter(
            "fdbqueue.transaction.unknown_results", "{commit}", "Commits whose outcome was unknown (error 1021)."
        )
        self._reclaims = meter.create_counter("fdbqueue.lease.reclaims", "{lease}", "Expired leases that were ended.")
        self._lost = meter.create_counter("fdbqueue.lease.losses", "{lease}", "Leases that were lost to another call.")
        self._dead = meter.create_counter("fdbqueue.item.dead_letters", "{item}", "Items that became dead letters.")
        self._old = {}
        if self.dup:
            for kind, old in _OLD_NAMES.items():
                self._old[kind] = (
                    durations(f"messaging.{old}.duration", "As in version 1.24 of the conventions."),
                    meter.create_counter(f"messaging.{old}.messages", "{message}", "As in version 1.24."),
                )

    def is_silent(self) -> bool:
        """Return whether nobody listens: no SDK was set up, as far as the last look within a second knows."""
        if self._own:
            return False
        if (now := self.clock()) >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            providers: tuple[object, ...] = (trace.get_tracer_provider(), metrics.get_meter_provider())
            silent = all(type(provider).__name__ in _SILENT for provider in providers)
            self.silent_until = self._look_at if silent else -1.0
        return now < self.silent_until

    def span(self, kind: str, name: str, queue: str, **terms: Any) -> trace.Span:
        """Start a span.

        Args:
            kind: the operation's type: "send", "receive", "process" or "settle".
            name: the operation's name: our verb.
            queue: the queue's name.
            terms: further arguments of `Tracer.start_span`; `attributes` are added to the span's own.
        """
        attributes = {**operation(kind, name, queue), **terms.pop("attributes", {})}
        if self.dup and kind in _OLD_OPERATIONS:
            attributes["messaging.operation"] = _OLD_OPERATIONS[kind]
        return self.tracer.start_span(f"{name} {queue}", kind=_KINDS[kind], attributes=attributes, **terms)

    def record(
        self, kind: str, name: str, queue: str, *, seconds: float, items: int, error: BaseException | None = None
    ) -> None:
        """Record the end of an operation.

        Args:
            kind, name, queue: as for `span`.
            items: how many items it sent or received.
        """
        attributes = operation(kind, name, queue)
        if error is not None:
            attributes["error.type"] = type_of(error)
        (self._processes if kind == "process" else self._operations).record(seconds, attributes)
        if items and kind in ("send", "receive"):
            (self._sent if kind == "send" else self._consumed).add(items, attributes)
        if kind in self._old:
            duration, messages = self._old[kind]
            duration.record(seconds, attributes)
            if items:
                messages.add(items, attributes)

    def retried(self, code: int) -> None:
        """Count a transaction that is tried again after the error with this code."""
        self._retries.add(1, {"error.type": str(code)})
        if code == NOT_COMMITTED:
            self._conflicts.add(1)
        elif code == COMMIT_UNKNOWN_RESULT:
            self._unknown.add(1)

    def count(self, queue: str, *, reclaims: int = 0, lost: int = 0, dead: int = 0) -> None:
        """Count what happened to leases and items of a queue."""
        attributes = {"messaging.system": SYSTEM, "messaging.destination.name": queue}
        for counter, number in ((self._reclaims, reclaims), (self._lost, lost), (self._dead, dead)):
            if number:
                counter.add(number, attributes)


def operation(kind: str, name: str, queue: str) -> Attributes:
    """Return the attributes of an operation."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }


def type_of(error: BaseException) -> str:
    """Return the type of an error, as `error.type` has it."""
    if isinstance(error, FDBError):
        return f"FDBError {error.code}"
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def end(span: trace.Span, error: BaseException | None) -> None:
    """End a span."""
    if error is not None and span.is_recording():
        span.set_attribute("error.type", type_of(error))
        try:
            span.set_status(StatusCode.ERROR, text_of(error))
            span.record_exception(error)
        except Exception:  # noqa: BLE001 - an error that can't say what it is must not be replaced by that of its text
            span.set_status(StatusCode.ERROR)
    span.end()


TRACEPARENT = "traceparent"


def carried(headers: Mapping[str, object] | None, context: Context | None = None) -> Mapping[str, object] | None:
    """Return headers with the trace context; the same ones if no span is current, or if they have one already.

    Args:
        headers: an item's headers; None: it has none.
        context: the context; None: the current one.
    """
    if headers is not None and (not isinstance(cast(object, headers), Mapping) or TRACEPARENT in headers):
        return headers
    if not trace.get_current_span(context).get_span_context().is_valid:
        return headers
    found: dict[str, str] = {}
    propagate.inject(found, context)
    return {**(headers or {}), **found} if found else headers


def context_in(headers: Mapping[str, object]) -> SpanContext | None:
    """Return the span that enqueued an item, from its headers; None if they name none."""
    if TRACEPARENT not in headers:
        return None
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    found = trace.get_current_span(propagate.extract(texts, Context())).get_span_context()
    return found if found.is_valid else None


def links_to(items: Iterable[object]) -> list[Link]:
    """Return a link to the span that enqueued each of these items or leases, as far as their headers name one."""
    found = (context_in(getattr(item, "headers", None) or {}) for item in items)
    return [Link(context) for context in found if context is not None]


class TraceItems:
    """Middleware: the handler works in a span of its own, whose parent is the span that enqueued the item.

    `fdbqueue.observe.instrument` puts one around all handlers of the process.
    """

    def __init__(self, telemetry: Telemetry, queue: str = "") -> None:
        self._telemetry = telemetry
        self._queue = queue

    def for_consumer(self, consumer: Consumer) -> TraceItems:
        """Return the same for a consumer, whose queue the spans name."""
        return TraceItems(self._telemetry, queue_text(consumer.queue.layout.prefix))

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        parent = context_in(lease.headers)
        if self._telemetry.is_silent():
            if parent is None:
                return await call_next(lease)
            with trace.use_span(NonRecordingSpan(parent)):  # what the handler calls may listen
                return await call_next(lease)
        terms: dict[str, Any] = {"attributes": _attributes(lease)}
        if parent is not None:
            terms |= {"context": trace.set_span_in_context(NonRecordingSpan(parent)), "links": [Link(parent)]}
        span = self._telemetry.span("process", "process", self._queue, **terms)
        began, failed = time.perf_counter(), None
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                return await call_next(lease)
        except Snooze:
            span.set_attribute("fdbqueue.snoozed", True)
            raise
        except BaseException as error:
            failed = cause_of(error)
            raise
        finally:
            seconds = time.perf_counter() - began
            end(span, failed)
            self._telemetry.record("process", "process", self._queue, seconds=seconds, items=1, error=failed)


def _attributes(lease: Lease) -> Attributes:
    found = {
        "messaging.message.id": lease.position.text,
        "messaging.client.id": lease.consumer,
        "fdbqueue.attempt": lease.attempt,
    }
    session = getattr(lease, "session", None)
    return found if session is None else {**found, "fdbqueue.session": session_text(session)}
