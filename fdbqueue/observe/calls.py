"""Verbs that tell of their calls. They stand in the place of the plain ones while a process is instrumented.

A verb tells of itself only if a program calls it. Layers use the steps of other verbs, and these stay the plain ones:
one call is one span.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MethodType, TracebackType
from typing import Any, Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import get_current

from fdbqueue.engine.steps import run
from fdbqueue.engine.verb import BoundVerb, Verb
from fdbqueue.errors import BulkInterrupted, LeaseLost
from fdbqueue.layers.leases import Disposition
from fdbqueue.layers.leases.lease import Lease, LeaseHandle
from fdbqueue.observe.telemetry import Telemetry, carried, end, links_to
from fdbqueue.stored.names import queue_text

VERBS: Final = {
    **dict.fromkeys(("enqueue", "enqueue_many"), "send"),
    **dict.fromkeys(("dequeue", "dequeue_many", "lease", "lease_many", "fetch", "fetch_many"), "receive"),
    **dict.fromkeys(("ack", "ack_many", "ack_and_next", "nack", "nack_many", "snooze", "snooze_many"), "settle"),
}
"""The verbs that tell, and the types of their operations."""

PlainVerb: TypeAlias = Verb[Any, Any, Any]
Terms: TypeAlias = dict[str, Any]
"""The keyword arguments of a call."""


class Told:
    """One call that is under way. It is a context manager: set `result` at its end."""

    __slots__ = ("_began", "_began_ns", "_current", "_operation", "_queue", "_span", "args", "kwargs", "result", "self")

    def __init__(self, operation: Operation, instance: object, args: tuple[object, ...], kwargs: Terms) -> None:
        self._operation = operation
        self.self = instance
        self.args = args
        self.kwargs = kwargs
        self.result: object = None
        self._queue = name_of(instance)
        self._span: trace.Span | None = None
        self._current: AbstractContextManager[trace.Span] = nullcontext(trace.INVALID_SPAN)

    def __enter__(self) -> Told:
        operation = self._operation
        self._began_ns, self._began = time.time_ns(), time.perf_counter()
        if operation.kind == "send":
            self._span = span = operation.telemetry.span("send", operation.name, self._queue)
            self._current = trace.use_span(span, record_exception=False, set_status_on_exception=False)
            self._current.__enter__()
            if operation.takes_headers(self.self):
                headers = self.kwargs.get("headers")
                if (own := carried(headers)) is not headers:
                    self.kwargs = {**self.kwargs, "headers": own}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        seconds, operation = time.perf_counter() - self._began, self._operation
        told = operation.telemetry
        if operation.kind == "send":
            items = _number_sent(operation.name, self.result, error)
            self._current.__exit__(None, None, None)
        elif operation.kind == "receive":
            taken = _taken(self.result)
            items = len(taken)
            self._note_received(taken, error)
        else:
            items = self._note_settled(error)
        span = self._span
        if span is not None:
            self._describe(span, items)
            end(span, error)
        told.record(operation.kind, operation.name, self._queue, seconds=seconds, items=items, error=error)

    def _describe(self, span: trace.Span, items: int) -> None:
        if not span.is_recording():
            return
        if self._operation.name.endswith("_many"):
            span.set_attribute("messaging.batch.message_count", items)
            return
        one = self.result if self._operation.kind != "settle" else self.args[1] if len(self.args) > 1 else None
        if (position := _position_of(one)) is not None:
            span.set_attribute("messaging.message.id", position)

    def _start(self, items: Sequence[object]) -> None:
        """Start a span that began with the call. It is nobody's parent, so that it can be made at the end."""
        self._span = self._operation.telemetry.span(
            self._operation.kind,
            self._operation.name,
            self._queue,
            links=links_to(items),
            start_time=self._began_ns,
            attributes=_subscription_of(self.self),
        )

    def _note_received(self, taken: Sequence[object], error: BaseException | None) -> None:
        if taken or error is not None:  # a call that found nothing is no span
            self._start(taken)
        note_waits(self._operation.telemetry, self._queue, taken)

    def _note_settled(self, error: BaseException | None) -> int:
        leases = [one for one in self.args[1:2] if one is not None] or [
            value for name, value in self.kwargs.items() if name in ("lease", "leases")
        ]
        held = leases[0] if leases else ()
        settled = (
            [held] if isinstance(held, Lease | LeaseHandle) else list(held) if isinstance(held, list | tuple) else []
        )
        self._start(settled)
        fates = self.result if isinstance(self.result, list) else [self.result]
        lost = len(set(error.lost)) or 1 if isinstance(error, LeaseLost) else 0
        dead = sum(fate is Disposition.dead for fate in fates)
        self._operation.telemetry.count(self._queue, lost=lost, dead=dead)
        return len(settled)


class _Carrying:
    """A call that only carries the current span in its headers. No SDK is here, and perhaps one is there."""

    __slots__ = ("kwargs", "result")

    def __init__(self, kwargs: Terms) -> None:
        self.kwargs = kwargs
        self.result: object = None

    def __enter__(self) -> _Carrying:
        return self

    def __exit__(self, *_: object) -> None:
        """Tell nothing."""


class Operation:
    """What one verb of one class tells.

    Args:
        telemetry: where to.
        plain: the verb as it was.
        name: its name.
    """

    __slots__ = ("_headers", "kind", "name", "sends", "telemetry")

    def __init__(self, telemetry: Telemetry, plain: PlainVerb, name: str) -> None:
        self.telemetry = telemetry
        self.name = name
        self.kind = VERBS[name]
        self.sends = self.kind == "send"
        parameters = inspect.signature(plain).parameters
        others = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self._headers: bool | None = True if "headers" in parameters else None if others else False
        """Whether the verb takes headers; None: if that of the object's source does."""

    def takes_headers(self, instance: object) -> bool:
        """Return whether the verb of this object takes headers."""
        if self._headers is not None:
            return self._headers
        return takes_headers(_source_of(instance))

    def begin(self, instance: object, args: tuple[object, ...], kwargs: Terms) -> Told | _Carrying | None:
        """Begin to tell of a call; None if there is nothing to tell."""
        if not self.telemetry.is_silent():
            return Told(self, instance, args, kwargs)
        if not self.sends or trace.get_current_span() is trace.INVALID_SPAN:
            return None
        headers = kwargs.get("headers")
        own = carried(headers) if self.takes_headers(instance) else headers
        return None if own is headers else _Carrying({**kwargs, "headers": own})


class _ObservedAio:
    """The awaitable form of a verb that tells."""

    def __get__(self, verb: Any, owner: object = None) -> Any:
        plain = _plain_aio.__get__(verb, owner)

        @functools.wraps(plain)
        async def aio(*args: object, **kwargs: Any) -> object:
            told = verb.operation.begin(verb.body.__self__, args, kwargs)
            if told is None:
                return await plain(*args, **kwargs)
            with told:
                told.result = result = await plain(*args, **told.kwargs)
            return result

        vars(aio)["__wrapped__"] = verb
        return aio


_plain_aio = vars(BoundVerb)["aio"]
_plain_call = BoundVerb.__call__
_new: Any = object.__new__


class _ObservedCall(BoundVerb[Any, Any]):
    # A verb of one object, which tells of its calls. Its docstring is the verb's.
    __doc__ = vars(BoundVerb)["__doc__"]
    __slots__ = ("operation",)
    operation: Operation

    def __call__(self, *args: object, **kwargs: Any) -> Any:
        operation = self.operation
        telemetry = operation.telemetry
        # Most programs have no SDK, and most calls have no context that an item could carry. Such a call looks at the
        # context, and enters no other function that a plain call does not enter.
        if (telemetry.clock() < telemetry.silent_until or telemetry.is_silent()) and not (
            operation.sends and get_current()
        ):
            try:
                begun = self.body(*args, **kwargs)
            except TypeError:
                return _plain_call(self, *args, **kwargs)  # it raises the error again, and may explain it
            return run(begun)
        told = operation.begin(self.body.__self__, args, kwargs)  # type: ignore[attr-defined]
        if told is None:
            return _plain_call(self, *args, **kwargs)
        with told:
            told.result = result = _plain_call(self, *args, **told.kwargs)
        return result

    aio = _ObservedAio()  # type: ignore[misc]


vars(_ObservedCall)["__call__"].__signature__ = False  # as that of `BoundVerb`


class ObservedVerb(PlainVerb):
    """The descriptor of a verb that tells of its calls."""

    def __init__(self, plain: PlainVerb, operation: Operation) -> None:
        super().__init__(plain._steps)
        self.plain = plain
        self._operation = operation

    def __get__(self, instance: object, owner: object) -> Any:
        if instance is None:
            return self
        bound = _new(_ObservedCall)
        bound.body = MethodType(self._steps, instance)
        bound.operation = self._operation
        return bound


def takes_headers(target: object) -> bool:
    """Return whether the `enqueue` of an object takes headers."""
    enqueue = getattr(type(target), "enqueue", None)
    if enqueue is None:
        return False
    parameters = inspect.signature(enqueue).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return takes_headers(_source_of(target))
    return "headers" in parameters


def _source_of(layer: object) -> object:
    """Return the layer that a layer of results or groups enqueues into."""
    return getattr(getattr(layer, "_groups", layer), "_source", None)


def name_of(instance: object) -> str:
    """Return the name of the queue of a layer's object."""
    layout = getattr(instance, "layout", None)
    if layout is None:
        instance = getattr(getattr(instance, "task", instance), "lane", instance)  # of a task, or of a call of one
        queue = getattr(instance, "queue", None) or getattr(getattr(instance, "leases", None), "queue", None)
        layout = getattr(queue, "layout", None)
    return "" if layout is None else queue_text(layout.prefix)


def note_waits(telemetry: Telemetry, queue: str, taken: Sequence[object]) -> None:
    """Record how long leased items have waited since their enqueue."""
    now = None
    for lease in taken:
        at = getattr(lease, "enqueued_at", None)
        if at is not None and getattr(lease, "attempt", 0) == 1:
            now = now or time.time()
            attributes = {"messaging.system": "fdbqueue", "messaging.destination.name": queue}
            telemetry.waits.record(max(0.0, now - at), attributes)


def _number_sent(name: str, result: object, error: BaseException | None) -> int:
    if name == "enqueue":
        return 1
    if isinstance(error, BulkInterrupted):
        return error.report.items
    if error is not None:
        return 0
    items = getattr(result, "items", result)
    return items if isinstance(items, int) else len(items) if hasattr(items, "__len__") else 0


def _taken(result: object) -> Sequence[object]:
    if result is None:
        return ()
    return result if isinstance(result, list | tuple) else (result,)


def _position_of(told: object) -> str | None:
    text = getattr(getattr(told, "position", told), "text", None)
    return text if isinstance(text, str) else None


def _subscription_of(instance: object) -> dict[str, str]:
    if type(instance).__name__ != "Subscription":
        return {}
    return {"messaging.destination.subscription.name": str(getattr(instance, "name", ""))}
