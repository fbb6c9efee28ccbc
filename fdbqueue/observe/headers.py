"""The trace context in an item's headers: `traceparent` and `tracestate`, as W3C's recommendation has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext

TRACEPARENT = "traceparent"


def carried(headers: Mapping[str, Any] | None, context: Context | None = None) -> Mapping[str, Any] | None:
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


def context_in(headers: Mapping[str, Any]) -> SpanContext | None:
    """Return the span that enqueued an item, from its headers; None if they name none."""
    if TRACEPARENT not in headers:
        return None
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    found = trace.get_current_span(propagate.extract(texts, Context())).get_span_context()
    return found if found.is_valid else None


def links_to(items: Iterable[Any]) -> list[Link]:
    """Return a link to the span that enqueued each of these items or leases, as far as their headers name one."""
    found = (context_in(getattr(item, "headers", None) or {}) for item in items)
    return [Link(context) for context in found if context is not None]
