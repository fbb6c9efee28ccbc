"""Ctrl-C at any place: a run for each line that a call executes, with an interruption at that one."""

from __future__ import annotations

import gc
import linecache
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupted_at_each_line(call: Callable[[], Any], *, of: tuple[str, ...], then: Callable[[str], None]) -> int:
    """Call again and again, each time interrupted one line later, until it comes to its end; return how often.

    Args:
        call: what is interrupted.
        of: the ends of the names of the files whose lines count.
        then: called after each interruption, with the place where it was.
    """
    runs = 0
    while (place := _interrupted_at(call, of, runs)) is not None:
        runs += 1
        then(place)
    return runs


_NEVER_INTERRUPTED = ("with", "try:")
"""Python comes back to a `with`'s line to leave it, and a `try` by itself does nothing: no signal is handled there. An
exception raised there by tracing would pass by what the `with` or an outer `try` is for."""


def _line(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _interrupted_at(call: Callable[[], Any], of: tuple[str, ...], number: int) -> str | None:
    passed = 0
    place: str | None = None

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal passed, place
        if place is not None or not frame.f_code.co_filename.endswith(of):
            return None
        if event == "line" and not _line(frame).startswith(_NEVER_INTERRUPTED):
            if passed == number:
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
            passed += 1
        return trace

    before = sys.gettrace()
    with warnings.catch_warnings():
        # An interruption between a call that makes a coroutine and its first step leaves one that has done nothing.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        gc.collect(0)
    return place
