"""Threads that do work for callers that have gone. A process that ends waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from fdbqueue.engine.steps import Steps, run

_log = logging.getLogger("fdbqueue.engine")

_AT_WORK: set[threading.Thread] = set()
"""The threads that finish work of this process for callers that have gone."""
FINISH_SECONDS = 5.0
"""How long a process that ends waits for work that others depend on: the longest time of a transaction."""


def in_thread(steps: Steps[Any]) -> None:
    """Run `steps` in a new thread, for callers that can't wait. Their errors are only logged."""
    start(run, steps)


def unfinished() -> list[threading.Thread]:
    """Return the threads that finish calls of this process that were cancelled: they may put items back."""
    return [thread for thread in _AT_WORK.copy() if thread.is_alive()]  # none is in a forked child


def start(target: Callable[..., object], *args: Any) -> None:
    """Start a thread that the ending process waits for, up to a limit: the database may not answer."""

    def work() -> None:
        try:
            target(*args)
        except Exception:  # noqa: BLE001 - no caller is left to get it
            _log.info("Work for a call that was cancelled has failed.", exc_info=True)
        finally:
            _AT_WORK.discard(thread)

    thread = threading.Thread(target=work, name="fdbqueue-finish", daemon=True)
    _AT_WORK.add(thread)
    thread.start()
    # At its end, a process waits for threads that are not daemons, before the cluster's client is stopped.
    threading.Thread(target=thread.join, args=(FINISH_SECONDS,), name="fdbqueue-finishing").start()
