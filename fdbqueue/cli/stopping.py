"""Signals that ask a command to stop.

Ctrl-C, SIGTERM and SIGHUP raise `Interrupted`, so a command ends with a message that says what it has done. A command
that holds items which it has taken reacts only where it can stop without losing them: it uses `StopSignals`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from fdbqueue.cli.errors import Interrupted, Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INSISTS_AFTER_SECONDS = 1.0
"""A second signal ends the command at once only after this time: some terminals and wrappers send a signal twice."""
AGAIN_SECONDS = 0.01
"""How soon an interrupt is raised again that a finalizer has swallowed."""


class Signals:
    """A context manager that handles the signals in `SIGNALS`, in the main thread.

    Ignored signals stay ignored, as `nohup` and a shell's background jobs require.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._number is None:
            self._number, self._since = number, time.monotonic()
            # The signal may come after a call has made a coroutine, and before it runs. That is no fault to warn of.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            self.first(number)
        elif time.monotonic() - self._since >= INSISTS_AFTER_SECONDS:
            raise Interrupted(number)

    def first(self, number: int) -> None:
        """React to the first signal. A second one, a second or more later, raises `Interrupted` at once."""


class StopSignals(Signals):
    """Notes the first signal; `check` raises then."""

    def check(self) -> None:
        """Raise if a signal has come.

        Raises:
            Stopped: a signal has come.
        """
        if self._number is not None:
            raise Stopped(self._number)


class OnSignals(Signals):
    """Calls a function at the first signal, to end a command that runs until a signal comes."""

    def __init__(self, stop: Callable[[], object]) -> None:
        super().__init__()
        self._stop = stop

    def first(self, number: int) -> None:
        """Stop the command."""
        self._stop()


class Interrupts(Signals):
    """Raises `Interrupted` at the first signal, wherever the command is.

    Python swallows an exception that is raised in a finalizer or in a weak reference's callback, and a signal may come
    there. Then it is raised again a moment later.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        self._hook: Callable[[Any], Any] = sys.unraisablehook
        if self._before:
            self._alarm = signal.signal(signal.SIGALRM, self._again)
            sys.unraisablehook = self._unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._alarm)
            sys.unraisablehook = self._hook
        super().__exit__(kind, error, trace)

    def first(self, number: int) -> None:
        """Interrupt the command."""
        raise Interrupted(number)

    def _unraisable(self, swallowed: sys.UnraisableHookArgs) -> None:
        if isinstance(swallowed.exc_value, Interrupted):
            # To raise it here would be in vain: Python swallows what this function raises, too.
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            self._hook(swallowed)

    def _again(self, *_: object) -> None:
        if self._number is not None:
            raise Interrupted(self._number)
