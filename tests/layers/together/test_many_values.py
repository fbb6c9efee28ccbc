"""Every verb that takes many values refuses a value that is no iterable, with the remedy, and touches no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.priority import PriorityQueue
from tests.helpers.smart import Progress, smart_queue


class Frame:
    """A data frame of a library that nobody here knows: iterated over, it gives the names of its columns."""

    def __dataframe__(self) -> None:
        """Hand the frame to another library."""

    def __iter__(self) -> Iterator[str]:
        return iter(["sku"])


def doors(space: Subspace) -> dict[str, Callable[[Any, Any], Any]]:
    """Return every verb that takes many values."""
    queue = Queue(space, codec="json")
    return {
        "queue": queue.enqueue_many,
        "leases": Leases(queue).enqueue_many,
        "priorities": PriorityQueue(queue).enqueue_many,
        "smart": smart_queue(space).enqueue_many,
    }


@pytest.mark.parametrize("door", ["queue", "leases", "priorities", "smart"])
def test_a_database_or_a_transaction_is_no_values(db: Any, space: Subspace, door: str) -> None:
    tr = db.create_transaction()
    for values in (db, tr, tr.snapshot):
        for into in (db, tr):
            with pytest.raises(TypeError, match="the database or the transaction comes first, then the values"):
                doors(space)[door](into, values)
    assert list(db.get_range_startswith(space.key())) == []


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("door", ["queue", "leases", "priorities", "smart"])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        (Frame(), "not a Frame of .* Give a list of its rows"),
        ("teapot", r"not one str. Give \[value\]"),
        (b"teapot", "not one bytes"),
        (memoryview(b"teapot"), "not one memoryview"),
        ({"sku": "teapot"}, "not one dict"),
        (None, "such as a list, not NoneType"),
        (7, "such as a list, not int"),
        (Progress("a.iso", 1), "such as a list, not Progress"),
    ],
)
def test_a_value_that_is_no_iterable_of_values_is_refused(
    db: Any, space: Subspace, door: str, values: Any, told: str, inside: bool
) -> None:
    with pytest.raises(TypeError, match=told):
        doors(space)[door](db.create_transaction() if inside else db, values)
    assert list(db.get_range_startswith(space.key())) == []


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("values", "told"),
    [
        (pd.DataFrame({"sku": ["teapot"]}), r"not a DataFrame of pandas.* Give frame.to_dict\('records'\)"),
        (pd.Series(["teapot"]), r"not a Series of pandas.* series.to_list\(\)"),
        (pa.table({"sku": ["teapot"]}), r"not a Table of pyarrow.* Give table.to_pylist\(\)"),
        (pa.record_batch({"sku": ["teapot"]}), "not a RecordBatch of pyarrow"),
    ],
)
def test_a_smart_queue_takes_no_table(db: Any, space: Subspace, values: Any, told: str, inside: bool) -> None:
    with pytest.raises(TypeError, match=told):
        doors(space)["smart"](db.create_transaction() if inside else db, values)
    assert list(db.get_range_startswith(space.key())) == []


def test_the_remedies_in_the_messages_work(db: Any, space: Subspace) -> None:
    frame, queue = pd.DataFrame({"sku": ["teapot", "cup"]}), Queue(space, codec="json")
    for rows in frame.to_dict("records"), pa.Table.from_pandas(frame).to_pylist():
        assert queue.enqueue_many(db, rows).items == 2
    assert queue.enqueue_many(db, frame["sku"].to_list()).items == 2
    assert [item.value for item in queue.browse(db)] == [{"sku": "teapot"}, {"sku": "cup"}] * 2 + ["teapot", "cup"]
