"""Run a function of a test in a process of its own, and kill it the hard way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

# A child has nothing of the test's but what it is given, like a stranger's process. It is forked from a server that has
# imported modules and opened nothing: an import takes much longer than most of what children do.
_serving = multiprocessing.get_context("forkserver")
_PRELOADED = ["tests.helpers.preloaded"]
_serving.set_forkserver_preload(_PRELOADED)
_spawning = multiprocessing.get_context("spawn")


def preload(*modules: str) -> None:
    """Let the server import more modules, for children that all need them. It must not have started yet."""
    _serving.set_forkserver_preload([*_PRELOADED, *modules])


class Processes:
    """The processes that one test started.

    Args:
        fresh: whether each one imports the library itself.
    """

    def __init__(self, *, fresh: bool = False) -> None:
        self._context: Any = _spawning if fresh else _serving
        self._started: list[BaseProcess] = []
        self._kept: list[Any] = []
        """What the processes were given: an event goes with its last owner, and a process may not have it yet."""

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
        process: BaseProcess = self._context.Process(target=_work, args=(dict(os.environ), function, args), daemon=True)
        self._kept.append(args)
        process.start()
        self._started.append(process)
        return process

    def run(self, function: Callable[..., object], *args: Any, timeout: float = 600.0) -> None:
        """Run `function(*args)` to its end; fail if it failed or took longer than `timeout` seconds."""
        process = self.start(function, *args)
        process.join(timeout)
        assert process.exitcode == 0, f"{function.__name__} ended with {process.exitcode}"

    def queue(self) -> Any:
        """Make a queue to talk to the processes through."""
        return self._context.Queue()

    def event(self) -> Any:
        """Make an event that the processes can set and wait for."""
        return self._context.Event()


def _work(environment: dict[str, str], function: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Run a function with the variables of the test, which may be newer than the server."""
    os.environ.clear()
    os.environ.update(environment)
    function(*args)


def kill_9(process: BaseProcess) -> None:
    """End `process` where it stands: no handler, no `finally`, no flush."""
    process.kill()
    process.join()


def stop_here() -> None:
    """Stop this process, with all its threads, where the calling thread stands, until SIGCONT.

    `os.kill` gives the signal to the main thread. Until that one runs, the calling thread goes on, and releases its
    locks.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
