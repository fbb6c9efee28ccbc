"""Remember leases that this process took recently, and the version of the database at which they were live.

An ack reads the leased item to check that the lease is still the present one. This read is not needed if the lease was
live at a known version. Then the ack's transaction begins at that version, with a read conflict on the leased item's
key. It commits only if no other transaction has changed the item since. It asks for no version, reads nothing, and
takes one round trip.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from fdbqueue.engine.finishing import in_thread
from fdbqueue.engine.transactional import repeated
from fdbqueue.engine.waiting import pause
from fdbqueue.lowlevel import Database, Transaction

from ..leases import Lease, LeaseRef
from ..leases.holding import Live
from ..leases.taking import Got
from .granting import UNMARKED

REMEMBER_SECONDS = 3.0
"""Below the five seconds that a transaction may take until it commits."""
CONFIRM_SECONDS = 0.1
"""After this time a process that took a grant without a mark commits that, unless it has committed since."""
COMMITS_BEHIND = 4
"""Where reads have no round trips: after so many commits of this process for each lease, a read costs less than the
search of what was committed since."""
_Key = tuple[bytes, int, bytes, int | None]
"""The token, and the parts of the position."""


class RecentLeases:
    """The leases that one process took within the last seconds."""

    def __init__(self) -> None:
        self._live: dict[_Key, tuple[int, Live]] = {}
        """Each lease, and how many commits were counted when it was taken."""
        self._ages: deque[tuple[float, list[_Key]]] = deque()
        self._commits = 0
        self._grants: set[bytes] = set()
        self._clients: set[bytes] = set()
        self._confirming = False
        self._lock = threading.Lock()

    def add(self, version: int, taken: Sequence[Got]) -> None:
        """Add leases that were live at a version, of a commit of this process."""
        now = time.monotonic()
        with self._lock:
            while self._ages and now - self._ages[0][0] > REMEMBER_SECONDS:
                for key in self._ages.popleft()[1]:
                    self._live.pop(key, None)
            self._commits += 1
            keys: list[_Key] = []
            for given, packed, stored, _, lent in taken if version > 0 else ():
                if isinstance(given, Lease) and not lent.group:  # the end of a member needs reads
                    position = given.position
                    key = (given.token, position.index, position.random, position.rank)
                    self._live[key] = self._commits, Live(version, packed, stored, lent)
                    keys.append(key)
            if keys:
                self._ages.append((now, keys))

    def take(self, leases: Sequence[LeaseRef], *, saves_reads: bool = True) -> list[Live]:
        """Return and forget these leases, if all were live at the same version; else return nothing.

        Args:
            saves_reads: whether reads have round trips. Otherwise leases are only returned soon after they were taken.
        """
        live: list[Live] = []
        commits = 0
        with self._lock:
            for lease in leases:
                position = lease.position
                one = self._live.pop((lease.token, position.index, position.random, position.rank), None)
                if one is not None:
                    commits = one[0]
                    live.append(one[1])
            self._commits += 1
            behind = self._commits - commits
            fresh = self._ages and time.monotonic() - self._ages[-1][0] <= REMEMBER_SECONDS
        if not fresh or len(live) < len(leases):
            return []
        if not saves_reads and behind > COMMITS_BEHIND * len(live):
            return []
        version = live[0].version
        for one_live in live:
            if one_live.version != version:
                return []
        return live

    def leave_grant(self, keys: Iterable[bytes]) -> None:
        """Note that a grant's keys are no longer needed. The next transaction of this process that commits removes
        them."""
        with self._lock:
            self._grants.update(keys)

    def confirm_soon(self, db: Database, client: bytes) -> None:
        """Remove the keys of taken grants in the background, unless a commit of this process does so first.

        Args:
            db: the database.
            client: the id of the client that took a grant.
        """
        UNMARKED.add(client)
        with self._lock:
            self._clients.add(client)
            if self._confirming:
                return
            self._confirming = True
        # The transaction is made here: the database may be closed before it is used.
        in_thread(self._confirm(db.create_transaction()))

    async def _confirm(self, tr: Transaction) -> None:
        try:
            while True:
                await pause(CONFIRM_SECONDS)
                with self._lock:
                    if not self._grants:
                        self._end_confirming()
                        return
                self.forget_grants(await repeated(tr, self._clear))
                tr.reset()
        except BaseException:
            with self._lock:
                self._end_confirming()
            raise

    def _end_confirming(self) -> None:
        self._confirming = False
        UNMARKED.difference_update(self._clients)
        self._clients.clear()

    async def _clear(self, tr: Transaction) -> list[bytes]:
        return self.clear_grants(tr)

    def clear_grants(self, tr: Transaction) -> list[bytes]:
        """Clear these keys, and return them. The caller forgets them after the commit."""
        if not self._grants:
            return []
        with self._lock:
            keys = list(self._grants)
        for key in keys:
            tr.clear(key)
        return keys

    def forget_grants(self, keys: list[bytes]) -> None:
        """Forget keys that a commit removed."""
        with self._lock:
            self._grants.difference_update(keys)
