"""Queues on PostgreSQL and Redis, as their manuals describe them, at equal durability.

PostgreSQL: one statement per item, with ``FOR UPDATE SKIP LOCKED``; a commit waits for the disk, which is the default.
Redis: a list, ``RPUSH`` and ``LPOP``, with ``appendfsync always``, so that each write is on disk when it is answered.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg
import redis

from tests.benchmarks.contenders import OneForAllThreads

PIECE = 10_000


class PostgreSQL:
    """A table as a queue; a connection per thread."""

    conflicts = 0
    """Rows that others have locked are skipped."""

    TAKE = (
        "DELETE FROM queue WHERE id = (SELECT id FROM queue ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING value"
    )

    def __init__(self, where: str) -> None:
        self._where = where
        self._local = threading.local()
        self.connect()
        # Of two connections that create a table at the same moment, one fails in spite of IF NOT EXISTS.
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            self._mine.execute(
                "CREATE TABLE IF NOT EXISTS queue"
                " (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bytea NOT NULL)"
            )

    @property
    def _mine(self) -> psycopg.Connection[Any]:
        mine: psycopg.Connection[Any] = self._local.connection
        return mine

    def connect(self) -> None:
        self._local.connection = psycopg.connect(self._where, autocommit=True)

    def disconnect(self) -> None:
        self._mine.close()

    def fill(self, amount: int, value: bytes) -> None:
        self._mine.execute("INSERT INTO queue (value) SELECT %s FROM generate_series(1, %s)", (value, amount))
        self._mine.execute("ANALYZE queue")

    def enqueue(self, value: bytes) -> None:
        self._mine.execute("INSERT INTO queue (value) VALUES (%s)", (value,))

    def dequeue(self) -> bytes | None:
        row = self._mine.execute(self.TAKE).fetchone()
        return None if row is None else bytes(row[0])

    def clear(self) -> None:
        self._mine.execute("TRUNCATE queue")

    def close(self) -> None:
        self._mine.close()


class PostgreSQLLeased(PostgreSQL):
    """The same table with a visibility time: a taken row is hidden for 30 seconds, and deleted after its work."""

    LEASE = (
        "UPDATE queue SET visible_at = now() + interval '30 seconds' WHERE id IN (SELECT id FROM queue"
        " WHERE visible_at <= now() ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s) RETURNING id, value"
    )
    ACK = "DELETE FROM queue WHERE id = ANY(%s)"

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._mine.execute("ALTER TABLE queue ADD COLUMN IF NOT EXISTS visible_at timestamptz NOT NULL DEFAULT now()")

    def dequeue(self) -> bytes | None:
        rows = self.dequeue_batch(1)
        return rows[0] if rows else None

    def dequeue_batch(self, limit: int) -> list[bytes]:
        """Lease and ack up to so many rows, in two transactions."""
        rows = self._mine.execute(self.LEASE, (limit,)).fetchall()
        self._mine.execute(self.ACK, ([number for number, _ in rows],))
        return [bytes(value) for _, value in rows]


class Redis(OneForAllThreads):
    """A list; the client has a connection for each thread."""

    conflicts = 0
    KEY = "queue"

    def __init__(self, where: str) -> None:
        self._client = redis.Redis(unix_socket_path=where)

    def fill(self, amount: int, value: bytes) -> None:
        for first in range(0, amount, PIECE):
            self._client.rpush(self.KEY, *[value] * min(PIECE, amount - first))

    def enqueue(self, value: bytes) -> None:
        self._client.rpush(self.KEY, value)

    def dequeue(self) -> bytes | None:
        item: Any = self._client.lpop(self.KEY)
        return None if item is None else bytes(item)

    def clear(self) -> None:
        self._client.delete(self.KEY)

    def close(self) -> None:
        self._client.close()
