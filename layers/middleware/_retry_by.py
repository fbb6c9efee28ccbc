"""`RetryBy`: what follows a failure, by the type of its exception."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from ..common.handlers import GiveUp, RetryIn, Snooze
from ..common.middleware import AsyncMiddleware, Next
from ..leases import Lease
from ..leases.times import not_negative

Rule: TypeAlias = float | Callable[[int], float | None] | type[GiveUp] | Snooze
_RULES = "a number of seconds, a function of the attempt such as constant(5), GiveUp, or Snooze(60)"


class RetryBy(AsyncMiddleware):
    """Decides by the type of an exception when the item is tried again.

    An exception without a rule is a failure as usual: the leases' back-off decides. `Snooze`, `RetryIn` and `GiveUp`
    pass. The last attempt of `max_attempts` makes a dead letter in any case.

    Args:
        rules: by the type of the exception; the rule of the nearest base class counts. A rule is a number of seconds
            before the next attempt, or a function from the number of the attempt to seconds (None: give up), or
            `GiveUp`, or a `Snooze`, which counts no attempt.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, GiveUp, Leases
    >>> from fdbqueue.layers.middleware import RetryBy
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("numbers", codec="str"))
    >>> position = leases.enqueue(db, "seven")
    >>> rules = RetryBy({ValueError: GiveUp, ConnectionError: 30.0})
    >>> Consumer(leases, lambda lease: int(lease.value), middleware=[rules]).drain(db).dead
    1
    """

    def __init__(self, rules: Mapping[type[Exception], Rule]) -> None:
        if not isinstance(cast(object, rules), Mapping) or not rules:
            raise TypeError(f"rules are a dict from exception types to {_RULES}, not {rules!r}.")
        for kind, rule in rules.items():
            _check(kind, rule)
        self._rules = dict(rules)

    def __repr__(self) -> str:
        return f"RetryBy({{{', '.join(f'{kind.__name__}: {rule!r}' for kind, rule in self._rules.items())}}})"

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        try:
            return await call_next(lease)
        except (Snooze, RetryIn, GiveUp):
            raise
        except Exception as error:
            rule = next((self._rules[kind] for kind in type(error).__mro__ if kind in self._rules), None)
            if rule is None:
                raise
            raise _consequence(rule, lease.attempt) from error


def _consequence(rule: Rule, attempt: int) -> Exception:
    if isinstance(rule, Snooze):
        return Snooze(rule.seconds)
    if rule is GiveUp:
        return GiveUp()
    seconds = cast("Callable[[int], float | None]", rule)(attempt) if callable(rule) else rule
    return GiveUp() if seconds is None else RetryIn(seconds)


def _check(kind: object, rule: object) -> None:
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        raise TypeError(f"A rule is for a type of exceptions, such as ValueError, not {kind!r}.")
    if rule is GiveUp or isinstance(rule, Snooze) or (callable(rule) and not isinstance(rule, type)):
        return
    if isinstance(rule, bool | str) or not isinstance(rule, int | float):
        raise TypeError(f"The rule for {kind.__name__} is {_RULES}, not {rule!r}.")
    not_negative(rule, f"The rule for {kind.__name__}")
