"""Requests that are registered before their calls: a process that takes one item after the other keeps a place.

Under contention an item costs two commits: one registers the request, one takes the assigned item. If a process has
come back quickly several times, the commit that takes an item also registers the request for its next call. Then that
call needs one commit.

An early request has no waiting call. So it gets no grants, it lives for a moment only, and other processes go past it
as past any request. If the call does not come in time, its item goes to later requests. (docs/adr/0120)
"""

from __future__ import annotations

import time
from typing import Any

from fdbqueue.lowlevel import FDBError, Future, Steps, Transaction

from ._requests import EARLY_SECONDS, Request, Requests, Wish

QUICK_CALLS = 4
"""After so many calls that came quickly, one after the other, a process registers early."""
MET_SECONDS = 0.1
"""A process that met no other one for so long takes its items without a request."""
PAUSE_CALLS = 16
"""After a call that did not come in time, so many calls must come quickly instead."""


class EarlyRequest:
    """The early request of one process, and whether its calls come quickly enough for one."""

    __slots__ = ("_at", "_quick", "_request", "_served_at", "_version", "dropped", "saves_commits")

    def __init__(self) -> None:
        self._request: Request | None = None
        self._version = 0
        self._at = self._served_at = 0.0
        self._quick = 0
        self.saves_commits = True
        """Whether others take items at the same time; where processes take turns, an item costs one commit anyway."""
        self.dropped = b""
        """The key of an early request that this process will not use; b"" if there is none."""

    def take(self, wanted: int) -> tuple[Request, int] | None:
        """Return the early request for calls that have come, and its version. Drop it if they can't use it.

        Args:
            wanted: how many items the calls want.
        """
        now = time.monotonic()
        # Half of its life: by other clocks it may end sooner.
        quick = now - self._served_at < EARLY_SECONDS / 2
        self._quick = self._quick + 1 if quick else min(self._quick, 0)
        request, self._request = self._request, None
        if request is None:
            return None
        if wanted == 1 and now - self._at < EARLY_SECONDS / 2:
            return request, self._version
        self._quick = -PAUSE_CALLS
        self.dropped = request.key
        return None

    def is_worthwhile(self, met: float, wanted: int) -> bool:
        """Return whether to register early: others are there, the next call will come soon, and will want one item.

        Args:
            met: when this process last met another one.
            wanted: how many items its calls want now.
        """
        if not self.saves_commits or self._quick < QUICK_CALLS or self.dropped or wanted != 1:
            return False
        return time.monotonic() - met <= MET_SECONDS

    def served(self) -> None:
        """Note that calls got their items."""
        self._served_at = time.monotonic()

    def keep(self, requests: Requests, version: int, wish: Wish, stamp: Future[Any]) -> Steps[None]:
        """Keep a request that was registered early, at a version, for the next call."""
        try:
            key = requests.key(bytes((yield stamp)))
        except FDBError:
            return  # The commit's outcome was unknown at first, and its versionstamp is lost. The request expires.
        self._request, self._version, self._at = Request(key, wish), version, time.monotonic()

    def drop(self, tr: Transaction, requests: Requests) -> bytes:
        """Remove an early request that was not used. Return its key; b"" if there is none."""
        if self.dropped:
            requests.drop(tr, self.dropped)
        return self.dropped
