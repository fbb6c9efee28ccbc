"""Exactly once when a commit's outcome is unknown.

A commit can fail with 1021: it may or may not have taken effect. A blind retry would enqueue twice, or dequeue a second
item and lose the first. So a self-committing transaction also writes a commit marker. The marker is unique to the
attempt, and only one caller uses its key at a time. After an unknown outcome the caller reads the marker and learns it.
(`fdbqueue/engine/transactional.py`, docs/adr/0007)

The marker's key is ``(queue, "once", client, slot)``. It must not be among the keys of another queue, so that a call of
an object that does not know its queue to be registered looks at other names first. (docs/adr/0160)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.errors import FDBError, adopt_binding
from fdbqueue.engine.optional import no_turn
from fdbqueue.engine.steps import Steps, begun, started, value_of
from fdbqueue.engine.transactional import Client, SlotClaim, connected
from fdbqueue.errors import QueueFull
from fdbqueue.moves.admission import wait_for_room
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import refuse_others_keys

T = TypeVar("T")


class Once:
    """Runs transactions of one queue so that each takes effect exactly once, or fails without effect."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._client: Client | None = None
        self._adopted: Callable[[], Any] = _nothing
        """A weak reference to the database of the last call, whose errors are `FDBError`."""

    async def transact(
        self,
        db: Database,
        body: Callable[[Transaction], Steps[T]],
        *,
        on_retry: Callable[[FDBError], None] = lambda error: None,
        takes: bool = False,
        looks: bool = False,
    ) -> T:
        """Run `body` in a transaction of its own, and commit it exactly once.

        Args:
            db: the database.
            body: its steps. They run again at every retry.
            on_retry: called with the error before each retry, once it is certain that the attempt had no effect. An
                exception from it ends the call.
            takes: whether the body takes the first items of a queue, and so waits for this process's turn.
            looks: whether the body looks at other names itself.

        Raises:
            FDBError: an error that `Transaction.on_error` does not retry. The outcome is unknown (`leaves_in_doubt`)
                with 1021 and 1031. 1021 means that no more retries are allowed or that the marker can't be read; its
                cause says why. 1031 comes from a timeout that the caller set on `db`.
            NestedQueue: the queue is not registered, and its name lies within that of another queue, or around it.

        *Conflicts:* only the body's. *Cost:* one more key written; one more read after a 1021;
        `refuse_others_keys` once a second.
        """
        if self._adopted() is not db:
            await connected(db)
            adopt_binding()
            self._adopted = weakref.ref(db)
        client: Any = self._client
        sweeping = None
        if client is None or client.pid != os.getpid():
            sweeping = started(self.sweep(db))
            client = self._client
        if takes and (coming := getattr(db, "next_turn", no_turn)()) is not None:
            await value_of(coming)
        tr = db.create_transaction()
        if not (looks or self._layout.known.is_beside(tr)):
            body = partial(self._beside_others, body=body)
        if sweeping is not None:
            body = partial(_beside_sweep, body=body, sweeping=sweeping)
        claim = SlotClaim(client)
        try:
            while True:
                try:
                    return await claim.transact(tr, body, on_retry=on_retry)
                except QueueFull as error:
                    await wait_for_room(db, error)
                    tr = db.create_transaction()
        finally:
            claim.close()

    async def _beside_others(self, tr: Transaction, *, body: Callable[[Transaction], Steps[T]]) -> T:
        """Run a body, and refuse what it has written if the keys are among those of another queue."""
        result = await begun(body, tr)  # it goes first, since it may set the version to read at
        await refuse_others_keys(tr, self._layout)
        return result

    def claim(self) -> SlotClaim:
        """Claim a marker's key for one call at a time. The caller closes the claim."""
        client = self._client
        if client is None or client.pid != os.getpid():
            client = self._client = Client(self._layout.markers.key())
        return SlotClaim(client)

    async def sweep(self, db: Database) -> None:
        """Remove some markers of clients that are long gone, once in this client's life."""
        client = self._client
        if client is not None and client.pid == os.getpid():
            return
        client = self._client = Client(self._layout.markers.key())
        await connected(db)
        await client.sweep(db)


async def _beside_sweep(tr: Transaction, *, body: Callable[[Transaction], Steps[T]], sweeping: Steps[None]) -> T:
    """Run a body, and end a sweep that is under way: its failure is that of the call, so it comes before the commit."""
    result = await begun(body, tr)
    await sweeping
    return result


def _nothing() -> None:
    """Refer to no database."""
