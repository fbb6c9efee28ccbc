"""What a process knows of a queue, beside the queue's keys: each fact was read, and may be relied on for a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Known:
    """What one process knows of one queue, by one object of it."""

    registration: Any = None
    """What the queue's object registers (`catalogue.py`); None: nothing."""
    has_high_water_mark: bool = False
    """Whether it has seen a mark, which stays."""
    is_smart: bool = False
    """Whether it has made a `SmartQueue` of the queue. The first smart enqueue marks the queue itself."""
    subscribed: bool = False
    """Whether the queue had subscriptions that need arrivals when it last looked for the queue's end."""
    exclusive_all: str | None = None
    """The queue's sole subscription at that time; it needs no arrivals (`layers/subscriptions`)."""
    open_until: float = 0.0
    """Until this time it relies on the queue having no exclusive subscription (`exclusive.py`)."""
    open_at: int = 0
    """The value of `exclusive.Changes.count` when it looked."""
    unpaused_until: float = 0.0
    """The same, for calls that only look whether the queue is paused."""
    unpaused_at: int = 0
