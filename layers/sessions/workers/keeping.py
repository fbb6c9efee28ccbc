"""The session that `ack_and_next` keeps for its next item, and gives back if its caller has gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from fdbqueue import Queue
from fdbqueue.engine.blocking import in_thread
from fdbqueue.lowlevel import Database, FDBError, Steps, Transaction, V, leaves_in_doubt

from ...common.waiting import finish
from ...leases import Lease
from ..session.lease import SessionLease
from ..session.records import Held

if TYPE_CHECKING:
    from .working import Working


class KeptSession(Generic[V]):
    """One call of `ack_and_next` with a database, and the session that it keeps.

    Args:
        working: opens the lease of the next item, or ends the session's lease.
        queue: whose transactions run the body.
        db: the database.
        body: acks an item and keeps its session; None if the turn is over.
    """

    __slots__ = ("_body", "_db", "_pointer", "_queue", "_tried", "_working", "handed_over")

    def __init__(
        self,
        working: Working[V],
        queue: Queue[V],
        db: Database,
        body: Callable[[Transaction], Steps[Lease[Held] | None]],
    ) -> None:
        self._working = working
        self._queue = queue
        self._db = db
        self._body = body
        self._tried: Lease[Held] | None = None
        """What the last attempt keeps, whatever becomes of its commit."""
        self._pointer: Lease[Held] | None = None
        """The session's lease, once it is committed."""
        self.handed_over = False
        """Whether a thread does what is left to do."""

    async def lease(self) -> SessionLease[V] | None:
        """Make the call, and return the lease of the next item.

        A call that is cancelled goes on in a thread, which then gives the session back. So does a thread after an error
        that leaves the commit in doubt.
        """
        try:
            return await finish(self._work(), self)
        except Exception:
            raise
        except BaseException:
            if not self.handed_over:  # Ctrl-C came between two waits
                in_thread(self.inherit())
            raise

    async def inherit(self) -> None:
        """Give the session back, if it was kept."""
        if self._pointer is not None:
            await self._working.give_back(self._db, self._pointer)

    async def _work(self) -> SessionLease[V] | None:
        try:
            self._pointer = await self._queue.transact(self._db, self._attempt)
        except FDBError as error:
            if self._tried is not None and leaves_in_doubt(error):
                in_thread(self._working.give_back(self._db, self._tried))
            raise
        return None if self._pointer is None else await self._working.opened(self._db, self._pointer)

    async def _attempt(self, tr: Transaction) -> Lease[Held] | None:
        self._tried = await self._body(tr)
        return self._tried
