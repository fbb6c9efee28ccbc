"""Arrow against plain calls: reading a queue as a table, and enqueueing a table, by the number of rows."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine import Subspace
from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, heading, say
from tests.benchmarks.samples import Stopwatch

SPACE = Subspace(("fdbqueue bench", "arrow"))
ROWS = 10_000 if SIZE == "quick" else 100_000
PAGE_ROWS = 2_000
JSON_BOUND = (
    "JSON texts are checked one by one, since a table's text column can't hold what is none. That check is the distance"
    " to items of bytes, which need none. A check of a whole page as lines of one text takes the same time: the parser"
    " reads the same bytes, and makes an object for each text to find where it ends. A page as one array can't be"
    " trusted: the items `[1` and `2]` would be valid together."
)
"""What bounds `to_arrow` of JSON, whatever the figures are."""


def main() -> None:
    heading(f"Arrow, {ROWS:,} rows")
    with tempfile.TemporaryDirectory(dir=os.environ.get("FDBQUEUE_BENCH_FOLDER")) as folder:
        db = fdbqueue.open(f"file:{pathlib.Path(folder) / 'db'}?durability=relaxed")
        both_ways(db, "embedded, relaxed")
        db.close()
    url = cluster_url()
    if url is not None:
        db = fdbqueue.open(url)
        db.clear_range_startswith(SPACE.key())
        both_ways(db, "cluster")
        db.clear_range_startswith(SPACE.key())


def both_ways(db: Any, engine: str) -> None:
    """Read items of 100 bytes and of JSON, and enqueue rows and a column."""
    table = pa.table({"n": range(ROWS), "sku": [f"cup {n}" for n in range(ROWS)], "part": [n / 3 for n in range(ROWS)]})
    plain, records = Queue(SPACE["plain"]), Queue(SPACE["records"], codec="json")
    plain.enqueue_many(db, (b"x" * 100 for _ in range(ROWS)))
    records.enqueue_many(db, table)
    for name, queue in ("100 B", plain), ("JSON", records):
        compare(
            f"read all items, {name}, {engine}",
            [
                Contestant("bare range read", partial(bare, db, queue)),
                Contestant("to_arrow", partial(as_table, db, queue, None), wanted=0.6),
                Contestant("to_arrow, the values only", partial(as_table, db, queue, ["value"])),
                Contestant("browse", partial(browsed, db, queue)),
            ],
        )
    if engine.startswith("embedded"):
        say(f"\n{JSON_BOUND}")
    texts = [f"cup {n}" for n in range(ROWS)]
    for name, codec, values, given, column in (
        ("rows of three columns, as JSON", "json", table.to_pylist(), table, None),
        ("a column of texts", "str", texts, table, "sku"),
    ):
        compare(
            f"enqueue_many, {name}, {engine}",
            [
                Contestant("Python objects", partial(enqueue, db, codec, values, None)),
                Contestant("a table", partial(enqueue, db, codec, given, column), wanted=1.2),
            ],
        )


def bare(db: Any, queue: Queue[Any]) -> Sample:
    """Read the keys and values of the items, a page in a transaction, and do nothing with them."""
    begin, end = queue.layout.begin, queue.layout.end
    watch, rows = Stopwatch(), 0
    while page := list(db.create_transaction().snapshot.get_range(begin, end, limit=PAGE_ROWS)):
        rows += len(page)
        begin = page[-1].key + b"\x00"
    return watch.sample(rows)


def as_table(db: Any, queue: Queue[Any], columns: list[str] | None) -> Sample:
    watch = Stopwatch()
    return watch.sample(queue.to_arrow(db, columns=columns).num_rows)


def browsed(db: Any, queue: Queue[Any]) -> Sample:
    watch = Stopwatch()
    return watch.sample(sum(1 for _ in queue.browse(db)))


def enqueue(db: Any, codec: str, values: Iterable[Any], column: str | None) -> Sample:
    queue: Queue[Any] = Queue(SPACE[os.urandom(4)], codec=codec)
    watch = Stopwatch()
    report = queue.enqueue_many(db, values, column=column)
    return watch.sample(report.items, conflicts=report.conflicts)


if __name__ == "__main__":
    main()
