"""Policies: what becomes of a queue's items whose attempts fail. A policy belongs to the queue, and is stored with it.

It has the number of attempts after which an item is a dead letter, and a back-off: the time that a failed item waits
before its next attempt. A back-off is a function. It takes the number of the attempt that failed, from 1, and returns
seconds. Any such function works. Those here compare equal if their settings are equal, and can be pickled and stored.
Of another one only its text is stored, so each process has to give it.

>>> from fdbqueue.layers import exponential
>>> [exponential(first=1, factor=2, longest=5)(attempt) for attempt in (1, 2, 3, 4)]
[1, 2, 4, 5]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

from fdbqueue.base.reprs import function_text
from fdbqueue.base.times import LONGEST_SECONDS, not_negative, positive


class PolicyWarning(RuntimeWarning):
    """What a program gives is not the queue's policy, which applies."""


Backoff: TypeAlias = Callable[[int], float]
StoredBackoff: TypeAlias = tuple[str | float, ...]
"""A back-off as it is stored: its name and its settings. That of another function is "function", and its text."""


def immediately(attempt: int) -> float:
    """Return 0: the item is in its old place at once, in front of all later items."""
    return 0.0


@dataclass(frozen=True, slots=True)
class _Constant:
    seconds: float

    def __call__(self, attempt: int) -> float:
        return self.seconds

    def __repr__(self) -> str:
        return f"constant({self.seconds})"


@dataclass(frozen=True, slots=True)
class _Exponential:
    first: float
    factor: float
    longest: float
    jitter: float

    def __call__(self, attempt: int) -> float:
        try:
            wait = min(self.longest, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            wait = self.longest
        if not self.jitter:
            return wait
        import random  # an import of fdbqueue does without

        return wait * (1 + random.uniform(0, self.jitter))

    def __repr__(self) -> str:
        return f"exponential(first={self.first}, factor={self.factor}, longest={self.longest}, jitter={self.jitter})"


def constant(seconds: float) -> Backoff:
    """Return a policy that waits the same time after every failure.

    Raises:
        TypeError, ValueError: `seconds` is no number of seconds, 0 or more.
    """
    not_negative(seconds, "seconds")
    return _Constant(seconds)


def exponential(*, first: float = 1.0, factor: float = 2.0, longest: float = 3_600.0, jitter: float = 0.0) -> Backoff:
    """Return a policy whose waits grow from `first` seconds by `factor` per failure, up to `longest`.

    Args:
        first: seconds before the second attempt, more than 0.
        factor: by how much each wait is longer than the one before, at least 1.
        longest: the longest wait in seconds, more than 0.
        jitter: the largest random part that is added to each wait. Items that failed together then do not come
            back together; 0.1 is up to a tenth.

    Raises:
        TypeError, ValueError: an argument is no such number.
    """
    positive(first, "first")
    positive(longest, "longest")
    bounds: tuple[tuple[str, Any, int], ...] = (("factor", factor, 1), ("jitter", jitter, 0))
    for name, number, least in bounds:
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise TypeError(f"{name} is a number, not {number!r}.")
        if not least <= number < math.inf:
            finite = ", and finite" if number == math.inf else ""
            raise ValueError(f"{name} is a number, {least} or more{finite}, not {number}.")
    return _Exponential(first, factor, longest, jitter)


UNKNOWN_BACKOFF = exponential()
"""The wait of a failed item whose back-off fails, too."""
_FUNCTION = "function"


def stored_backoff(backoff: Backoff | None) -> StoredBackoff:
    """Return a back-off as it is stored; () for none.

    >>> stored_backoff(constant(5)), stored_backoff(immediately)
    (('constant', 5.0), ('immediately',))
    """
    if backoff is None:
        return ()
    if backoff is immediately:
        return ("immediately",)
    if isinstance(backoff, _Constant):
        return "constant", float(backoff.seconds)
    if isinstance(backoff, _Exponential):
        settings = backoff.first, backoff.factor, backoff.longest, backoff.jitter
        return "exponential", *map(float, settings)
    return _FUNCTION, re.sub(r" at 0x[0-9a-f]+", "", function_text(backoff))  # the same in each process


def backoff_in(stored: StoredBackoff) -> Backoff | None:
    """Return the back-off that is stored; None if there is none, or only the text of a function.

    Raises:
        TypeError, ValueError: its settings are none that it can have.
    """
    name, *settings = stored or ("",)
    numbers: list[Any] = settings
    if name == "immediately":
        return immediately
    if name == "constant":
        return constant(*numbers)
    if name == "exponential":
        first, factor, longest, jitter = numbers
        return exponential(first=first, factor=factor, longest=longest, jitter=jitter)
    return None


def backoff_text(stored: StoredBackoff) -> str:
    """Return a stored back-off as a program gives it; "" for none."""
    known = backoff_in(stored)
    return repr(known) if known is not None and known is not immediately else str(stored[-1]) if stored else ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a queue's items whose attempts fail."""

    max_attempts: int | None = None
    """The number of attempts after which an item becomes a dead letter; None: no limit."""
    backoff: Backoff | None = None
    """Returns its wait before the next attempt; None: none was given, and there is no wait."""

    @property
    def text(self) -> str:
        """The policy as a program gives it."""
        return policy_text(self.max_attempts, stored_backoff(self.backoff))

    def or_else(self, other: Policy) -> Policy:
        """Return the policy with the parts of another one where it has none."""
        return Policy(
            other.max_attempts if self.max_attempts is None else self.max_attempts, self.backoff or other.backoff
        )

    def __bool__(self) -> bool:
        return self.max_attempts is not None or self.backoff is not None

    def is_last(self, attempt: int) -> bool:
        """Return whether an item becomes a dead letter after the failure of this attempt."""
        return self.max_attempts is not None and attempt >= self.max_attempts

    def delay_us(self, attempt: int) -> int:
        """Return how long an item waits after the failure of this attempt; 0 if it was the last one.

        It raises what the back-off raises.

        Raises:
            TypeError, ValueError: the back-off returned no number of seconds, or a negative one.
        """
        if self.backoff is None or self.is_last(attempt):
            return 0
        wait: Any = self.backoff(attempt)
        is_number = isinstance(wait, Real) and not isinstance(wait, bool)
        if not is_number or not wait >= 0:
            raise (ValueError if is_number else TypeError)(
                f"backoff={function_text(self.backoff)} returned {wait!r} for attempt {attempt}, not a number of"
                " seconds, 0 or more."
            )
        return int(min(wait, LONGEST_SECONDS) * 1e6)

    def delay_left_us(self, attempt: int, *, since_us: int, now_us: int) -> int:
        """Return how long an item still waits whose attempt failed some time ago, when its lease ended."""
        return max(0, self.delay_us_in_any_case(attempt) - max(0, now_us - since_us))

    def delay_us_in_any_case(self, attempt: int) -> int:
        """Return how long an item waits, as by default if the back-off raises or returns no number.

        For failures that no caller reports: the error would fail a transaction that is about other items, too.
        """
        try:
            return max(0, self.delay_us(attempt))
        except Exception:
            import logging  # as `random` above, it takes some milliseconds

            seconds = UNKNOWN_BACKOFF(attempt)
            name = function_text(self.backoff)
            logging.getLogger("fdbqueue.layers.leases").exception(
                "backoff=%s failed for attempt %d: the item waits %g s.", name, attempt, seconds
            )
            return int(seconds * 1e6)


NO_POLICY = Policy()


def check_policy(max_attempts: object, backoff: object) -> Policy:
    """Return the policy that the arguments of a queue's object make.

    Raises:
        TypeError, ValueError: one of them is of a wrong kind, or there is no such number of attempts.
    """
    if type(max_attempts) not in (int, type(None)):
        raise TypeError(f"max_attempts is a whole number, or None for no limit, not {max_attempts!r}.")
    if backoff is not None and not callable(backoff):
        raise TypeError(
            f"backoff is a function of the attempt, as exponential(first=1.0) makes one, or None, not {backoff!r}."
        )
    most: Any = max_attempts
    if most is not None and not 1 <= most < 1 << 53:
        raise ValueError(f"max_attempts is at least 1 and below 2^53, or None for no limit, not {max_attempts}.")
    return Policy(most, backoff)


def policy_text(max_attempts: int | None, backoff: StoredBackoff) -> str:
    """Return a policy as a program gives it; "" for none.

    >>> policy_text(5, stored_backoff(constant(2)))
    'max_attempts=5, backoff=constant(2.0)'
    """
    told = [] if max_attempts is None else [f"max_attempts={max_attempts}"]
    return ", ".join(told + ([f"backoff={backoff_text(backoff)}"] if backoff else []))
