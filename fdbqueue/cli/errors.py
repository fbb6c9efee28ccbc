"""How a command ends: a sentence on standard error, and an exit code for scripts. Signals are among the reasons.

Ctrl-C, SIGTERM and SIGHUP raise `Interrupted`, so a command ends with a message that says what it has done. A command
that holds items which it has taken reacts only where it can stop without losing them: it uses `StopSignals`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import typer
from typer.core import TyperGroup

from fdbqueue.base.reprs import counted
from fdbqueue.cli.helptext import in_shell
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
from fdbqueue.stored.policies import PolicyWarning

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


def tell(text: str = "") -> None:
    """Say something on standard error."""
    typer.echo(text, err=True)


def end(code: int = EMPTY) -> NoReturn:
    """End the command with an exit code."""
    raise typer.Exit(code)


def end_if(wrong: object, code: int = EMPTY) -> None:
    """End the command with an exit code, if something is true."""
    if wrong:
        raise typer.Exit(code)


def refuse(text: str, hint: str | None = None) -> NoReturn:
    """Refuse the command as wrong usage of the argument that `hint` names."""
    raise typer.BadParameter(text, param_hint=hint)


def refuse_if(wrong: object, text: str, hint: str | None = None) -> None:
    """Refuse the command as wrong usage, if something is true."""
    if wrong:
        refuse(text, hint)


@contextmanager
def refused(
    hint: str | None = None, kinds: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """Turn errors of some kinds into wrong usage of the argument that `hint` names."""
    try:
        yield
    except kinds as error:
        refuse(str(error), hint)


@contextmanager
def system_errors() -> Iterator[None]:
    """End the command with a sentence if the system refuses a file or an address."""
    try:
        yield
    except OSError as error:
        told = error.strerror or str(error)
        tell(f"Error: {error.filename}: {told}" if error.filename else f"Error: {told}")
        end(ENGINE)


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


def _told_here(usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Say on standard error what the library warns of: it is about no line of a program."""
    if issubclass(category, PolicyWarning):
        tell(f"Warning: {in_shell(str(message))}")
    else:
        usual(message, category, *place)


class Commands(TyperGroup):
    """The group of all commands. It turns signals and the library's errors into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with Interrupts(), warnings.catch_warnings():
                warnings.showwarning = partial(_told_here, warnings.showwarning)
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            stopped = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
            for line in (*getattr(error, "__notes__", ()), f"Error: {stopped}"):
                tell(line)
            end(128 + stopped.number)
        except (FdbQueueError, FDBError, ValueError) as error:
            if not isinstance(error.__cause__, BrokenPipeError):  # a reader that closed the pipe needs no message
                tell(f"Error: {told(error)}")
            end(exit_code_of(error))


class DoneItems:
    """Counts the items that a command has done with, and tells their number if the command ends early.

    Args:
        done: what happened to them, as in "acked".
        none: how a sentence about none of them begins; "": a wrong value is told without their number.
    """

    def __init__(self, done: str, none: str = "0 items were") -> None:
        self.done = done
        self._none = none
        self.items = 0
        self.more = ""
        """What else to say of them at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = f"{counted(self.items, 'item was', 'items were') if self.items else self._none} {self.done}"
        if isinstance(error, BadValue) and self._none:
            raise BadValue(f"{error} {told}.") from error
        if isinstance(error, FdbQueueError | FDBError | KeyboardInterrupt) and self.items:
            tell(f"{told} before.")


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
