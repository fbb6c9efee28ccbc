"""What the refusal of a table as values names works. `test_wrong_arguments.py` has the refusals."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from fdbqueue import Queue
from fdbqueue.engine import Subspace


def test_the_remedies_in_the_messages_work(db: Any, space: Subspace) -> None:
    frame, queue = pd.DataFrame({"sku": ["teapot", "cup"]}), Queue(space, codec="json")
    for rows in frame.to_dict("records"), pa.Table.from_pandas(frame).to_pylist():
        assert queue.enqueue_many(db, rows).items == 2
    assert queue.enqueue_many(db, frame["sku"].to_list()).items == 2
    assert [item.value for item in queue.browse(db)] == [{"sku": "teapot"}, {"sku": "cup"}] * 2 + ["teapot", "cup"]
