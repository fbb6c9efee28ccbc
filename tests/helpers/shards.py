"""Sessions in several shards."""

from __future__ import annotations

import zlib
from typing import Any

from fdbqueue import Queue
from fdbqueue.layers import Sessions
from fdbqueue.layers.sessions.session.records import pack_name

SHARDS = 4


def shard(name: Any, shards: int = SHARDS) -> int:
    """Return the shard that a session belongs to."""
    return zlib.crc32(pack_name(name)) % shards


def named(number: int, other: int = 0) -> str:
    """Return the name of a session of a shard."""
    return [f"s{n}" for n in range(100) if shard(f"s{n}") == number][other]


PATIENCE = 10.0
"""Seconds. A waiting worker renews its request after 15 seconds, and would then find what it was not woken for."""
NAMES = [named(number) for number in range(SHARDS)]
"""One session of each shard."""


def spread(db: Any, queue: Queue, **terms: Any) -> Sessions:
    """Return sessions in four shards, which know their number."""
    sessions = Sessions(queue, **terms)
    sessions.set_shards(db, SHARDS)
    sessions.stats(db)
    return sessions


def ready_in(sessions: Sessions, db: Any) -> list[int]:
    """Return how many pointers are ready in each shard."""
    return [len(db.get_range(layout.begin, layout.end)) for layout in sessions.line.shards.layouts()]
