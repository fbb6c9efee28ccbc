"""Which Python functions an action enters: counts are exact, where times are noisy."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import fdbqueue

_LIBRARY = os.path.dirname(fdbqueue.__file__) + os.sep


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

    with _seen_by(note):
        yield entered


@contextmanager
def _seen_by(note: Callable[[FrameType, str, object], object]) -> Iterator[None]:
    """Let a function see each call of this thread, without those of finalizers that the garbage collector runs."""
    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def python_calls(action: Callable[[], object]) -> int:
    """Return how many Python functions an action enters or resumes."""
    with entering() as entered:
        action()
    return len(entered)


def all_calls(action: Callable[[], object]) -> int:
    """Return how many functions an action enters or resumes, built-in ones included."""
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with _seen_by(note):
        action()
    return calls


@dataclass(frozen=True, slots=True)
class Way:
    """The way of an action through the library."""

    files: int
    """How many of its files the action enters."""
    calls: int
    """How many Python functions it enters or resumes, others than the library's included."""
    moves: int
    """How often it goes from one of its files to another, forth and back."""


def way_of(action: Callable[[], object]) -> Way:
    """Return the way of an action in this thread."""
    files: set[str] = set()
    calls = moves = 0
    here = ""

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls, moves, here
        if event == "call":
            calls += 1
            now = frame.f_code.co_filename
        elif event == "return":
            now = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        else:
            return
        if now.startswith(_LIBRARY):
            files.add(now)
            moves += here not in ("", now)
            here = now

    with _seen_by(note):
        action()
    return Way(len(files), calls, moves)
