"""One attempt: what a transaction at the head of a queue does for the calls of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.engine.errors import NOT_COMMITTED
from fdbqueue.engine.waiting import Promise
from fdbqueue.lowlevel import FDBError, Future, Shown, Transaction

from ..common.batcher import Alarm, PendingCall
from ..leases.taking import ITEMS_AT_ONCE, Allotment, Got
from ._prefetch import Prefetch
from .requests import Request, Wish, granted_us


class Want(NamedTuple):
    """The terms of a call."""

    limit: int
    """Most items that it takes."""
    patient: bool
    """Whether it waits if the queue is empty."""


ONE = Want(1, patient=False)
"""One item, at once."""
Caller = PendingCall[Want, list[Got]]
_KEPT_BY_NONE = Promise()


@dataclass(slots=True)
class Attempt:
    """What a transaction of this process did."""

    tr: Transaction
    """The transaction."""
    callers: list[Caller]
    """The calls that waited when it began to read. It never tells a later call that the queue is empty."""
    got: list[Got] = field(default_factory=list)
    nothing: bool = False
    """Whether it saw the queue empty."""
    drained: bool = False
    """Whether it left the queue empty."""
    request: Request | None = None
    """Our present request."""
    wish: Wish | None = None
    """The terms that it registered, if any."""
    stamp: Future[Any] | None = None
    """The versionstamp of that registration."""
    error: Exception | None = None
    """Why the first item can't be read."""
    alarm: Alarm | None = None
    """What to wait for before the next attempt."""
    version: int = 0
    """The version of its commit or, without one, of its reads; 0 or less: unknown."""
    old_grants: list[bytes] = field(default_factory=list)
    """The keys of grants that it removed."""
    unmarked: bytes = b""
    """The client id of a grant that it took without a mark and without a commit."""
    prefetch: Prefetch | None = None
    """The prediction that holds if it commits."""
    changed: Promise = _KEPT_BY_NONE
    """Kept by later calls that do not wait."""

    def asks(self) -> bool:
        """Return whether a caller wants to know at once that the queue is empty."""
        return any(not caller.argument.patient for caller in self.callers)


class Leave(Exception):
    """Ends a transaction that has nothing to write."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt


class Contended(Exception):
    """Ends a direct transaction that conflicted."""


class Unforeseen(Exception):
    """Ends a transaction whose prediction was wrong."""


@dataclass(slots=True, repr=False)
class ContentionStats(Shown):
    """Counts of what calls met at the head."""

    looks: int = 0
    """How many times a process looked after its request."""
    conflicts: int = 0
    """How many commits failed with a conflict."""

    def note(self, error: FDBError) -> None:
        """Count a failed commit, if it failed with a conflict."""
        self.conflicts += error.code == NOT_COMMITTED


def allotment_of(request: Request) -> Allotment:
    """Return the allotment of another process's request."""
    wish = request.wish
    return Allotment(wish.wanted, granted_us(wish.duration_us), wish.consumer)


def wanted_by(callers: list[Caller]) -> int:
    """Return how many items calls want together, up to what one transaction takes."""
    if len(callers) == 1:
        return min(ITEMS_AT_ONCE, callers[0].argument.limit)
    return max(1, min(ITEMS_AT_ONCE, sum(caller.argument.limit for caller in callers)))
