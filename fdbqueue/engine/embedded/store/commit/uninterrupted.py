"""Run an action completely, even if Ctrl-C interrupts the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


def uninterrupted(action: Callable[[], None]) -> None:
    """Run `action` to its end; raise an interrupt of the calling thread only afterwards.

    Python delivers signals to the main thread only, so another thread runs the action. After a second interrupt the
    caller no longer waits for it.
    """
    if threading.current_thread() is not threading.main_thread():
        action()
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="fdbqueue-uninterrupted", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException as error:
        if thread.ident is not None:
            thread.join()
        elif isinstance(error, RuntimeError):  # no more threads, or the interpreter is shutting down
            action()
            return
        raise
    if failures:
        raise failures[0]
