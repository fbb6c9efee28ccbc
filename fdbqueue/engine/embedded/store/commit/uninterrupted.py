"""What Ctrl-C must not leave half done."""

from __future__ import annotations

import threading
from collections.abc import Callable


def uninterrupted(action: Callable[[], None]) -> None:
    """Run `action` to its end, and raise what interrupts the calling thread meanwhile behind that.

    Python lets signals interrupt the main thread only, so another one does it. Who is interrupted once more no longer
    waits for it.
    """
    if threading.current_thread() is not threading.main_thread():
        action()
        return
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            failures.append(error)

    thread = threading.Thread(target=run, name="fdbqueue-uninterrupted", daemon=True)
    try:
        thread.start()
        thread.join()
    except BaseException as error:
        if thread.ident is not None:
            thread.join()
        elif isinstance(error, RuntimeError):  # no more threads, or the interpreter ends
            action()
            return
        raise
    if failures:
        raise failures[0]
