"""Functions that make sessions, and others that do not. Imported by Spark's workers."""

from __future__ import annotations

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Sessions


def wide(space: Subspace) -> Sessions:
    """Return sessions with three levels, whose items run two at a time."""
    return Sessions(Queue(space, codec="str"), levels=3, concurrency=2)


def elsewhere(space: Subspace) -> Sessions:
    """Return sessions of another queue."""
    return Sessions(Queue("elsewhere", codec="str"))


def nothing(space: Subspace) -> None:
    """Return no sessions."""
