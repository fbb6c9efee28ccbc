"""LEVEL 3: telemetry by OpenTelemetry, and figures for Prometheus.

In here: `instrument` makes the verbs and the consumers of this process tell OpenTelemetry what they do; a
`MetricsServer` tells Prometheus how the queues are. Who may use it: programs, and the command line. It looks at the
layers from outside: they do not know it, and without a call of `instrument` no call costs anything. It never writes to
a database.

The packages are imported when they are needed: the extra `otel` has opentelemetry-api, `metrics` prometheus-client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdbqueue.observe.instrumenting import FdbqueueInstrumentor, instrument, uninstrument
    from fdbqueue.observe.serving import MetricsServer

_MODULES = {
    "FdbqueueInstrumentor": "instrumenting",
    "MetricsServer": "serving",
    "instrument": "instrumenting",
    "uninstrument": "instrumenting",
}

__all__ = ["FdbqueueInstrumentor", "MetricsServer", "instrument", "uninstrument"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
