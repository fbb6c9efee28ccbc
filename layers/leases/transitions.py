"""Move leased items back, in one transaction: after a failure, at once or after a delay.

The moves themselves are in `fdbqueue/moves/moves.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fdbqueue import Position
from fdbqueue.lowlevel import Layout, Moves, Notes, Steps, Transaction
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.looks import look
from fdbqueue.stored.policies import Policy

from .lease import Disposition

Overdue: TypeAlias = tuple[bytes, bytes, Notes]
"""An item whose lease has expired: its packed position, its stored bytes and its notes."""
Release: TypeAlias = "Callable[[Transaction, Transitions, Position, str, int], Steps[bool]]"
"""Releases or removes the item at an address, by the kind of a timer, at a time. It returns False if it is not there.

It raises a FormatError, and writes nothing, if a follow-up can't be read, and so not be released.
"""


@dataclass(frozen=True, slots=True)
class Retry:
    """What becomes of a queue's items whose attempts fail.

    The items of a queue stand for themselves. A layer with items that stand for others, as the pointers of
    `fdbqueue.layers.sessions` do, overrides what it decides about these.
    """

    layout: Layout
    """The queue whose policy it is."""
    spares: Callable[[Position, bytes], bool] | None = None
    """Called with the position and token of an expired lease; if true, the lease is not reclaimed. None: all are."""

    @property
    def home(self) -> Layout:
        """The keys of the queue that users know: whose items these are, or stand for."""
        return self.layout

    @property
    def release(self) -> Release | None:
        """Releases or removes an item that another one stands for; None: the items stand for themselves."""
        return None

    async def expire(self, tr: Transaction, moves: Transitions, overdue: Overdue, now_us: int) -> Disposition | None:
        """Move an item whose lease has expired, and return its disposition.

        Returns None, and writes nothing, if something that it must know can't be read.
        """
        packed, stored, notes = overdue
        error = f"The lease of {notes.consumer or 'a consumer'} expired."
        policy = await self.known(tr)
        delay_us = policy.delay_left_us(notes.attempt, since_us=notes.expires_at_us, now_us=now_us)
        return moves.fail(packed, stored, notes, policy, now_us=now_us, delay_us=delay_us, error=error)

    def about(self, packed: bytes, stored: bytes) -> tuple[Any, Position | None]:
        """Return the name of what an item stands for, and which of its own items is in progress, if one is."""
        return None, None

    @property
    def policy(self) -> Policy:
        """The queue's policy, by the last look at it."""
        return self.layout.known.policy

    async def known(self, tr: Transaction, *, last: bool = False) -> Policy:
        """Return the policy for a transaction that fails an attempt, by a look once a second.

        Args:
            last: whether the attempt was the last one, whatever its number.
        """
        known = self.layout.known
        if not (known.is_part or known.relies(tr)):
            await look(tr, self.layout)
        return replace(known.policy, max_attempts=1) if last else known.policy


class Transitions(Moves):
    """The moves of one transaction, and the rules for items that are given back."""

    def put_back(self, packed: bytes, stored: bytes, notes: Notes, *, now_us: int, delay_us: int) -> Disposition:
        """Put an item back into its own place, at once or after a delay. Remove it instead if its life is over."""
        if Takes.removed_if_over(self, packed, stored, notes, now_us):
            return Disposition.expired
        if notes.group:
            self.returned_groups |= {notes.group}
        if delay_us > 0:
            self.enter_delayed(packed, stored, notes.at_rest(visible_at_us=now_us + delay_us))
            return Disposition.delayed
        self.enter_available(packed, stored, notes.at_rest())
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
        error = notes.cut_error(error)
        if delay_us is None:
            delay_us = policy.delay_us_in_any_case(notes.attempt)
        self.leave_leased(packed, notes)
        if policy.is_last(notes.attempt):
            if Takes.removed_if_over(self, packed, stored, notes, now_us):
                return Disposition.expired
            self.enter_dead(packed, stored, notes.at_rest(error=error, died_at_us=now_us))
            return Disposition.dead
        return self.put_back(packed, stored, notes.at_rest(error=error), now_us=now_us, delay_us=delay_us)


def uncounted(notes: Notes) -> Notes:
    """Return the notes of a leased item at rest, as if its lease had not been."""
    return notes.at_rest(attempt=notes.attempt - 1)


def check_failure(error: object, last: object = False) -> None:
    """Refuse the reason of a failure that is no text, and a `last` that is no bool.

    Raises:
        TypeError: `error` is neither a text nor None, or `last` is no bool.
    """
    if not isinstance(last, bool):
        raise TypeError(f"last is True or False: whether this attempt was the last one. Not {last!r}.")
    if error is not None and not isinstance(error, str):
        raise TypeError(f"error is a text, as in error=str(error), not {error!r}.")
