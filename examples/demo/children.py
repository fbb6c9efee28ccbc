"""The demo's processes: started, watched, and started again when something kills them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from examples.demo.errors import DemoError

MAX_RESTARTS = 20
WATCH_SECONDS = 0.1
_LOG_TAIL_LINES = 15


class Child:
    """A process of the demo that runs a module of it."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self.restarts = 0
        self._command = [sys.executable, "-m", f"examples.demo.{module}", *arguments]
        self._log = folder / f"{name.replace(' ', '-')}.log"
        self._log.write_bytes(b"")
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_done(self) -> bool:
        """Return whether the process has finished. Start it again if it was killed.

        Raises:
            DemoError: it failed on its own, or was killed too often.
        """
        code = self._process.poll()
        if code is None:
            return False
        if code == 0:
            return True
        if code > 0 or self.restarts >= MAX_RESTARTS:
            raise DemoError(f"The {self.name} {_ending(code)}. The end of {self._log}:\n{self._tail()}")
        self.restarts += 1
        self._process = self._start()
        return False

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process, for at most `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name} again and again"


@contextmanager
def running(children: list[Child]) -> Iterator[list[Child]]:
    """Stop the children that still run at the end of the block."""
    try:
        yield children
    finally:
        for child in children:
            child.stop()


def watch(children: Sequence[Child], look: Callable[[], None]) -> None:
    """Call `look` repeatedly until all children are done."""
    while True:
        left = [child for child in children if not child.is_done()]
        look()
        if not left:
            return
        left[0].wait(WATCH_SECONDS)
