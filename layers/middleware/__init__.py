"""Middleware: functions around each call of a consumer's handler.

Challenge
    Handlers need the same things around their work: a time limit, a rule for each kind of failure, a rate, a log line.
    In the handler itself that hides the work.

Keys
    None of its own. `RateLimit` uses a token bucket under the queue.

Ordering
    The first one of `Consumer(middleware=[...])` is the outermost.

Guarantees
    What a middleware raises counts as raised by the handler, and what it returns as returned by the handler. A context
    variable that it sets is seen inside, and not by the handler of the next item.

Limits
    A plain function runs in the handler's thread. So it can be around plain handlers only, and inside of the coroutine
    functions. All that are here are coroutine functions, for both kinds of handlers.

Source
    The middleware of ASGI applications and of Dramatiq. How to write one: docs/guides/middleware.md.
"""

from __future__ import annotations

from ..common.handlers import Middleware, Next
from ._middleware import ItemFields, LogItems, RateLimit, RetryBy, TimeLimit

__all__ = ["ItemFields", "LogItems", "Middleware", "Next", "RateLimit", "RetryBy", "TimeLimit"]
