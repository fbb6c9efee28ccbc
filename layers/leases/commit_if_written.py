"""Run transactions that may have nothing to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fdbqueue import Queue
from fdbqueue.lowlevel import Database, FDBError, Steps, Transaction

T = TypeVar("T")


class NothingWritten(Exception):
    """Ends a transaction that has nothing to commit; carries its result out."""

    def __init__(self, result: Any) -> None:
        self.result = result


async def commit_if_written(
    queue: Queue,
    db: Database,
    body: Callable[[Transaction], Steps[tuple[T, bool]]],
    *,
    on_retry: Callable[[FDBError], None] = lambda error: None,
    takes: bool = False,
) -> T:
    """Run a `body` that also returns whether it wrote. If it only read, it needs no commit and no commit marker.

    Otherwise as `Queue.transact`, given a database.
    """

    async def commit_or_leave(tr: Transaction) -> T:
        result, written = await body(tr)
        if not written:
            raise NothingWritten(result)
        return result

    try:
        return await queue.transact(db, commit_or_leave, on_retry=on_retry, takes=takes)
    except NothingWritten as nothing:
        result: T = nothing.result
        return result
