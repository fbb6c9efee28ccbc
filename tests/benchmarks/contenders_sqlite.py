"""Python's queues on SQLite, by their own calls, at equal durability: the write-ahead log, and an fsync per commit.

Only `fill` goes around them, since none of them has a bulk call: it writes the rows that they would have written.
"""

from __future__ import annotations

import pickle
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import litequeue
import persistqueue
from huey.storage import SqliteStorage

from tests.benchmarks.contenders import OneForAllThreads, Stand, ours

PATIENCE_SECONDS = 60.0
"""How long a call waits for SQLite's one writer lock before it fails."""


class _OnSQLite(OneForAllThreads):
    """What they have in common."""

    conflicts = 0
    """Waits for the writer lock are not conflicts."""

    def __init__(self, file: str, table: str) -> None:
        self._file = file
        self._table = table

    def fill(self, amount: int, value: bytes) -> None:
        self.fill_with(value for _ in range(amount))

    def fill_with(self, values: Iterable[bytes]) -> None:
        """Put these items in, as fast as may be."""
        with sqlite3.connect(self._file, timeout=PATIENCE_SECONDS) as connection:
            connection.executemany(self.INSERT, map(self.row, values))
        connection.close()

    def relax(self) -> None:
        """Let the commits of this thread survive a kill, and perhaps no power cut."""
        raise NotImplementedError

    def clear(self) -> None:
        connection = sqlite3.connect(self._file, timeout=PATIENCE_SECONDS, isolation_level=None)
        connection.execute(f"DELETE FROM {self._table}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    INSERT = ""

    def row(self, value: bytes) -> tuple[Any, ...]:
        """Return what stands in the table for an item."""
        raise NotImplementedError


class PersistQueue(_OnSQLite):
    """persist-queue's SQLiteQueue, for the threads of one process: two processes can read and delete the same row."""

    INSERT = "INSERT INTO queue_default (data, timestamp) VALUES (?, ?)"

    def __init__(self, where: str) -> None:
        super().__init__(str(Path(where, "data.db")), "queue_default")
        self.queue = persistqueue.SQLiteQueue(where, auto_commit=True, multithreading=True, timeout=PATIENCE_SECONDS)

    @property
    def connections(self) -> tuple[Any, ...]:
        """Those of this thread."""
        return self.queue._getter, self.queue._putter

    def relax(self) -> None:
        for connection in self.connections:
            connection.execute("PRAGMA synchronous=NORMAL")

    def row(self, value: bytes) -> tuple[Any, ...]:
        return pickle.dumps(value), time.time()

    def enqueue(self, value: bytes) -> None:
        self.queue.put(value)

    def dequeue(self) -> bytes | None:
        try:
            item: bytes = self.queue.get(block=False)
        except persistqueue.exceptions.Empty:
            return None
        return item

    def close(self) -> None:
        self.queue.close()


class LiteQueue(_OnSQLite):
    """litequeue: an item is popped, and done; a queue of its own for each thread, since each needs a connection."""

    INSERT = "INSERT INTO Queue (data, message_id, status, in_time) VALUES (?, ?, 0, ?)"

    def __init__(self, where: str) -> None:
        super().__init__(str(Path(where, "litequeue.sqlite")), "Queue")
        self.local = threading.local()
        self.connect()  # which makes the table

    def connect(self) -> None:
        mine = self.local.queue = litequeue.LiteQueue(self._file, timeout=PATIENCE_SECONDS)
        mine.conn.execute("PRAGMA synchronous=FULL")  # it asks for NORMAL, which may lose what it acknowledged

    def relax(self) -> None:
        self.local.queue.conn.execute("PRAGMA synchronous=NORMAL")

    def disconnect(self) -> None:
        self.local.queue.conn.close()

    def row(self, value: bytes) -> tuple[Any, ...]:
        # Its identifiers are sorted by time; nothing but their order is looked at.
        return value.decode(), f"0-{time.time_ns():020}-{uuid.uuid4()}", time.time_ns()

    def enqueue(self, value: bytes) -> None:
        self.local.queue.put(value.decode())

    def dequeue(self) -> bytes | None:
        mine = self.local.queue
        message = mine.pop()
        if message is None:
            return None
        mine.done(message.message_id)
        data: str = message.data
        return data.encode()

    def close(self) -> None:
        self.disconnect()


class Huey(_OnSQLite):
    """The storage beneath Huey's tasks."""

    INSERT = "INSERT INTO task (queue, data, priority) VALUES ('bench', ?, 0)"

    def __init__(self, where: str) -> None:
        file = str(Path(where, "huey.sqlite"))
        super().__init__(file, "task")
        self.storage = SqliteStorage("bench", file, fsync=True, strict_fifo=True, timeout=PATIENCE_SECONDS)

    def relax(self) -> None:
        self.storage.conn.execute("PRAGMA synchronous=NORMAL")

    def row(self, value: bytes) -> tuple[Any, ...]:
        return (value,)

    def enqueue(self, value: bytes) -> None:
        self.storage.enqueue(value)

    def dequeue(self) -> bytes | None:
        item: bytes | None = self.storage.dequeue()
        return item

    def close(self) -> None:
        self.storage.close()


def on_this_machine(folder: Path, *, staged: bool) -> list[Stand]:
    """Return this library's embedded engine, durable, and the queues on SQLite."""
    for name in ("persist-queue", "litequeue", "huey"):
        (folder / name).mkdir()
    return [
        ours(f"file:{folder / 'fdbqueue'}", staged=staged),
        Stand("persist-queue", "contenders_sqlite:PersistQueue", str(folder / "persist-queue"), processes=1),
        Stand("litequeue", "contenders_sqlite:LiteQueue", str(folder / "litequeue")),
        Stand("Huey's SQLite storage", "contenders_sqlite:Huey", str(folder / "huey")),
    ]
