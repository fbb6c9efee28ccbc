"""Shared helpers for tests of consumers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tests.helpers.staging import PATIENCE_SECONDS


async def until(condition: Callable[[], object]) -> None:
    """Wait for what a consumer in the running loop, or one of its threads, does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_SECONDS} seconds"
        await asyncio.sleep(0.002)


def left_over() -> list[str]:
    """Return the names of the tasks and threads that a consumer has left behind, for a running loop."""
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    return [*tasks, *consumer_threads()]


def consumer_threads() -> list[str]:
    """Return the names of the threads that run consumers have."""
    kinds = ("fdbqueue-extend", "fdbqueue-ack", "fdbqueue-renew", "fdbqueue-handler")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(kinds)]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what consumers have logged so far."""
    return [record.getMessage() for record in caplog.records if record.name == "fdbqueue.layers.consumer"]
