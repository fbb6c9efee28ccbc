"""Waiting a moment for company: threads that commit again and again go together, and the last to come leads.

Python runs one thread at a time. Were each to commit for itself as soon as it could, sixteen threads would hand the
interpreter to and fro at every call into LMDB and be several times slower than one. So a thread that finds others
about, who have committed lately and are not yet there, sleeps until the last of them comes or a short time is over.
A thread that waited in vain makes the next ones wait more rarely; a thread alone never waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, get_ident
from typing import Final

from fdbqueue.engine.embedded.request import CommitRequest

SECONDS_PER_THREAD: Final = 0.0002
LONGEST_HOLDOFF: Final = 1024


class Gathering:
    """Which threads have committed lately, and whether it pays to wait for them."""

    __slots__ = ("_holdoff", "_skip", "_threads")

    def __init__(self) -> None:
        self._threads: dict[int, None] = {}
        self._holdoff = 1
        self._skip = 0

    def complete(self, pending: Sequence[CommitRequest]) -> bool:
        """Note that the calling thread commits; say whether nobody else is to be waited for."""
        threads = self._threads
        threads[get_ident()] = None
        return len(threads) == 1 or len(pending) >= len(threads)

    def wait(self, request: CommitRequest, pending: Sequence[CommitRequest], lead: Lock) -> None:
        """Sleep until `request` was committed with others, or it is time to go without them."""
        if self._skip:
            self._skip -= 1
            return
        if request.close_gate().acquire(timeout=SECONDS_PER_THREAD * len(self._threads)):
            if request.settled():
                self._holdoff = 1
            return
        if lead.locked():
            return  # they came, and are being committed
        # Some have left. Those who are still about will be noted again.
        self._threads = {}
        if len(pending) <= 1:
            self._skip = self._holdoff
            self._holdoff = min(2 * self._holdoff, LONGEST_HOLDOFF)
