"""What layers add to the rooms below them is found where the tables say, and belongs to the layer that is named."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.arrow.needs import column_parts
from fdbqueue.base.contributions import Contributions
from fdbqueue.moves.ends import end_parts
from fdbqueue.reads.queue_rows import check_parts, content_parts, page_parts


@pytest.mark.parametrize("table", [check_parts, content_parts, page_parts, column_parts, end_parts])
def test_each_part_of_the_library_is_there_and_of_the_layer_that_it_names(table: Contributions[Any]) -> None:
    assert list(table.all()) == list(table._parts)
    for name, place in table._parts.items():
        assert isinstance(place, str)
        assert place.startswith(f"fdbqueue.layers.{name}.")


def test_a_part_has_a_name_that_the_library_does_not_use() -> None:
    table: Contributions[int] = Contributions(blobs="fdbqueue.layers.blobs.check:BlobCheck")
    table.add("mine", 1)
    table.add("mine", 2)
    assert table.all()["mine"] == 2
    for name in ("blobs", ""):
        with pytest.raises(ValueError, match="needs a name that the library does not use"):
            table.add(name, 3)
