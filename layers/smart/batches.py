"""Enqueues many messages in few transactions, each exactly once; each is also compared with those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from fdbqueue import BulkInterrupted, BulkReport, Queue
from fdbqueue.lowlevel import Database, FDBError, Steps, Transaction, leaves_in_doubt
from fdbqueue.writes.adaptive_limit import Halving

from ._decisions import Outcome
from .check_runner import Incoming

BATCH_MESSAGES = 100
"""How many share a transaction: each reads the writes of those before it, so they run one after the other."""
BATCH_BYTES = 1_000_000

Admit: TypeAlias = Callable[[Transaction, Incoming], Steps[Outcome]]


async def admit_all(tr: Transaction, prepared: list[Incoming], admit: Admit) -> list[Outcome]:
    """Admit incoming items one after the other, in one transaction."""
    outcomes = []
    for new in prepared:
        outcome = await admit(tr, new)
        outcomes.append(outcome)
    return outcomes


class _OneFails(Exception):
    """One of the messages of a batch fails."""


@dataclass(slots=True)
class SmartBatches:
    """Enqueues the messages of one call.

    If one message fails, its batch is not written. The batch is split until each message is tried in its own
    transaction. So the messages before the failing one are enqueued, and each message waits for room separately.
    """

    queue: Queue
    incoming: Callable[[Any], Incoming]
    """Prepares a message."""
    admit: Admit
    """Compares and enqueues it in a transaction."""
    alone: Callable[..., Steps[Outcome]]
    """Does so in its own transaction, ``alone(new=…)``; waits for room if the limit says so."""
    taken: int = 0
    """How many messages were read from the input."""
    tried: int = 0
    """How many messages the last transaction had."""

    async def enqueue(self, db: Database, messages: Iterable[Any]) -> list[Outcome]:
        """Enqueue all messages; raise `BulkInterrupted` if one fails after others were enqueued."""
        outcomes: list[Outcome] = []
        try:
            halving = Halving(self._cut(messages))
            for batch in halving:
                await self._batch(db, batch, outcomes, halving)
        except Exception as error:
            if not outcomes:
                raise
            raise self._interrupted(outcomes, error) from error
        return outcomes

    async def _batch(
        self, db: Database, batch: list[Incoming], outcomes: list[Outcome], halving: Halving[Incoming]
    ) -> None:
        async def body(tr: Transaction) -> list[Outcome]:
            try:
                return await admit_all(tr, batch, self.admit)
            except FDBError:
                raise
            except Exception as error:
                raise _OneFails from error  # a transaction with this message only raises its error

        self.tried = len(batch)
        if len(batch) == 1:
            outcomes.append(await self.alone(new=batch[0]))
            return
        try:
            outcomes += await self.queue.transact(db, body, on_retry=halving.note)
        except _OneFails:
            halving.halve()
        except FDBError as error:
            halving.halve(error)

    def _cut(self, messages: Iterable[Any]) -> Iterator[list[Incoming]]:
        batch: list[Incoming] = []
        size_bytes = 0
        for message in messages:
            self.taken += 1
            try:
                new = self.incoming(message)
            except Exception:
                if batch:
                    yield batch  # enqueue the messages before the failing one
                raise
            if batch and (len(batch) >= BATCH_MESSAGES or size_bytes + len(new.payload) > BATCH_BYTES):
                yield batch
                batch, size_bytes = [], 0
            batch.append(new)
            size_bytes += len(new.payload)
        if batch:
            yield batch

    def _interrupted(self, outcomes: list[Outcome], error: Exception) -> BulkInterrupted:
        done = len(outcomes)
        positions = [outcome.position for outcome in outcomes if outcome.position is not None]
        ends = (positions[0], positions[-1]) if positions else (None, None)
        known = done + self.tried if leaves_in_doubt(error) else done
        return BulkInterrupted(
            f"The enqueue into {self.queue!r} stopped after {done:,} messages were dealt with: {error} Go on with the"
            " next one, or leave it out.",
            report=BulkReport(len(positions), 0, *ends),
            missing=[(known, self.taken)] if known < self.taken else [],
            unknown=[(done, known)] if done < known else [],
        )
