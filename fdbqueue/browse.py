"""Rows of a queue in pages: in the caller's transaction, or in as many of our own as it takes."""

from __future__ import annotations

from collections.abc import Iterator

from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.steps import rows, run
from fdbqueue.engine.transactional import attempts, is_database

PAGE_ROWS = 1_000
PAGE_BYTES = 1_000_000
_FIRST_PAGE_ROWS = 100


def pages(
    tr: Transaction | Database, begin: bytes, end: bytes, *, limit: int | None = None, reverse: bool = False
) -> Iterator[list[KeyValue]]:
    """Yield the rows of ``[begin, end)`` by the page, read by snapshot.

    A page has at most `PAGE_ROWS` rows, and about `PAGE_BYTES` as far as the page before can tell. Given a database
    each page is read in a transaction of its own, so that the whole may take longer than a transaction lives.
    """
    left = limit
    page_rows = _FIRST_PAGE_ROWS
    while begin < end and left != 0:
        wanted = page_rows if left is None else min(left, page_rows)
        page = _page(tr, begin, end, wanted, reverse)
        if page:
            yield page
        if len(page) < wanted:
            return
        if left is not None:
            left -= len(page)
        if reverse:
            end = page[-1].key
        else:
            begin = page[-1].key + b"\x00"
        mean = sum(len(row.value) for row in page) // len(page) + 1
        page_rows = max(1, min(PAGE_ROWS, PAGE_BYTES // mean))


def _page(tr: Transaction | Database, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
    if is_database(tr):
        db: Database = tr  # type: ignore[assignment]
        return run(attempts(db, lambda tr: rows(tr.snapshot, begin, end, limit=limit, reverse=reverse)))
    own: Transaction = tr  # type: ignore[assignment]
    return run(rows(own.snapshot, begin, end, limit=limit, reverse=reverse))
