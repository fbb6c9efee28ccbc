"""Reading ahead: what a leader will read for its next turn, it reads as of its own last commit. (docs/adr/0077)

Who leads comes again at once. It needs no new version of the database for that: the requests and the head, as of the
last version that it saw, can be read while its callers are on their way back. The conflicts are what they always are,
with whatever has come to stand in front of the last item taken, from that version on.
"""

from __future__ import annotations

import time

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.steps import Steps, finished, started

from .pacing import RecentVersion
from .requests import Request, Requests
from .serving import Look, Serving
from .turn import Unforeseen

FRESH_SECONDS = 0.003
"""How old the version may be. So long, at most, a leader's callers go in front of a request that they did not see."""
WORTH_SECONDS = 0.0002
"""Who reads in less time has nothing to save."""


class ReadsAhead:
    """What one process reads before its next turn begins.

    Args:
        requests: of the queue.
        serving: of the queue.
        recent: the version that this process saw last.
        most: how many requests to read.
    """

    __slots__ = ("_ahead", "_most", "_recent", "_requests", "_serving", "_took")

    def __init__(self, requests: Requests, serving: Serving, recent: RecentVersion, *, most: int) -> None:
        self._requests = requests
        self._serving = serving
        self._recent = recent
        self._most = most
        self._ahead: _Ahead | None = None
        self._took = 0.0

    def looked(self, seconds: float) -> None:
        """Note how long it took to read with a new version."""
        self._took = seconds

    def saw_too_little(self) -> None:
        """Read with a new version the next time."""
        self._took = 0.0

    def begin(self, db: Database, version: int, *, limit: int) -> None:
        """Begin to read as of a commit just made; 0 or less: its version is not known."""
        if version > 0 and self._took >= WORTH_SECONDS:
            self._ahead = _Ahead(db, version, self._requests, self._serving, most=self._most, limit=limit)

    def take(self, tr: Transaction) -> Steps[tuple[list[Request], Look] | None]:
        """Let a transaction begin with what was read; return that, and forget it, so that a second attempt reads.

        Raises:
            Unforeseen: it could not be read.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or time.monotonic() - ahead.began_at > FRESH_SECONDS:
            return None
        tr.set_read_version(ahead.version)
        try:
            return (yield from ahead.seen())
        except FDBError as error:
            raise Unforeseen from error

    def begin_at_recent(self, tr: Transaction) -> bool:
        """Let a transaction read as of what was seen last, for those who had something else to commit in between."""
        if self._took < WORTH_SECONDS or not self._recent.fresh(FRESH_SECONDS):
            return False
        tr.set_read_version(self._recent.take())
        return True


class _Ahead:
    """What is being read for one turn."""

    __slots__ = ("_look", "_serving", "_standing", "_tr", "began_at", "version")

    def __init__(
        self, db: Database, version: int, requests: Requests, serving: Serving, *, most: int, limit: int
    ) -> None:
        self.version = version
        self.began_at = time.monotonic()
        self._serving = serving
        self._tr = db.create_transaction()
        self._tr.set_read_version(version)
        self._standing = started(requests.first(self._tr, limit=most))
        self._look = serving.look(self._tr, limit=limit)

    def seen(self) -> Steps[tuple[list[Request], Look]]:
        """Return the requests and the head."""
        standing = yield from self._standing
        due, head = yield from self._serving.see(self._tr, self._look)
        return standing, Look(self._look.now_us, finished(due), self._look.limit, finished(head))
