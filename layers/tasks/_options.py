"""Options of tasks that have parts: uniqueness and limits."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import msgspec

from ..leases import Backoff
from ..leases.times import positive
from ._arguments import ENCODE_ERRORS, Arguments, encode_other, hashed

KEY_BYTES = 200
"""How long a text may be that is part of the key of a limit or a unique call. Of a longer one its hash is."""
By: TypeAlias = str | Callable[..., Any] | None
"""What a call belongs to: the value of a parameter, or what a function of the same arguments returns."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A call is enqueued only if no equal one is there. Otherwise the enqueue returns the handle of that one."""

    by: By = None
    """Which calls are equal: those with the same value of this parameter, or for which this function returns the same.
    None: those with equal arguments."""
    until: Literal["done", "started"] = "done"
    """Until when a call keeps out others: until it is done or a dead letter, or until a worker starts it."""
    period: float | None = None
    """For how many seconds from its enqueue a call keeps out others, also after it is done. None: no longer than
    `until` says."""

    def __post_init__(self) -> None:
        check_by(self.by)
        if self.until not in ("done", "started"):
            raise ValueError(f"until is 'done' or 'started', not {self.until!r}.")
        if self.period is not None:
            positive(self.period, "period")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most so many calls run at the same time, over all workers."""

    limit: int
    by: By = None
    """Calls with the same value share a limit; None: all calls of the task do."""

    def __post_init__(self) -> None:
        check_by(self.by)
        check_whole(self.limit, "limit is how many calls run at the same time", least=1)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` calls start in `seconds`, over all workers. Retries count, too."""

    count: int
    seconds: float = 1.0
    by: By = None
    """Calls with the same value share a rate; None: all calls of the task do."""
    burst: int | None = None
    """How many calls may start at once after a pause; None: `count`."""

    def __post_init__(self) -> None:
        check_by(self.by)
        check_whole(self.count, "count is how many calls start", least=1)
        positive(self.seconds, "seconds")
        if self.burst is not None:
            check_whole(self.burst, "burst is how many calls may start at once", least=1)


@dataclass(slots=True)
class TaskOptions:
    """The options of one task, as `Tasks.task` documents them."""

    name: str
    queue: Any
    retries: int
    backoff: Backoff
    aliases: Sequence[str] = ()
    timeout: float | None = None
    priority: int | None = None
    ttl: float | None = None
    keep_result: float | None = None
    session: By = None
    unique: Any = None
    limits: Sequence[Concurrency | Rate] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(cast(object, given), list | tuple) for given in (self.aliases, self.limits)):
            raise TypeError("aliases and limits are lists, as in aliases=['old_name'] and limits=[Rate(10)].")
        for name in (self.name, *self.aliases):
            if not isinstance(cast(object, name), str) or not name or not name.isprintable():
                raise TypeError(f"A task is named by a text, and so are its aliases, not by {name!r}.")
        check_whole(self.retries, "retries is how often a failed task is tried again")
        if not callable(self.backoff):
            raise TypeError(f"backoff is a function of the attempt, as exponential(first=1.0), not {self.backoff!r}.")
        for told, seconds in (("timeout", self.timeout), ("ttl", self.ttl), ("keep_result", self.keep_result)):
            if seconds is not None:
                positive(seconds, told)
        check_by(self.session)
        for limit in self.limits:
            if not isinstance(limit, Concurrency | Rate):
                raise TypeError(f"A limit is Concurrency(…) or Rate(…), not {limit!r}.")
        if self.unique is False:
            self.unique = None
        elif self.unique is not None and not isinstance(self.unique, Unique):
            self.unique = Unique() if self.unique is True else Unique(by=self.unique)

    @property
    def concurrency(self) -> list[Concurrency]:
        """The limits that are gates."""
        return [one for one in self.limits if isinstance(one, Concurrency)]

    @property
    def rates(self) -> list[Rate]:
        """The limits that are token buckets."""
        return [one for one in self.limits if isinstance(one, Rate)]


def check_by(by: object) -> None:
    """Refuse what can't tell to what a call belongs.

    Raises:
        TypeError: it is neither the name of a parameter nor a function.
    """
    if not (by is None or isinstance(by, str) or callable(by)):
        raise TypeError(f"Give the name of a parameter, or a function of the task's arguments, not {by!r}.")


def check_whole(number: object, told: str, *, least: int = 0) -> None:
    """Refuse what is no whole number.

    Raises:
        TypeError: it is no integer. ValueError: it is less than `least`, or too large.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{told}, an integer, not {number!r}.")
    if number < least:
        raise ValueError(f"{told}, at least {least}, not {number}.")
    if number > sys.maxsize:
        raise ValueError(f"{told}, less than 2^63, and this number is larger.")


def check_parameter(by: By, arguments: Arguments, told: str) -> None:
    """Refuse the name of a parameter that the task does not have.

    Raises:
        TypeError: it has none of this name.
    """
    if isinstance(by, str) and by not in arguments.signature.parameters:
        raise TypeError(f"{told} names the parameter {by!r}, and the task is {arguments}. Give one of its parameters.")


def key_of(by: By, arguments: Arguments, bound: inspect.BoundArguments) -> Any:
    """Return what a call belongs to, as a part of a key.

    Raises:
        TypeError: it is an object that JSON can't hold.
    """
    if by is None:
        return arguments.key(bound)
    if isinstance(by, str):
        bound.apply_defaults()
        value = bound.arguments[by]
    else:
        value = by(*bound.args, **bound.kwargs)
    try:
        plain = msgspec.to_builtins(value, enc_hook=encode_other)
        return plain if isinstance(plain, str | int) else hashed(plain)
    except ENCODE_ERRORS as error:
        raise TypeError(
            f"A call of {arguments} belongs to a text, a number or another value of JSON, not to {value!r}: {error}."
        ) from error


def short_key_of(by: By, arguments: Arguments, bound: inspect.BoundArguments) -> str | int:
    """Return what a call belongs to, as a part of a key that has others. A long text is hashed.

    Raises:
        TypeError: as `key_of`.
    """
    key: str | int = key_of(by, arguments, bound)
    try:
        is_short = len(str(key).encode()) <= KEY_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        is_short = False
    return key if is_short else hashed(key)
