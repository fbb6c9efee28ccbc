"""How a command fails: a sentence on standard error, and an exit code for scripts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from fdbqueue.cli.remedies import in_shell
from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, text_of
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
    NestedQueue,
    OrderError,
    QueueFull,
    QueueRenamed,
    SelectorError,
    SessionClosed,
    StreamError,
    SubscriptionError,
    TransferError,
    UnknownQueue,
    UrlError,
)

EMPTY = 1
USAGE = 2
ENGINE = 3
VALUE = 4
LOST = 5
DEAD = 6
EXPIRED = 7
REMOVED = 8
TIMED_OUT = 9
FULL = 10

CODES = {
    0: "done",
    EMPTY: "there was no item, or nothing to do; the check found something wrong;"
    " or `agents run --once` left an item unconfirmed",
    USAGE: "wrong usage; or there is no such queue, or it has another name now, or its name lies within another's",
    ENGINE: "the database, a file, standard input or standard output failed",
    VALUE: "a value can't be encoded or decoded",
    LOST: "a lease is lost",
    DEAD: "after a wait: the item is a dead letter",
    EXPIRED: "after a wait: the item expired",
    REMOVED: "after a wait: the item or its group was cancelled or removed",
    TIMED_OUT: "after a wait: the time is over",
    FULL: "the queue is full, or its session is closing: try again later",
}
"""Every exit code, and its meaning. Besides, 128 + N: stopped by signal N."""

EXIT_CODES_HELP = (
    "Exit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in CODES.items())
    + "; 128 + N stopped by signal N."
)


@contextmanager
def system_errors() -> Iterator[None]:
    """End the command with a sentence if the system refuses a file or an address."""
    try:
        yield
    except OSError as error:
        told = error.strerror or str(error)
        typer.echo(f"Error: {error.filename}: {told}" if error.filename else f"Error: {told}", err=True)
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


class Interrupted(KeyboardInterrupt):
    """A signal interrupted the command, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__(f"Stopped by {signal.Signals(number).name}.")
        self.number = number


class Commands(TyperGroup):
    """The group of all commands. It turns signals and the library's errors into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        from fdbqueue.cli.stopping import Interrupts  # it imports this module

        try:
            with Interrupts():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
            for line in (*getattr(error, "__notes__", ()), f"Error: {stopped}"):
                typer.echo(line, err=True)
            raise typer.Exit(128 + stopped.number) from error
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
        return in_shell(str(error))
    if error.code == TRANSACTION_TIMED_OUT:
        return "The database did not answer in time. The command may have taken effect. Look before you repeat it."
    return f"{text_of(error)}."


_CODE_OF: dict[type[BaseException], int] = {
    UrlError: USAGE,
    OrderError: USAGE,
    ChecksBypassed: USAGE,
    SelectorError: USAGE,
    SubscriptionError: USAGE,
    GroupError: USAGE,
    StreamError: USAGE,
    TransferError: USAGE,
    UnknownQueue: USAGE,
    QueueRenamed: USAGE,
    NestedQueue: USAGE,
    BadValue: VALUE,
    CodecError: VALUE,
    FormatError: VALUE,
    ItemTooLarge: VALUE,
    LeaseLost: LOST,
    QueueFull: FULL,
    SessionClosed: FULL,
    FdbQueueError: ENGINE,
    FDBError: ENGINE,
}
"""The exit code of each error. An error has the code of its nearest class that is named here."""


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error of the library's."""
    if isinstance(error, BulkInterrupted) and error.__cause__ is not None:
        return exit_code_of(error.__cause__)
    if isinstance(error, Stopped):
        return 128 + error.number
    if isinstance(error, AgentError) and error.step == "confirm" and error.received:
        return LOST
    if isinstance(error, TransferError) and isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
        return ENGINE  # the disk refused
    for kind in type(error).__mro__:
        if kind in _CODE_OF:
            return _CODE_OF[kind]
    return USAGE  # a ValueError that is not one of ours: the library does not take an argument
