"""The embedded engine's store, by itself: opening one, committing to it, and a clock that tests move."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fdbqueue.engine.embedded.store.opening import StoreClock
from fdbqueue.engine.embedded.store.store import CommitRequest, Snapshot, Store

Row = tuple[bytes, bytes]


class MovableClock(StoreClock):
    """The machine's clock, `ahead` by as many seconds as a test wants, after a boot of the test's choice."""

    def __init__(self, boot: bytes = b"a boot") -> None:
        super().__init__()
        self.ahead = 0.0
        self._boot = boot
        self.now_ns = lambda: time.monotonic_ns() + int(self.ahead * 1_000_000_000)
        self.seconds = lambda: time.monotonic() + self.ahead

    def boot(self) -> bytes:
        return self._boot


def store_of(db: Any) -> Store:
    """Return the store behind an embedded database."""
    store: Store = db._store()
    return store


@contextlib.contextmanager
def opened(path: Path | None = None, clock: StoreClock | None = None, **options: str) -> Iterator[Store]:
    """Open a store for a while; without a path one in memory."""
    store = Store.open(None if path is None else str(path), options, clock)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def view(store: Store) -> Iterator[Snapshot]:
    """Take a snapshot for a while."""
    snapshot = store.snapshot()
    try:
        yield snapshot
    finally:
        snapshot.close()


def commit(store: Store, request: CommitRequest) -> CommitRequest:
    """Commit `request` and return it."""
    store.submit(request)
    store.wait(request)
    return request


def sets(*rows: Row, **settings: Any) -> CommitRequest:
    """Make a request that sets `rows`."""
    return CommitRequest(mutations=[(0, *row) for row in rows], write_keys=[key for key, _ in rows], **settings)


def clearing(begin: bytes, end: bytes) -> CommitRequest:
    """Make a request that clears a range."""
    return CommitRequest(mutations=[(1, begin, end)], write_ranges=[(begin, end)])


def put(store: Store, *rows: Row) -> CommitRequest:
    """Set `rows` without reading anything."""
    return commit(store, sets(*rows))


def clear(store: Store, begin: bytes, end: bytes) -> CommitRequest:
    """Clear a range without reading anything."""
    return commit(store, clearing(begin, end))


def contents(store: Store) -> list[Row]:
    """Read everything."""
    with view(store) as snapshot:
        return list(snapshot.scan(b"", b"\xff\xff"))


def load(store: Store, rows: Iterable[Row]) -> None:
    """Set `rows` in one commit."""
    put(store, *rows)
