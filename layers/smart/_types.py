"""Message types: the rules of each type of messages, and the queued items that it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from ..common.handlers import not_awaited
from .limits import Limit

Key: TypeAlias = str | bytes | int | tuple[Any, ...] | None
"""Relates messages of the same type or of different types to each other."""
Seconds: TypeAlias = float | Callable[[Any], float | None] | None
"""A duration from the enqueue, or a function of the message that returns a time of the clock or None for never."""
Life: TypeAlias = Seconds | Callable[[Any], bool] | Callable[[Any, float], float | bool | None]
"""As `Seconds`. Or a predicate: a function that returns, at each use, whether the message is outdated. A function with
two arguments also gets the time, in seconds of the queue's clock."""
Confirmed: TypeAlias = str | tuple[str, Any]
"""A recipient; or a recipient and the name or `Position` of the copy that it confirms (`fdbqueue.layers.smart`)."""


@dataclass(frozen=True, slots=True)
class Sees:
    """The queued items that an incoming item is compared with, always in queue order."""

    types: tuple[str, ...] | None = None
    """Items of these types; None: of its own type."""
    same_key: bool = False
    """Only items with the incoming item's key."""
    all: bool = False
    """Items of every type."""


EVERYTHING = Sees(all=True)
"""The original pattern: every queued item is asked. It reads the whole queue, and conflicts with every change."""
OWN_TYPE = Sees()
"""Items of the incoming item's type."""
OWN_KEY = Sees(same_key=True)
"""Items of its type with its key."""
NOTHING = Sees(types=())
"""No item is asked: the incoming item is appended."""


def types(*names: str) -> Sees:
    """Return the scope of all items of some types."""
    return Sees(names)


def keyed(*names: str) -> Sees:
    """Return the scope of the items of some types that have the incoming item's key."""
    return Sees(names, same_key=True)


@dataclass(frozen=True, slots=True)
class MessageType:
    """A type of messages, and its rules.

    Its functions run with a time limit. If one raises, does not return, or returns an invalid value, the call raises
    `CheckFailed`, and nothing is written.

    Raises:
        TypeError: a rule has the wrong type, or is a coroutine function.
    """

    name: str
    """The name stored in each of its messages."""
    cls: type[Any] | None = None
    """Its class, a dataclass or a msgspec Struct; None: plain data, dicts whose "type" is `name`."""
    check: Callable[..., Any] | None = None
    """``check(queued, new)`` or ``check(queued, new, asked)`` returns a queued message's `Decision` about an incoming
    message. None: the class's method `check`, or "don't care" if there is none. It may depend on its arguments only,
    since a transaction may run again. A check without `asked` does not run while its item is leased. A check with a
    parameter `last` gets whether its item is the last in the queue; see `Asked`."""
    key: Callable[[Any], Key] | None = None
    """Returns a message's relation key; None: all messages of the type are related."""
    sees: Sees = EVERYTHING
    """The items that an incoming item of this type is compared with."""
    expires: Life = None
    """After how long, or when, it is outdated, and removed unless it is leased. A predicate runs before the item's
    check, and before a dequeue, a lease or a fetch takes the item. If it returns True, the item is removed. It does not
    run for leased items. Limits do not run it either: they count an outdated item until another call removes it."""
    deadline: Seconds = None
    """After how long, or when, it must have left the queue; see `fdbqueue.layers.smart`."""
    limit: Limit | None = None
    """How many items of this type there may be."""
    key_limit: Limit | None = None
    """How many items of this type there may be with one key."""
    confirms: Callable[[Any], Confirmed] | None = None
    """Makes the message a confirmation: returns the recipient that it is from, alone or in a pair with the name of the
    copy that it confirms. See `fdbqueue.layers.smart`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"A message type's name is a str, not {self.name!r}.")
        if self.cls is not None and not isinstance(self.cls, type):
            raise TypeError(f"The class of the message type {self.name!r} is a class or None, not {self.cls!r}.")
        for field, kind in (("sees", Sees), ("limit", Limit), ("key_limit", Limit)):
            given = getattr(self, field)
            if not isinstance(given, kind) and (given is not None or field == "sees"):
                raise TypeError(f"{field} of the message type {self.name!r} is a {kind.__name__}, not {given!r}.")
        for field in ("key", "confirms", "expires", "deadline"):
            self._check_function(field, getattr(self, field))
        self._check_function("check", self.check_of())

    def _check_function(self, field: str, function: Any) -> None:
        is_duration = field in ("expires", "deadline") and isinstance(function, Real) and not isinstance(function, bool)
        if function is None or is_duration:
            return
        name = f"{field} of the message type {self.name!r}"
        if not callable(function):
            wanted = "a function, or a number of seconds" if field in ("expires", "deadline") else "a function"
            raise TypeError(f"{name} is {wanted}, not {function!r}.")
        not_awaited(function, name)

    def check_of(self) -> Callable[..., Any] | None:
        """Return the function that runs as the check of its items."""
        return self.check or getattr(self.cls, "check", None)
