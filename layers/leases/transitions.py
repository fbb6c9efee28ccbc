"""Move leased items back, in one transaction: after a failure, at once or after a delay.

The moves themselves are in `fdbqueue/moves/moves.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fdbqueue import Position, Queue
from fdbqueue.lowlevel import Database, KeyValue, Layout, Moves, Notes, Steps, Transaction
from fdbqueue.moves.moves import ERROR_BYTES, at_rest, cut, cut_error, size_beside
from fdbqueue.moves.taking import removed_if_over
from fdbqueue.stored.looks import know_policy
from fdbqueue.stored.policies import Backoff, Policy

from .lease import Disposition

__all__ = [
    "ERROR_BYTES",
    "Custody",
    "Retry",
    "Transitions",
    "at_rest",
    "check_failure",
    "cut",
    "size_beside",
    "uncounted",
]


class Custody(Protocol):
    """The work of a layer in the transaction that leases an item, and in the one that ends an expired lease.

    For layers with items that refer to other items, as the pointers of `fdbqueue.layers.sessions` do.
    """

    items: Queue
    """The queue of those other items."""

    def lend(
        self, tr: Transaction, packed: bytes, stored: bytes, now_us: int, value: Any = None
    ) -> Steps[tuple[bytes, Any]]:
        """Return the bytes to store while the item is leased, and the value for its holder.

        Args:
            value: the item's value, if it was decoded.
        """

    def begin(self, tr: Transaction, found: Sequence[KeyValue], now_us: int) -> dict[bytes, Steps[tuple[bytes, Any]]]:
        """Begin to lend several items, so that their first reads are under way together.

        Returns the steps of `lend`, by the items' keys. Items that are missing there must be lent after these.
        """

    def expire(
        self, tr: Transaction, moves: Transitions, packed: bytes, stored: bytes, now_us: int
    ) -> Steps[Disposition | None]:
        """Move an item whose lease has expired, and return its disposition.

        Returns None, and writes nothing, if something that it must know can't be read.
        """

    def about(self, packed: bytes, stored: bytes) -> tuple[Any, Position | None]:
        """Return the name of what an item stands for, and which of its own items is in progress, if one is."""

    def release(self, tr: Transaction, moves: Transitions, address: Position, kind: str, now_us: int) -> Steps[bool]:
        """Release or remove an item that an item of the queue stands for; `kind` is that of a timer.

        Returns False if it is not in the queue.

        Raises:
            FormatError: a follow-up can't be read, and so not be released; nothing was written.
        """

    def tracked(self, tr: Transaction | Database) -> Iterator[tuple[bytes, str, Notes]]:
        """Yield the address, the place and the notes of every such item that has a completion or a group."""


@dataclass(frozen=True, slots=True)
class Retry:
    """What becomes of a queue's items whose attempts fail, and what layers do then."""

    layout: Layout
    """The queue whose policy it is."""
    spares: Callable[[Position, bytes], bool] | None = None
    """Called with the position and token of an expired lease; if true, the lease is not reclaimed. None: all are."""
    custody: Custody | None = None
    """The layer that takes part when items are leased and leases expire; None: no layer does."""

    @property
    def policy(self) -> Policy:
        """The queue's policy, by the last look at it."""
        return self.layout.known.policy

    @property
    def max_attempts(self) -> int | None:
        """The number of attempts after which an item becomes a dead letter; None: no limit."""
        return self.policy.max_attempts

    @property
    def backoff(self) -> Backoff | None:
        """Returns an item's wait before the next attempt; None: none was given, and there is no wait."""
        return self.policy.backoff

    async def known(self, tr: Transaction, *, last: bool = False) -> Policy:
        """Return the policy for a transaction that fails an attempt, by a look once a second.

        Args:
            last: whether the attempt was the last one, whatever its number.
        """
        await know_policy(tr, self.layout)
        return replace(self.policy, max_attempts=1) if last else self.policy


class Transitions(Moves):
    """The moves of one transaction, and the rules for items that are given back."""

    def put_back(self, packed: bytes, stored: bytes, notes: Notes, *, now_us: int, delay_us: int) -> Disposition:
        """Put an item back into its own place, at once or after a delay. Remove it instead if its life is over."""
        if removed_if_over(self, packed, stored, notes, now_us):
            return Disposition.expired
        if notes.group:
            self.returned_groups |= {notes.group}
        if delay_us > 0:
            self.enter_delayed(packed, stored, at_rest(notes, visible_at_us=now_us + delay_us))
            return Disposition.delayed
        self.enter_available(packed, stored, at_rest(notes))
        return Disposition.available

    def fail(
        self,
        packed: bytes,
        stored: bytes,
        notes: Notes,
        policy: Policy,
        *,
        now_us: int,
        delay_us: int | None,
        error: str,
    ) -> Disposition:
        """Put a leased item back whose attempt failed. After its last attempt, make it a dead letter.

        An item whose time to live is over is removed instead, also at its last attempt.
        """
        error = cut_error(error, notes)
        if delay_us is None:
            delay_us = policy.delay_us_in_any_case(notes.attempt)
        self.leave_leased(packed, notes)
        if policy.is_last(notes.attempt):
            if removed_if_over(self, packed, stored, notes, now_us):
                return Disposition.expired
            self.enter_dead(packed, stored, at_rest(notes, error=error, died_at_us=now_us))
            return Disposition.dead
        return self.put_back(packed, stored, at_rest(notes, error=error), now_us=now_us, delay_us=delay_us)


def uncounted(notes: Notes) -> Notes:
    """Return the notes of a leased item at rest, as if its lease had not been."""
    return at_rest(notes, attempt=notes.attempt - 1)


def check_failure(error: object, last: object = False) -> None:
    """Refuse the reason of a failure that is no text, and a `last` that is no bool.

    Raises:
        TypeError: `error` is neither a text nor None, or `last` is no bool.
    """
    if not isinstance(last, bool):
        raise TypeError(f"last is True or False: whether this attempt was the last one. Not {last!r}.")
    if error is not None and not isinstance(error, str):
        raise TypeError(f"error is a text, as in error=str(error), not {error!r}.")
