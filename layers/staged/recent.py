"""What a process knows from its last transactions, to save reads: its leases, the version, the next items."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdbqueue.engine.blocking import in_thread
from fdbqueue.engine.transactional import repeated
from fdbqueue.engine.waiting import pause
from fdbqueue.lowlevel import TAKEN, Database, KeyValue, Layout, Transaction

from ..leases import Lease, LeaseRef
from ..leases.holding import Live
from ..leases.taking import Got, HeadRead
from .delivery import HeadDelivery
from .requests import UNMARKED

if TYPE_CHECKING:
    from .grants import Attempt


# Remember leases that this process took recently, and the version of the database at which they were live.
#
# An ack reads the leased item to check that the lease is still the present one. This read is not needed if the lease
# was live at a known version. Then the ack's transaction begins at that version, with a read conflict on the leased
# item's key. It commits only if no other transaction has changed the item since. It asks for no version, reads
# nothing, and takes one round trip.

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


# Prefetch: predict the next items from this process's last transaction.
#
# A transaction at the head reads a few items more than it takes. When it commits, the process knows which items are at
# the head now: a change among them would have been a conflict. The next transaction begins with this knowledge. It
# reads nothing and asks for no version. Its commit is its only round trip. (docs/adr/0043)
#
# It begins one version before the last commit. Several commits of one batch share a version. A transaction that began
# at that version would miss conflicts with the batch's later commits. One version earlier it conflicts with them, and
# also with the last commit's own write. So its conflict range leaves out that write: the key of the one item that was
# taken, which no other process puts back.


class Unforeseen(Exception):
    """Ends a transaction whose prediction was wrong."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The first items of a queue; the first `taken` ones are gone."""

    rows: Sequence[KeyValue]
    taken: int
    version: int = 0
    """The version at which this holds, except for the item taken last."""

    @property
    def next(self) -> KeyValue:
        """The first item that is left."""
        return self.rows[self.taken]

    def expect(self, tr: Transaction, begin: bytes) -> None:
        """Conflict with each change from `begin` on that makes this prediction wrong. Call this before any write.

        Taking one item conflicts with less. This also conflicts with a registered request, a set timer, and an item
        that appears between two of these. In all these cases except the last, the item is not ours to take. The last
        case happens if producers share an index.
        """
        end = self.rows[-1].key + b"\x00"
        if self.taken:
            gone = self.rows[self.taken - 1].key
            tr.add_read_conflict_range(begin, gone)
            begin = gone + TAKEN
        tr.add_read_conflict_range(begin, end)

    def after(self) -> Prefetch | None:
        """Return the prediction after one more item is taken; None if no item is left in it."""
        return Prefetch(self.rows, self.taken + 1) if self.taken + 1 < len(self.rows) else None


# Versions that this process saw recently, so that its next reads or writes need fewer round trips.
#
# Nothing here decides which process gets an item. A wrong guess costs one round trip.

RECENT_SECONDS = 1.0
"""How long a version is used. Both engines check conflicts for five seconds; older versions are never needed."""
PAUSE_CALLS = 64
"""After a read at a version failed, so many calls don't try again."""


class RecentVersion:
    """A version of the database that this process saw recently.

    A transaction that reads nothing may begin at it, without a round trip for a newer one. The commit orders its writes
    anyway.
    """

    __slots__ = ("_seen_at", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._seen_at = 0.0

    def note(self, version: int) -> None:
        """Remember a version that was just committed or read; 0 or less: there is none."""
        if version > 0:
            self._version, self._seen_at = version, time.monotonic()

    def take(self) -> int:
        """Return the version and forget it, so that a failed attempt gets a new one. Return 0 if there is none."""
        version, self._version = self._version, 0
        return version if time.monotonic() - self._seen_at < RECENT_SECONDS else 0


class OwnVersion:
    """Whether to read at the version of one's own registration, without a round trip for a newer version.

    A cluster serves that version for seconds, the embedded engine only until the next commit.
    """

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = 0

    def of(self, version: int) -> int:
        """Return the version to read at, after a registration that committed at `version`; 0: the newest."""
        if self._pause:
            self._pause -= 1
            return 0
        return max(version, 0)

    def was_refused(self) -> None:
        """Note that a read at that version failed."""
        self._pause = PAUSE_CALLS


# Take items out one after the other, for a process that meets no other one at the head of a queue.
#
# One read returns the head and shows whether other keys are in front of it. When prefetch pays, the process takes the
# items that it predicted, without a read. Nothing here decides which process gets an item: a wrong prediction only
# costs a conflict.

ROWS_AT_MOST = 32
BYTES_AT_MOST = 50_000
"""About how many bytes are prefetched."""
WORTH_SECONDS = 0.0002
"""If a read of the head takes less time, prefetch saves nothing."""
WRONG_CALLS = 16
"""After a wrong prediction, so many calls read the head. Then one commit in so many is wasted at most."""


class Uncontended:
    """Takes single items out for one uncontended process.

    Args:
        delivery: the delivery of the queue.
        layout: the layout of the queue.
        begin: the begin of the range of requests.
    """

    __slots__ = (
        *("_begin", "_delivery", "_layout", "_limit", "_pause", "_prefetch", "_seen_at"),
        *("guessed", "may_prefetch"),
    )

    def __init__(self, delivery: HeadDelivery, layout: Layout, begin: bytes, *, may_prefetch: bool = True) -> None:
        self._delivery = delivery
        self._layout = layout
        self._begin = begin
        self._prefetch: Prefetch | None = None
        self._seen_at = 0.0
        self._limit = 1
        self._pause = 0
        self.guessed = False
        """Whether the last attempt conflicts with more than the item that it takes. Such a conflict does not prove
        contention yet."""
        self.may_prefetch = may_prefetch
        """Whether a read has a round trip, which prefetch can save."""

    async def take(self, tr: Transaction, attempt: Attempt) -> HeadRead | None:
        """Take one item out for an attempt. Else return the look, as `HeadDelivery.look_uncontended` does.

        Raises:
            Unforeseen: the predicted item can't be taken.
        """
        # Forgotten here, so that an attempt after a failed one reads the head.
        prefetch, self._prefetch = self._known() if self._prefetch is not None else None, None
        found: list[KeyValue] = []
        limit = self._limit if self.may_prefetch else 1
        if prefetch is not None:
            tr.set_read_version(prefetch.version)
        else:
            began_at = time.monotonic()
            seen = await self._delivery.rows_uncontended(tr, self._begin, limit=limit)
            if seen is None:
                return await self._delivery.look_past_timers(tr, self._begin, limit=1)
            if not seen:
                return self._delivery.looked(seen, limit=limit)
            found = seen
            if self.may_prefetch:
                self._looked(found, time.monotonic() - began_at)
            if len(found) > 1:
                prefetch = Prefetch(found, 0)
        if prefetch is not None:
            self.guessed = True
            prefetch.expect(tr, self._begin)
            row = prefetch.next
        else:
            row = found[0]
            tr.add_read_conflict_range(self._layout.begin, row.key + b"\x00")
        got = await self._delivery.take_next(tr, row)
        if got is None:
            if not found:
                raise Unforeseen  # a call that reads the head gets the item's error
            return self._delivery.looked(found, limit=limit)
        attempt.got = [got]
        if prefetch is not None:
            attempt.prefetch = prefetch.after()
        return None

    def committed(self, prefetch: Prefetch, version: int) -> None:
        """Keep the prefetch of a commit, valid just before the commit's version; 0 or less: the version is unknown."""
        if version > 0:
            self._prefetch = Prefetch(prefetch.rows, prefetch.taken, version - 1)
            self._seen_at = time.monotonic()

    def was_wrong(self) -> None:
        """Stop prefetching for some calls."""
        self._limit, self._pause = 1, WRONG_CALLS

    def _known(self) -> Prefetch | None:
        if self._prefetch is None or time.monotonic() - self._seen_at < RECENT_SECONDS:
            return self._prefetch
        self._limit = 1  # calls are too rare for prefetch
        return None

    def _looked(self, rows: Sequence[KeyValue], seconds: float) -> None:
        """Read more the next time, if the look took so long that prefetch saves time."""
        if self._pause:
            self._pause -= 1
        elif self.may_prefetch and seconds >= WORTH_SECONDS:
            size = sum(len(row.value) for row in rows)
            self._limit = max(1, len(rows) // 2) if size > BYTES_AT_MOST else min(2 * self._limit, ROWS_AT_MOST)
