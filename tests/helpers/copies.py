"""A smart queue whose items are copied to recipients, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdbqueue.layers.smart import NOTHING, MessageType, SmartQueue
from fdbqueue.layers.smart._resend import Copy
from tests.helpers.smart import contents

WAIT = 600.0
"""Seconds that no test needs: how long one waits that is woken."""


@dataclass
class Received:
    """A confirmation, as the type's `confirms` sees it."""

    says: Any


FRAME = MessageType("frame", sees=NOTHING)


RECEIVED = MessageType(
    "received", Received, confirms=lambda got: tuple(got.says) if isinstance(got.says, list) else got.says
)


def frame(n: int, key: int = 0) -> dict[str, Any]:
    return {"type": "frame", "n": n, "key": key}


def registered(smart: SmartQueue, db: Any, *recipients: str) -> SmartQueue:
    for recipient in recipients or ("B",):
        smart.resend.register(db, recipient)
    return smart


def numbers(smart: SmartQueue, db: Any) -> list[int]:
    return [message["n"] for message in contents(smart, db)]


def fetch(smart: SmartQueue, db: Any) -> Copy:
    copy = smart.resend.fetch(db, "B")
    assert copy is not None
    return copy
