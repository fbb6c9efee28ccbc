"""Signals that ask a command to stop, heard only where it can stop without losing what it has taken."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from fdbqueue.cli.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INSISTS_AFTER_SECONDS = 1.0
"""Only a later signal ends the command at once: some terminals and wrappers send the same one twice."""


class StopSignals:
    """Notes the first signal that asks to stop, while it is entered; `check` raises then.

    A second signal raises KeyboardInterrupt at once, if it comes a second later or more. Signals that were ignored stay
    ignored, as `nohup` and a shell's background jobs want it.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
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
            Stopped: one has.
        """
        if self._number is not None:
            raise Stopped(self._number)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._number is None:
            self._number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= INSISTS_AFTER_SECONDS:
            raise KeyboardInterrupt
