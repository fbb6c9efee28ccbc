"""One turn: what a transaction at the head of a queue does for the calls of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fdbqueue.engine.api import Future, Transaction
from fdbqueue.engine.errors import NOT_COMMITTED, FDBError

from ..common._batcher import Alarm, PendingCall
from ..common._waiting import Promise
from ._delivery import ITEMS_AT_ONCE, Allotment, Got
from ._prefetch import Prefetch
from ._requests import Request, Wish, granted_us


class Want(NamedTuple):
    """What a call wants."""

    limit: int
    """How many items at most."""
    patient: bool
    """Whether it waits when there are none."""


Caller = PendingCall[Want, list[Got]]


@dataclass(slots=True)
class Attempt:
    """What a transaction of ours did."""

    tr: Transaction
    """Which one."""
    callers: list[Caller]
    """Who was waiting when it began to read: nobody who came later is told that there is nothing."""
    got: list[Got] = field(default_factory=list)
    nothing: bool = False
    """Whether it saw the queue empty."""
    drained: bool = False
    """Whether it left the queue empty."""
    request: Request | None = None
    """Our request as it is now."""
    wish: Wish | None = None
    """What was registered, if it was."""
    stamp: Future[Any] | None = None
    """Under which versionstamp."""
    error: Exception | None = None
    """Why the first item can't be read."""
    alarm: Alarm | None = None
    """What to wait for before there is anything to do."""
    version: int = 0
    """That of its commit or, without one, of its reads; 0 or less: unknown."""
    old_grants: list[bytes] = field(default_factory=list)
    """Grants' keys that it removed."""
    foresight: Prefetch | None = None
    """What comes next if it commits."""
    bell: Promise = field(default_factory=Promise)
    """Rung by those who came later and do not wait."""

    def asks(self) -> bool:
        """Say whether somebody wants to be told at once that there is nothing."""
        return any(not caller.argument.patient for caller in self.callers)


class Leave(Exception):
    """Ends a transaction that has nothing to write."""

    def __init__(self, turn: Attempt) -> None:
        self.turn = turn


class Contended(Exception):
    """Ends a direct transaction that met a conflict."""


class Unforeseen(Exception):
    """Ends a transaction that began with what was foreseen, and was not so."""


@dataclass(slots=True)
class ContentionStats:
    """What calls met at the head."""

    looks: int = 0
    """How often a request was looked after."""
    conflicts: int = 0
    """How many commits met a conflict."""

    def note(self, error: FDBError) -> None:
        """Count a commit that failed, if that was by a conflict."""
        self.conflicts += error.code == NOT_COMMITTED


def share_of(request: Request) -> Allotment:
    """Return what another's request is to be given."""
    wish = request.wish
    return Allotment(wish.wanted, granted_us(wish.duration_us), wish.consumer)


def wanted_by(callers: list[Caller]) -> int:
    """Return how many items calls want together, as far as one transaction goes."""
    if len(callers) == 1:
        return min(ITEMS_AT_ONCE, callers[0].argument.limit)
    return max(1, min(ITEMS_AT_ONCE, sum(caller.argument.limit for caller in callers)))
