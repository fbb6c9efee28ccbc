"""How a command fails: a sentence on standard error, and an exit code for scripts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.errors import (
    AgentError,
    BulkInterrupted,
    ChecksBypassed,
    CodecError,
    FdbQueueError,
    FormatError,
    GroupError,
    ItemTooLarge,
    LeaseLost,
    OrderError,
    QueueRenamed,
    SelectorError,
    SubscriptionError,
    TransferError,
    UnknownQueue,
    UrlError,
)

EMPTY = 1
"""There was no item, or the check found something wrong."""
USAGE = 2
"""The command line itself is wrong."""
ENGINE = 3
"""The database is unusable or refused a call, standard input can't be read, or the answer can't be written."""
VALUE = 4
"""The queue's codec does not take a value, or a stored value can't be read."""

LOST = 5
"""A lease is lost."""
DEAD = 6
"""An item became a dead letter while the command waited for it."""
EXPIRED = 7
"""The time to live of an item was over while the command waited for it."""
REMOVED = 8
"""An item or its group was cancelled or removed while the command waited for it."""
TIMED_OUT = 9
"""The time to wait is over."""

EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 the queue is empty, or the check failed; 2 wrong usage; 3 the database, standard input or"
    " standard output failed; 4 a value can't be encoded or decoded; 5 a lease is lost; 128 + N stopped by signal N."
    " After a wait: 6 the item is a dead letter; 7 it expired; 8 it or its group was cancelled or removed; 9 the time"
    " is over."
)


@contextmanager
def system_errors() -> Iterator[None]:
    """End the command with a sentence if the system refuses a file or an address."""
    try:
        yield
    except OSError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(ENGINE) from error


class BadValue(FdbQueueError, ValueError):
    """The codec does not take a value that was given to a command."""


class OutputFailed(FdbQueueError):
    """Standard output can't be written."""


class Stopped(FdbQueueError):
    """A signal asked the command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name}.")
        self.number = number


class Commands(TyperGroup):
    """The group of all commands. It turns the library's errors into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            for note in getattr(error, "__notes__", ()):
                typer.echo(note, err=True)
            raise
        except (FdbQueueError, FDBError, ValueError) as error:
            if not isinstance(error.__cause__, BrokenPipeError):  # a reader that closed the pipe needs no message
                typer.echo(f"Error: {told(error)}", err=True)
            raise typer.Exit(exit_code_of(error)) from error


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Add `note` to a KeyboardInterrupt that comes meanwhile, for the user to read."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(note)
        raise


def told(error: BaseException) -> str:
    """Return the text of an error. The binding's own errors may have it as bytes."""
    if not isinstance(error, FDBError):
        return str(error)
    if error.code == TRANSACTION_TIMED_OUT:
        return "The database did not answer in time. The command may have taken effect. Look before you repeat it."
    description: str | bytes = error.description
    text = description.decode() if isinstance(description, bytes) else description
    return f"{text} ({error.code})."


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error of the library's."""
    if isinstance(error, BulkInterrupted) and error.__cause__ is not None:
        return exit_code_of(error.__cause__)
    if isinstance(error, Stopped):
        return 128 + error.number
    if isinstance(
        error,
        UrlError
        | OrderError
        | ChecksBypassed
        | SelectorError
        | SubscriptionError
        | GroupError
        | TransferError
        | UnknownQueue
        | QueueRenamed,
    ):
        return USAGE
    if isinstance(error, BadValue | CodecError | FormatError | ItemTooLarge):
        return VALUE
    if isinstance(error, LeaseLost) or (isinstance(error, AgentError) and error.step == "confirm" and error.received):
        return LOST
    # A ValueError that is not one of ours means that the library does not take an argument.
    return ENGINE if isinstance(error, FdbQueueError | FDBError) else USAGE
