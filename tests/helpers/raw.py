"""A queue object that puts any bytes into a queue, as a program with a fault would."""

from __future__ import annotations

from fdbqueue import Queue
from fdbqueue.stored.layout import Name


def raw(name: Name) -> Queue[bytes]:
    """Return a queue of bytes that neither registers nor compares its codec with the queue's."""
    queue = Queue(name)
    queue.layout.known.registration = None
    return queue
