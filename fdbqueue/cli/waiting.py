"""Wait for the end of items or of a group, and exit with a code that says how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.values import encode_json, to_json
from fdbqueue.errors import CompletionError
from fdbqueue.layers.results import Completion

T = TypeVar("T")

LOOK_SECONDS = 10.0
"""The longest wait in one call. It is shorter than the time that a transaction may take, which also ends watches."""
EXIT_CODES = {"dead": errors.DEAD, "expired": errors.EXPIRED}
"""The exit codes for ends without a result. Every other such end is `errors.REMOVED`."""


Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="[SECONDS]",
        min=0,
        show_default=False,
        help="Wait for the end, so many seconds at most. Default: no limit.",
    ),
]


def until_ended(wait: Callable[..., T], deadline: float) -> T:
    """Return what `wait` returns. It is called with a timeout, again and again.

    Args:
        deadline: the end of the wait by `time.monotonic`; infinity: no limit.

    Raises:
        TimeoutError: the time is over.
    """
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return wait(timeout=min(left, LOOK_SECONDS))
        except TimeoutError:
            if left <= LOOK_SECONDS:
                raise


def print_results(completions: Iterable[Completion[Any]], seconds: float, *, as_json: bool) -> int:
    """Wait for items, and print the result of each. Return the exit code: that of the first one that has no result.

    Args:
        seconds: the longest wait for all of them.
        as_json: whether to print how each item ended, as an object, in place of its result.
    """
    deadline = time.monotonic() + seconds
    first = 0
    for completion in completions:
        code, told = 0, {"item": str(completion)}
        try:
            with noted(f"The item {completion} is enqueued. Its result was not printed."):
                result = until_ended(completion.wait, deadline)
            told |= {"state": "done", "result": to_json(result, CodecName.msgpack)}
        except CompletionError as error:
            code = EXIT_CODES.get(error.outcome, errors.REMOVED)
            told |= {"state": error.outcome, "error": error.error}
            typer.echo(f"Error: {error}", err=True)
        except TimeoutError:
            code = errors.TIMED_OUT
            told |= {"state": "pending"}
            typer.echo(f"Error: The item {completion} is enqueued, and has not ended in {seconds:g} s.", err=True)
        if as_json or not code:
            write_lines([encode_json(told if as_json else told["result"]).encode() + b"\n"])
        first = first or code
    return first
