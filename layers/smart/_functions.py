"""The functions of message types: `key`, `expires`, `deadline` and `confirms`.

They are user code, called when a message is enqueued or taken. They are treated like checks: they have a time limit. If
one raises, or returns an invalid value, the error names the function and its type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, cast

from fdbqueue import CheckFailed, Position

from ..leases.times import LONGEST_SECONDS
from ._time_limit import TimeLimitExceeded, within
from ._types import MessageType

FUNCTION_SECONDS = 1.0
"""How long the functions of one message may take together."""
NEW = "a new message; it was not enqueued, and nothing was written"
"""Describes the message in errors."""


class Time(NamedTuple):
    """The time at which a message expires, or its deadline."""

    us: int
    """Microseconds; 0: never."""
    is_duration: bool
    """Whether `us` counts from the enqueue; else it is a time of the clock."""

    def at_us(self, now_us: int) -> int:
        """Return the time of the clock for a message that is enqueued now; 0: never."""
        return now_us + self.us if self.is_duration and self.us else self.us


class Given(NamedTuple):
    """Results of a type's functions for one message."""

    key: Any
    expires: Time
    deadline: Time


_NEVER = Time(0, False)


class Functions:
    """Calls the functions of some types.

    Args:
        types: the types.
        seconds: how long the functions of one message may take together.
    """

    __slots__ = ("_seconds", "_takes_now", "predicates")

    def __init__(self, types: Iterable[MessageType], seconds: float = FUNCTION_SECONDS) -> None:
        self._seconds = seconds
        callables = {own.name: own.expires for own in types if callable(own.expires)}
        self._takes_now = {name for name, function in callables.items() if takes(function, 2)}
        self.predicates = {name: partial(self._ask, name, function) for name, function in callables.items()}
        """By type: the predicate, called with a message and the time. These calls have no time limit or error check."""

    def of(self, own: MessageType, message: Any, now_us: int, *, whose: str = NEW) -> Given:
        """Return the results of a type's functions for a message.

        Raises:
            CheckFailed: a function raised, did not return in time, or returned an invalid value.
        """
        if own.key is None and not callable(own.expires) and not callable(own.deadline):
            return Given(None, _duration(own.expires), _duration(own.deadline))
        expires, deadline = self.predicates.get(own.name), own.deadline
        at = ["key"]

        def call() -> tuple[Any, Any, Any]:
            key = None if own.key is None else own.key(message)
            at[0] = "expires"
            ends = None if expires is None else expires(message, now_us)
            at[0] = "deadline"
            return key, ends, deadline(message) if callable(deadline) else None

        key, ends, due = self._within(own, at, call, whose)
        return Given(
            _not_awaited(own, "key", key, whose),
            # A predicate returned a bool here, and runs again at each use.
            _duration(own.expires) if expires is None else self._time(own, "expires", ends, whose, bool_is_never=True),
            self._time(own, "deadline", due, whose) if callable(deadline) else _duration(deadline),
        )

    def key(self, own: MessageType, message: Any, *, whose: str) -> Any:
        """Return a message's relation key; otherwise as `of`."""
        if own.key is None:
            return None
        return _not_awaited(own, "key", self._within(own, ["key"], partial(own.key, message), whose), whose)

    def confirms(self, own: MessageType, message: Any) -> Any:
        """Return the result of the type's `confirms` for a message."""
        function: Callable[[Any], Any] | None = own.confirms
        if function is None:
            return None
        return _not_awaited(own, "confirms", self._within(own, ["confirms"], partial(function, message), NEW), NEW)

    def is_over(self, own: MessageType, message: Any, now_us: int, position: Position) -> bool:
        """Return whether the type's predicate says that an item, which is about to be taken, is outdated."""
        predicate = self.predicates.get(own.name)
        if predicate is None:
            return False
        whose = f"the item {position}; it stays where it is"
        return self._within(own, ["expires"], partial(predicate, message, now_us), whose, position) is True

    def _ask(self, name: str, function: Callable[..., Any], message: Any, now_us: int) -> Any:
        return function(message, now_us / 1e6) if name in self._takes_now else function(message)

    def _within(
        self, own: MessageType, at: list[str], call: Callable[[], Any], whose: str, position: Position | None = None
    ) -> Any:
        try:
            return within(self._seconds, call)
        except TimeLimitExceeded as error:
            why = f"it did not return within {self._seconds} seconds"
            raise failed(own.name, at[0], why, whose, position) from error
        except Exception as error:
            raise failed(own.name, at[0], f"it raised {type(error).__name__}: {error}", whose, position) from error

    def _time(self, own: MessageType, what: str, given: Any, whose: str, *, bool_is_never: bool = False) -> Time:
        if given is None or (bool_is_never and isinstance(given, bool)):
            return _NEVER
        _not_awaited(own, what, given, whose)
        if isinstance(given, bool) or not isinstance(given, Real) or given != given:  # NaN
            wanted = "a time of the clock in seconds, None for never" + (", or a bool" if bool_is_never else "")
            raise failed(own.name, what, f"it returned {given!r}, and not {wanted}", whose)
        seconds = LONGEST_SECONDS if cast(float, given) > LONGEST_SECONDS else max(0.0, float(given))
        return Time(max(1, int(seconds * 1e6)), is_duration=False)


def failed(name: str, what: str, why: str, whose: str, position: Position | None = None) -> CheckFailed:
    """Return the error of a function that failed."""
    text = f"The function {what!r} of the message type {name!r} failed: {why}. That was for {whose}."
    return CheckFailed(text, type=name, position=position)


def takes(function: Callable[..., Any], arguments: int, **named: None) -> bool:
    """Return whether a function can be called with this number of arguments; False if it has no signature."""
    try:
        inspect.signature(function).bind(*[None] * arguments, **named)
    except (TypeError, ValueError):
        return False
    return True


def _not_awaited(own: MessageType, what: str, given: Any, whose: str) -> Any:
    if inspect.iscoroutine(given):
        given.close()
        raise failed(own.name, what, "it returned a coroutine, which is not awaited", whose)
    return given


def _duration(seconds: Any) -> Time:
    return _NEVER if seconds is None or callable(seconds) else Time(int(seconds * 1e6), is_duration=True)
