"""Turn telemetry on and off, for the whole process."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import fdbqueue.layers
from fdbqueue import Queue
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.errors import on_retry
from fdbqueue.engine.verb import Verb
from fdbqueue.layers.common.handlers import Acked, around_all, on_acked
from fdbqueue.layers.leases import Disposition
from fdbqueue.layers.leases.done import FollowUp
from fdbqueue.layers.leases.timers import Reclaimed, on_reclaimed
from fdbqueue.lowlevel import Layout
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.shapes import Due

try:
    from opentelemetry import trace as _trace  # noqa: F401 - before the modules that need it
except ImportError as error:
    raise ImportError(
        "Telemetry needs opentelemetry-api: pip install 'fdbqueue[otel]'. To see what it tells, install"
        " opentelemetry-sdk and an exporter too."
    ) from error

from fdbqueue.observe.calls import VERBS, ObservedVerb, Operation, PlainVerb, takes_headers
from fdbqueue.observe.telemetry import Telemetry, TraceItems, carried, end, links_to

T = TypeVar("T")
KNOWN_RECLAIMS = 10_000
"""How many expired leases are known, so that a transaction that runs again counts none twice."""

_log = logging.getLogger("fdbqueue.observe")
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []


def instrument(*, tracer_provider: Any = None, meter_provider: Any = None) -> None:
    """Make the verbs and the consumers of this process tell OpenTelemetry what they do.

    Call it once, before the work begins. A second call changes nothing.

    Args:
        tracer_provider, meter_provider: OpenTelemetry's providers; None: the global ones, also if the program sets them
            later.

    Raises:
        ImportError: opentelemetry-api is missing.
    """
    with _lock:
        if _undo:
            _log.warning("This process is instrumented already.")
            return
        telemetry = Telemetry(tracer_provider, meter_provider)
        for kind, name, plain in _verbs():
            _replace(kind, name, ObservedVerb(plain, Operation(telemetry, plain, name)))
        _replace(FollowUp, "hold", _with_context(FollowUp.hold))
        _replace(FollowUp, "carry_out", _with_context(FollowUp.carry_out))
        _replace(FollowUp, "__init__", _noting_context(FollowUp.__init__))
        _add(around_all, TraceItems(telemetry))
        _add(on_acked, _Acks(telemetry).tell)
        _add(on_reclaimed, _Reclaims(telemetry).tell)
        _add(on_retry, telemetry.retried)


def uninstrument() -> None:
    """Let the verbs and consumers tell nothing again."""
    with _lock:
        while _undo:
            _undo.pop()()


class FdbqueueInstrumentor:
    """`instrument` and `uninstrument` as OpenTelemetry's own instrumentations have them.

    ``opentelemetry-instrument`` finds it by itself, if opentelemetry-api is there.
    """

    def instrument(self, **terms: object) -> None:
        """Instrument this process, with `tracer_provider` and `meter_provider` if they are given."""
        instrument(tracer_provider=terms.get("tracer_provider"), meter_provider=terms.get("meter_provider"))

    def uninstrument(self, **_: object) -> None:
        """End what `instrument` began."""
        uninstrument()

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that are instrumented."""
        return ("fdbqueue",)


def _verbs() -> Iterator[tuple[type, str, PlainVerb]]:
    """Yield each class that has a verb which tells, the verb's name, and the verb."""
    public = [getattr(fdbqueue.layers, name) for name in fdbqueue.layers.__all__]
    kinds = dict.fromkeys(base for one in (Queue, *public) if isinstance(one, type) for base in one.__mro__)
    for kind in kinds:
        for name in VERBS:
            if isinstance(plain := vars(kind).get(name), Verb):
                yield kind, name, plain


def _replace(kind: type, name: str, value: object) -> None:
    before = vars(kind)[name]
    setattr(kind, name, value)
    _undo.append(lambda: setattr(kind, name, before))


def _add(hooks: list[Any], hook: object) -> None:
    hooks.append(hook)
    _undo.append(lambda: hooks.remove(hook))


def _noting_context(plain: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: FollowUp, target: object, value: object, **terms: object) -> None:
        plain(self, target, value, **terms)
        _carry(self)

    return __init__


def _with_context(plain: Callable[[FollowUp, Transaction], T]) -> Callable[[FollowUp, Transaction], T]:
    """Return a method of a follow-up that carries the span that is current now, if none was when it was made."""

    def carry(self: FollowUp, tr: Transaction) -> T:
        own = FollowUp.__new__(FollowUp)
        own.target, own.value, own._terms = self.target, self.value, self._terms
        _carry(own)
        return plain(own, tr)

    return carry


def _carry(follow_up: FollowUp) -> None:
    terms = follow_up._terms
    headers = terms.get("headers")
    if takes_headers(follow_up.target) and (own := carried(headers)) is not headers:
        follow_up._terms = {**terms, "headers": own}


class _Acks:
    """Tells of the acks of consumers: many items in a transaction of a thread, and no call of a verb."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def tell(self, acked: Acked) -> None:
        if self._telemetry.is_silent():
            return
        name = queue_text(acked.queue.layout.prefix)
        count = {"messaging.batch.message_count": acked.items}
        end(self._telemetry.span("settle", "ack", name, links=links_to(acked.leases), attributes=count), None)
        self._telemetry.record("settle", "ack", name, seconds=acked.seconds, items=acked.items)
        self._telemetry.count(name, lost=acked.lost)


class _Reclaims:
    """Counts expired leases, and the dead letters among them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._known: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def tell(self, layout: Layout, reclaimed: Sequence[Reclaimed]) -> None:
        for one in reclaimed:
            key = (layout.prefix, one.position, one.attempt, one.session)
            if one.kind != Due.LEASE or key in self._known:
                continue
            self._known[key] = None
            if len(self._known) > KNOWN_RECLAIMS:
                self._known.popitem(last=False)
            self._telemetry.count(queue_text(layout.prefix), reclaims=1, dead=one.fate is Disposition.dead)
