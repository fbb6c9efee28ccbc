"""What a program declares of a smart queue: message types, scopes and limits; and the answers of checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

from fdbqueue import Position
from fdbqueue.lowlevel import Shown
from fdbqueue.stored.places import InQueue

from ..common.handlers import not_awaited

# Limits: how many items of a queue, a type or a key there may be, and what happens to one more.

WhenFull: TypeAlias = Literal["refuse", "drop newest", "drop oldest", "wait"]
_CHOICES = ("refuse", "drop newest", "drop oldest", "wait")
MOST_COUNTED = 10_000
"""Largest limit of a type or a key: a limit check counts index entries, one per item."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most items that there may be, and what happens to one more.

    Raises:
        TypeError: `most` is not an integer.
        ValueError: `most` is less than 1, or `when_full` is not one of the choices.

    >>> from fdbqueue.layers import Limit
    >>> Limit(3).when_full
    'refuse'
    """

    most: int
    """How many items there may be; dead letters do not count."""
    when_full: WhenFull = "refuse"
    """What happens to one more item. "refuse" raises `QueueFull`. "drop newest" leaves the incoming item out, and
    deletes nothing for it. "drop oldest" deletes the first enqueued of the least urgent items; it means the same for
    the limit of a queue, a type and a key. "wait" waits for room if the call is given a database, else it refuses.

    The least urgent items are those with the highest rank; in a first in, first out queue that is all items. Positions
    tell which item was enqueued first, so a delayed item may be dropped too. A leased item is not dropped: the next one
    is dropped instead. The incoming item is not part of this choice. It is enqueued even if it is less urgent than all
    queued items."""

    def __post_init__(self) -> None:
        most: object = self.most
        if not isinstance(most, int) or isinstance(most, bool):
            raise TypeError(f"A limit is a whole number of items, as in Limit(100), not {self.most!r}.")
        if self.most < 1:
            raise ValueError(f"A limit is at least 1, not {self.most}.")
        if self.when_full not in _CHOICES:
            raise ValueError(f"when_full is one of {', '.join(map(repr, _CHOICES))}, not {self.when_full!r}.")


def check_bounds(limit: object, **bounds: float) -> None:
    """Raise an error if an argument of a smart queue is no limit, or no bound.

    Args:
        limit: how many items there may be.
        bounds: the other bounds by their names.
    """
    if limit is not None and not isinstance(limit, Limit):
        raise TypeError(f"limit is a Limit, as in Limit(100), not {limit!r}.")
    for name, bound in bounds.items():
        least = 0 if name == "check_seconds" else 1
        is_number = isinstance(cast(object, bound), Real) and not isinstance(bound, bool)
        if not is_number or not (bound > 0 and bound >= least) or bound == math.inf:
            raise ValueError(f"{name} is a bound, a number {'of at least 1' if least else 'over 0'}, not {bound!r}.")


# Message types: the rules of each type of messages, and the queued items that it sees.

Message: TypeAlias = Any
"""A message: an object of the class of its type, or a dict."""
Key: TypeAlias = str | bytes | int | tuple[Any, ...] | None
"""Relates messages of the same type or of different types to each other."""
Seconds: TypeAlias = float | Callable[[Message], float | None] | None
"""A duration from the enqueue, or a function of the message that returns a time of the clock or None for never."""
Life: TypeAlias = Seconds | Callable[[Message], bool] | Callable[[Message, float], float | bool | None]
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
    cls: type[Message] | None = None
    """Its class, a dataclass or a msgspec Struct; None: plain data, dicts whose "type" is `name`."""
    check: Callable[..., Any] | None = None
    """``check(queued, new)`` or ``check(queued, new, asked)`` returns a queued message's `Decision` about an incoming
    message. None: the class's method `check`, or "don't care" if there is none. It may depend on its arguments only,
    since a transaction may run again. A check without `asked` does not run while its item is leased. A check with a
    parameter `last` gets whether its item is the last in the queue; see `Asked`."""
    key: Callable[[Message], Key] | None = None
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
    confirms: Callable[[Message], Confirmed] | None = None
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

    def _check_function(self, field: str, function: object) -> None:
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


# Decisions: the answers of a queued item about an incoming item, and the outcome of a smart enqueue.


class Decision(StrEnum):
    """A queued item's answer: what happens to the incoming item, and to itself."""

    dont_care = "don't care"
    """The incoming item does not concern this item: the next item is asked."""
    ignore = "ignore"
    """The incoming item is left out; the queued item may have changed to its values."""
    queue = "queue"
    """The incoming item is appended; both are needed."""
    queue_and_delete = "queue and delete"
    """The incoming item is appended at the end, and the queued item, now overridden, is deleted."""
    ignore_and_delete = "ignore and delete"
    """The incoming item is left out, and the queued item, now cancelled or confirmed, is deleted."""


@dataclass(frozen=True, slots=True)
class Replace:
    """An item's answer: leave the incoming item out, and store this message in the queued item's place.

    It is `Decision.ignore` for messages that can't be changed, or that you replace by another object.

    Raises:
        ValueError: `terms` is neither "own" nor "incoming".
    """

    message: Message
    """The new message, of the same type and with the same key."""
    terms: Literal["own", "incoming"] = "own"
    """Source of the item's new headers, delay, time to live and rank. "own": the item keeps its own, and those of the
    incoming item are dropped. `Decision.ignore` of an item that changed itself does the same. "incoming": the item gets
    those of the incoming item. If that changes its rank by the queue's order, it leaves its place and is appended at
    that rank, as with "queue and delete"."""

    def __post_init__(self) -> None:
        if self.terms not in ("own", "incoming"):
            raise ValueError(
                f"terms must be 'own' or 'incoming', not {self.terms!r}: it names the message whose terms stay."
            )


Answer: TypeAlias = Decision | Replace


@dataclass(frozen=True, slots=True)
class Asked:
    """Facts about the queued item of a check, in addition to its message.

    A check with a parameter `last` also gets a bool: True if its item is the last one of the queue, among all types and
    states. It is no field here, since it costs three reads, and a conflict with later enqueues if it is True.
    """

    state: InQueue
    """The item's state; a consumer is working on a leased item."""
    position: Position
    """The item's identity."""
    attempt: int
    """How often the item was leased so far."""
    now: float
    """The time by the clock of the enqueueing process; a check uses no clock of its own."""


@dataclass(frozen=True, slots=True, repr=False)
class Outcome(Shown):
    """The decision, reads and writes of a smart enqueue."""

    decision: Decision
    """The decision; `Decision.queue` if all items answered "don't care"."""
    by: Position | None
    """The item that decided; None if no item did."""
    position: Position | None
    """The incoming item's position; None if it was left out."""
    rewritten: Position | None
    """The item that got a new message, in its own place; `terms` says whether it also got the incoming terms."""
    deleted: tuple[Position, ...]
    """Items that were removed: the one that decided so, and those that made room."""
    expired: tuple[Position, ...]
    """Items that were removed because they were outdated."""
    full: bool
    """Whether a limit left the incoming item out against the decision; nothing is deleted for it then."""
    asked: int
    """How many items were asked."""
    items_read: int
    """How many items were read, asked or not."""
    bytes_read: int
    """Stored bytes of these items."""
    terms: Literal["own", "incoming"] | None = None
    """Source of the headers, delay, time to live and rank of the item that got a new message; None if no item did.
    With "own" it kept all of these, though its type's `expires` and `deadline` restart. With "incoming" and another
    rank it was deleted, and `position` is its new place."""
