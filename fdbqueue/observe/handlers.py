"""`TraceItems`: a span around each call of a consumer's handler."""

from __future__ import annotations

import time
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan

from fdbqueue.layers.common.handlers import Snooze, cause_of
from fdbqueue.layers.common.middleware import Next
from fdbqueue.layers.leases import Lease
from fdbqueue.observe.headers import context_in
from fdbqueue.observe.telemetry import Telemetry, end
from fdbqueue.stored.names import queue_text, session_text


class TraceItems:
    """Middleware: the handler works in a span of its own, whose parent is the span that enqueued the item.

    `fdbqueue.observe.instrument` puts one around all handlers of the process.
    """

    def __init__(self, telemetry: Telemetry, queue: str = "") -> None:
        self._telemetry = telemetry
        self._queue = queue

    def for_consumer(self, consumer: Any) -> TraceItems:
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


def _attributes(lease: Lease) -> dict[str, Any]:
    found = {
        "messaging.message.id": lease.position.text,
        "messaging.client.id": lease.consumer,
        "fdbqueue.attempt": lease.attempt,
    }
    session = getattr(lease, "session", None)
    return found if session is None else {**found, "fdbqueue.session": session_text(session)}
