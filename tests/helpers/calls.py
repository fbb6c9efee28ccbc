"""Which Python functions an action enters: counts are exact, where times are noisy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def entering(counts: Callable[[str], bool] = bool) -> Iterator[list[str]]:
    """List the functions that this thread enters or resumes.

    Args:
        counts: whether the functions of a file count; all of them by default.
    """
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and counts(code.co_filename):
            entered.append(f"{code.co_filename}:{code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(before)


def python_calls(action: Callable[[], object]) -> int:
    """Return how many Python functions an action enters or resumes."""
    with entering() as entered:
        action()
    return len(entered)
