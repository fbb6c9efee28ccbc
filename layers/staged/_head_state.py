"""The states of one process at the head of a queue, and the events that lead from one state to the next."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum

from fdbqueue.engine.optional import shares_turns
from fdbqueue.lowlevel import Database

from .requests import Request

MOST_LOST_TURNS = 4
"""After so many conflicts, one after the other, a process registers a request even where processes take turns."""


class State(StrEnum):
    """What the next transaction of a process does."""

    direct = "direct"
    """It has no request. It fulfills the registered requests, and takes items for its own calls behind them."""
    registering = "registering"
    """It has no request yet, and registers one."""
    claiming = "claiming"
    """It has a request, and takes the items that are assigned to it."""
    waiting = "waiting"
    """It has a request, and collects what was granted to it. If nothing was, it waits. The first process in order
    fulfills all requests instead."""


class Event(StrEnum):
    """What one transaction of a process found or did."""

    conflict = "conflict"
    """Another process took the same items, or fulfilled this process's request."""
    registered = "registered"
    """It registered a request."""
    unassigned = "unassigned"
    """No item is assigned to its request, or it can't take its items by itself."""
    fulfilled = "fulfilled"
    """Its request got items, or expired and was removed."""
    starved = "starved"
    """It left the queue empty, and one of its calls waits for an item."""
    dismissed = "dismissed"
    """None of its calls is waiting any more."""


NEXT = {
    (State.direct, Event.conflict): State.registering,
    (State.direct, Event.starved): State.registering,
    (State.direct, Event.registered): State.claiming,  # it met other processes a moment ago, or found very many
    (State.direct, Event.dismissed): State.direct,
    (State.registering, Event.registered): State.claiming,  # a conflict only repeats the registration
    (State.registering, Event.dismissed): State.direct,
    (State.claiming, Event.conflict): State.claiming,
    (State.claiming, Event.unassigned): State.waiting,
    (State.claiming, Event.fulfilled): State.direct,
    (State.claiming, Event.dismissed): State.direct,
    (State.waiting, Event.conflict): State.claiming,
    (State.waiting, Event.fulfilled): State.direct,
    (State.waiting, Event.dismissed): State.direct,
}
"""All transitions; other events can't happen in a state. A process whose head has another order, or large items, never
claims: it waits instead."""
_WITH_REQUEST = (State.claiming, State.waiting)


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """The state of a process, and its request. It is replaced as a whole, so that an interruption can't split them."""

    state: State = State.direct
    request: Request | None = None
    """The registered request, exactly if it is claiming or waiting."""

    def after(self, event: Event, *, request: Request | None = None, claims: bool = True) -> HeadPlace:
        """Return the place after an event.

        Args:
            request: the new request, if it was registered.
            claims: whether processes take the items assigned to them by themselves.
        """
        state = NEXT[self.state, event]
        if state is State.claiming and not claims:
            state = State.waiting
        return HeadPlace(state, (request or self.request) if state in _WITH_REQUEST else None)

    def own_request(self) -> Request:
        """Return the request. Call this only in a state that has one."""
        if self.request is None:
            raise RuntimeError(f"A process that is {self.state} has no request.")
        return self.request

    def renewed(self, request: Request) -> HeadPlace:
        """Return this place with the request as it is stored now."""
        return HeadPlace(self.state, request)


class StallDetector:
    """Finds requests in front that do not move, because their process is dead or asleep."""

    __slots__ = ("_first", "_last", "_since")

    def __init__(self) -> None:
        self._first = self._last = b""
        self._since = 0.0

    def stuck(self, in_front: list[Request], seconds: float) -> list[Request]:
        """Return the requests in front, in order, that have been there for `seconds`. The list is often empty."""
        if not in_front:
            return []
        if self._first != in_front[0].key:
            self._first, self._last, self._since = in_front[0].key, in_front[-1].key, time.monotonic()
            return []
        late = time.monotonic() - self._since >= seconds
        return [one for one in in_front if late and one.key <= self._last]


@dataclass(slots=True)
class Hints:
    """What recent transactions suggest for the next one. A wrong hint costs a read or a conflict, never an item."""

    met: float = -math.inf
    """When this process last met another one, by `time.monotonic`."""
    fulfilled: int = 1
    """How many items it last gave to all requests."""
    reach: int = 1
    """How far from the head its own items were."""
    is_first: bool = True
    """Whether no request was in front of its own."""
    read_at: int = 0
    """The version of its registration, to read at once; 0: read at the newest version."""
    pause: float = 0.0
    """How many seconds it waits before it checks the request in front. Each look doubles them."""
    lost_turns: int = 0
    """How many direct attempts conflicted, one after the other, although processes take turns."""

    def take_turns(self, db: Database) -> bool:
        """Return whether to take items directly beside other processes.

        Where processes take turns, a conflict is rare, and a direct attempt costs half of a request and a claim.
        """
        return self.lost_turns < MOST_LOST_TURNS and shares_turns(db)
