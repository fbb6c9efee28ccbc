"""Signals that ask a command to stop. It reacts only where it can stop without losing items that it has taken."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from fdbqueue.cli.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INSISTS_AFTER_SECONDS = 1.0
"""A second signal ends the command at once only after this time: some terminals and wrappers send a signal twice."""


class StopSignals:
    """A context manager that notes the first signal to stop; `check` raises then.

    A second signal, a second or more later, raises KeyboardInterrupt at once. Ignored signals stay ignored, as `nohup`
    and a shell's background jobs require.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise if a signal has come.

        Raises:
            Stopped: a signal has come.
        """
        if self._number is not None:
            raise Stopped(self._number)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._number is None:
            self._number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= INSISTS_AFTER_SECONDS:
            raise KeyboardInterrupt
