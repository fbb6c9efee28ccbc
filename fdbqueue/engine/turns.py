"""Turns: transactions that take items from the head of a queue, one process after the other.

Of several transactions that take the same item, one commits. On a cluster the layers arrange for that. The embedded
engine knows all processes that use its folder. There a process waits for its turn before the first read of such a
transaction, and no other process begins one while it has the turn. (docs/adr/0018)

A database or transaction with turns has a method ``next_turn``. It returns None if the process has the turn, and the
future of its next turn otherwise. A turn is a hint: conflicts are checked at the commit, with or without it. So the
process may wait during its turn, and nothing must give the turn back.
"""

from __future__ import annotations

from typing import Any


def no_turn() -> None:
    """Return None, for engines without turns: ``getattr(db, "next_turn", no_turn)()``."""


def has_turns(db: Any) -> bool:
    """Return whether `db` has turns. Then it has no round trips, and it is useless to save reads."""
    return hasattr(db, "next_turn")


def shares_turns(db: Any) -> bool:
    """Return whether another process took a turn lately."""
    return bool(getattr(db, "shares_turns", False))
