"""A smart queue that rows go through. Imported by Spark's workers."""

from __future__ import annotations

from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.smart import NOTHING, OWN_KEY, Messages, MessageType, SmartQueue
from fdbqueue.layers.smart.types import Answer, Decision, Replace

NOT_A_FUNCTION = 7


def _newer(queued: dict[str, Any], new: dict[str, Any]) -> Answer:
    return Replace(new) if new["n"] > queued["n"] else Decision.ignore


def prices(space: Subspace) -> SmartQueue:
    """Return a queue in which each article has its newest price only."""
    messages = Messages(
        MessageType("price", check=_newer, key=lambda message: message["article"], sees=OWN_KEY),
        MessageType("note", sees=NOTHING),
    )
    return SmartQueue(Queue(space, codec=messages))
