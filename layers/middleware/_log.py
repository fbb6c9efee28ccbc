"""`LogItems` logs each call of a handler. `ItemFields` adds the item's fields to what the handler logs."""

from __future__ import annotations

import copy
import logging
import time
from contextvars import ContextVar
from typing import Any, cast

from fdbqueue import Queue

from ..common.handlers import Snooze, error_text
from ..common.logs import NO_FIELDS, item_fields
from ..common.middleware import AsyncMiddleware, Next
from ..leases import Lease

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
