"""The middleware that the library has: log items, limit their rate and their time, and retry by exceptions."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias, cast

from fdbqueue import Queue
from fdbqueue.lowlevel import Database

from ..common.handlers import NO_FIELDS, AsyncMiddleware, GiveUp, Next, RetryIn, Snooze, error_text, item_fields, within
from ..leases import Lease
from ..leases.lease import not_negative, positive
from .token_bucket import TokenBucket

VALUE_CHARACTERS = 1_000
"""How much of a value's repr a record has, if values are asked for."""
_current: ContextVar[dict[str, Any]] = ContextVar("fdbqueue item", default=NO_FIELDS)

_log = logging.getLogger("fdbqueue.layers.middleware")


class LogItems(AsyncMiddleware):
    """Logs a line when a handler has ended, and lets `ItemFields` see the item meanwhile.

    The record has the fields of `ItemFields`, and `outcome` ("returned", "snoozed" or "failed") and `seconds`.

    Args:
        logger: where it logs; None: "fdbqueue.layers.middleware".
        level: the level of the line.
        values: whether the record has the item's value too, as the field `value`, cut to 1,000 characters.
    """

    def __init__(
        self, logger: logging.Logger | None = None, *, level: int = logging.INFO, values: bool = False
    ) -> None:
        if logger is not None and not hasattr(cast(object, logger), "log"):
            raise TypeError(f"logger is a logging.Logger, as logging.getLogger('shop') returns, not {logger!r}.")
        if not isinstance(cast(object, level), int) or isinstance(level, bool):
            raise TypeError(f"level is a number, such as logging.INFO, not {level!r}.")
        if not isinstance(cast(object, values), bool):
            raise TypeError(f"values is True or False: whether to log the items' values. Not {values!r}.")
        self._logger = logger or _log
        self._level = level
        self._values = values
        self._queue: Queue | None = None

    def __repr__(self) -> str:
        return f"LogItems({self._logger.name!r})"

    def for_consumer(self, consumer: Any) -> LogItems:
        """Return the same for a consumer, whose queue the fields name."""
        if not isinstance(getattr(consumer, "queue", None), Queue):
            raise TypeError(f"LogItems.for_consumer takes a Consumer, not {consumer!r}.")
        own = copy.copy(self)
        own._queue = consumer.queue
        return own

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        fields = NO_FIELDS if self._queue is None else item_fields(self._queue, lease)
        _current.set(fields)
        began = time.monotonic()
        outcome, why = "returned", ""
        try:
            return await call_next(lease)
        except Snooze:
            outcome = "snoozed"
            raise
        except BaseException as error:
            outcome, why = "failed", f": {error_text(error)}"
            raise
        finally:
            seconds = time.monotonic() - began
            extra = {**fields, "outcome": outcome, "seconds": seconds}
            if self._values:
                extra["value"] = repr(lease.value)[:VALUE_CHARACTERS]
            words = "The handler of the item %s of %s, attempt %d, %s after %.3f s%s"
            told = (lease.position.text, fields["queue"], lease.attempt, outcome, seconds, why)
            self._logger.log(self._level, words, *told, extra=extra)


class ItemFields(logging.Filter):
    """A filter for a logging handler: adds the fields of the item in progress to every record.

    The fields are `queue`, `position`, `attempt`, `consumer` and `session`. Without an item, or a session, they are "".
    It needs `LogItems` among the consumer's middleware. A record that has the fields keeps them.

    >>> import logging
    >>> from fdbqueue.layers.middleware import ItemFields
    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(ItemFields())
    >>> handler.setFormatter(logging.Formatter("%(levelname)s %(queue)s %(position)s %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the record has not, and let it pass."""
        for name, value in _current.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


NAME = "middleware"
"""The name of a queue's bucket; a key's bucket has the key behind it."""


class RateLimit(AsyncMiddleware):
    """Puts an item off when too many handlers have begun in a time, in all processes together.

    The item goes back to its place and is delayed; no attempt is counted. In a session only that session waits.

    Args:
        db: the database of the queue.
        count: how many handlers may begin in `seconds`.
        seconds: the time for `count` handlers.
        burst: how many may begin at once after a pause; None: `count`.
        key: a function of the lease that returns the name of the item's own limit, a text or a number; None: one limit
            for the queue. Without a name (None) an item is not limited.
        queue: the queue that has the limit, to share it among the consumers of several queues; None: the consumer's.

    *Conflicts:* with each other handler that begins under the same limit. *Cost:* a transaction for each item: one read
    and one write.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases
    >>> from fdbqueue.layers.middleware import RateLimit
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("mails", codec="str"))
    >>> report = leases.enqueue_many(db, ["a", "b", "c"])
    >>> report = Consumer(leases, lambda lease: None, middleware=[RateLimit(db, count=2, seconds=60)]).drain(db)
    >>> report.acked, report.snoozed
    (2, 1)
    """

    def __init__(
        self,
        db: Database,
        *,
        count: int,
        seconds: float = 1.0,
        burst: int | None = None,
        key: Callable[[Lease], Any] | None = None,
        queue: Queue | None = None,
    ) -> None:
        if not hasattr(db, "create_transaction"):
            raise TypeError(f"RateLimit takes the database of the queue, as fdbqueue.open returns it, not {db!r}.")
        if key is not None and not callable(key):
            raise TypeError(f"key is a function of the lease, as in key=lambda lease: lease.value.host, not {key!r}.")
        self._terms: dict[str, Any] = {"count": count, "seconds": seconds, "burst": burst}
        TokenBucket(queue or Queue(NAME), NAME, **self._terms)  # raises TypeError and ValueError now
        self._db = db
        self._key = key
        self._queue = queue

    def __repr__(self) -> str:
        return f"RateLimit(count={self._terms['count']}, seconds={self._terms['seconds']})"

    def for_consumer(self, consumer: Any) -> RateLimit:
        """Return the same for a consumer, whose queue has the limit if no other was given."""
        if not isinstance(getattr(consumer, "queue", None), Queue):
            raise TypeError(f"RateLimit.for_consumer takes a Consumer, not {consumer!r}.")
        own = copy.copy(self)
        own._queue = self._queue or consumer.queue
        return own

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        name: Any = NAME
        if self._key is not None:
            key = self._key(lease)
            if key is None:
                return await call_next(lease)
            name = (NAME, key)
        if self._queue is None:
            raise TypeError("RateLimit has no queue for its limit: give it to a Consumer, or give queue=.")
        wait_s = await TokenBucket(self._queue, name, **self._terms).take.aio(self._db)
        if wait_s:
            raise Snooze(math.ceil(wait_s * 1e3) / 1e3)
        return await call_next(lease)


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


class TimeLimit(AsyncMiddleware):
    """Fails an attempt that takes longer, with a TimeoutError.

    A coroutine is cancelled. A thread runs on until its function returns, and the item is given back meanwhile.
    `Consumer(handler_timeout=)` does the same for all items, and also for a coroutine that blocks the event loop: its
    lease is not extended any more.

    Args:
        seconds: the limit, or a function of the lease that returns it; None: none for this item.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Consumer, Leases
    >>> from fdbqueue.layers.middleware import TimeLimit
    >>> db = fdbqueue.open("memory:")
    >>> leases = Leases(fdbqueue.Queue("numbers", codec="json"))
    >>> position = leases.enqueue(db, 7, headers={"seconds": 5})
    >>> limit = TimeLimit(lambda lease: lease.headers.get("seconds", 60))
    >>> Consumer(leases, lambda lease: None, middleware=[limit]).drain(db).acked
    1
    """

    def __init__(self, seconds: float | Callable[[Lease], float | None]) -> None:
        if not callable(seconds):
            positive(seconds, "seconds")
        self._seconds = seconds

    def __repr__(self) -> str:
        return f"TimeLimit({self._seconds!r})"

    async def __call__(self, lease: Lease, call_next: Next) -> Any:
        seconds = self._seconds(lease) if callable(self._seconds) else self._seconds
        if seconds is None:
            return await call_next(lease)
        positive(seconds, "seconds")
        return await within(seconds, call_next(lease))
