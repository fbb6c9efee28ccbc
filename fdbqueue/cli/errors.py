"""How a command fails: a sentence on standard error, and an exit code that a script can act on."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.errors import (
    BulkInterrupted,
    ChecksBypassed,
    CodecError,
    FdbQueueError,
    FormatError,
    ItemTooLarge,
    LeaseLost,
    OrderError,
    SelectorError,
    SubscriptionError,
    UrlError,
)

EMPTY = 1
"""There was no item, or the check found something wrong."""
USAGE = 2
"""The command line itself is wrong."""
ENGINE = 3
"""The database can't be used, or refused; or standard input can't be read, or the answer written."""
VALUE = 4
"""A value is not what the queue's codec takes, or a stored one can't be read."""

LOST = 5
"""A lease is lost."""

EXIT_CODES_HELP = (
    "Exit codes: 0 done; 1 the queue is empty, or the check failed; 2 usage; 3 the database failed, or"
    " standard input or output; 4 a value can't be encoded or decoded; 5 a lease is lost."
)


class BadValue(FdbQueueError, ValueError):
    """A value given to a command is not what the codec takes."""


class OutputFailed(FdbQueueError):
    """Standard output can't be written."""


class Commands(TyperGroup):
    """The group of all commands; turns the library's errors into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            for note in getattr(error, "__notes__", ()):
                typer.echo(note, err=True)
            raise
        except (FdbQueueError, FDBError, ValueError) as error:
            if not isinstance(error.__cause__, BrokenPipeError):  # who reads no more wants to hear no more
                typer.echo(f"Error: {told(error)}", err=True)
            raise typer.Exit(exit_code_of(error)) from error


def told(error: BaseException) -> str:
    """Say what went wrong, also where the binding's own errors say it in bytes."""
    if not isinstance(error, FDBError):
        return str(error)
    if error.code == TRANSACTION_TIMED_OUT:
        return "The database did not answer in time. Whether it did what it was asked for is not known; look again."
    description: str | bytes = error.description
    text = description.decode() if isinstance(description, bytes) else description
    return f"{text} ({error.code})."


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error of the library's."""
    if isinstance(error, BulkInterrupted) and error.__cause__ is not None:
        return exit_code_of(error.__cause__)
    if isinstance(error, UrlError | OrderError | ChecksBypassed | SelectorError | SubscriptionError):
        return USAGE
    if isinstance(error, BadValue | CodecError | FormatError | ItemTooLarge):
        return VALUE
    if isinstance(error, LeaseLost):
        return LOST
    # A ValueError that is none of ours is the library's word for an argument that it doesn't take.
    return ENGINE if isinstance(error, FdbQueueError | FDBError) else USAGE
