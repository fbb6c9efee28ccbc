"""Run a function of a test in a process of its own, and kill it the hard way."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

# Spawned, not forked: the child has nothing of the parent's but what it is given, like a stranger's process.
_spawning = multiprocessing.get_context("spawn")


class Processes:
    """The processes that one test started."""

    def __init__(self) -> None:
        self._started: list[BaseProcess] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            if process.is_alive():
                kill_9(process)
            process.join()
            process.close()

    def start(self, function: Callable[..., object], *args: Any) -> BaseProcess:
        """Start `function(*args)`, an importable function, and return its process."""
        process = _spawning.Process(target=function, args=args, daemon=True)
        process.start()
        self._started.append(process)
        return process

    def run(self, function: Callable[..., object], *args: Any, timeout: float = 60.0) -> None:
        """Run `function(*args)` to its end; fail if it failed or took longer than `timeout` seconds."""
        process = self.start(function, *args)
        process.join(timeout)
        assert process.exitcode == 0, f"{function.__name__} ended with {process.exitcode}"

    def queue(self) -> Any:
        """Make a queue to talk to the processes through."""
        return _spawning.Queue()

    def event(self) -> Any:
        """Make an event that the processes can set and wait for."""
        return _spawning.Event()


def kill_9(process: BaseProcess) -> None:
    """End `process` where it stands: no handler, no `finally`, no flush."""
    if process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
