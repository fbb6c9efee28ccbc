"""Reads of a transaction in which another thread writes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

import fdbqueue
from fdbqueue.engine.embedded.client.ryw_iterator import RywIterator


@pytest.mark.parametrize("reverse", [False, True])
def test_a_key_that_is_set_behind_a_range_while_it_is_read_stays_out(
    monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    with fdbqueue.open("memory:") as db:
        tr = db.create_transaction()
        for key in (b"k", b"z"):
            tr.set(key, b"")
        assert len(tr.get_range(b"", b"\xff").to_list()) == 2, "and that there is nothing else is known now"
        settle = RywIterator.settle
        settled = []

        def settle_while_others_write(reader: RywIterator, *selector_and_so_on: Any) -> int | None:
            left = settle(reader, *selector_and_so_on)
            settled.append(left)
            if len(settled) == 2:  # both ends of the range
                tr.set(b"s", b"")
            return left

        monkeypatch.setattr(RywIterator, "settle", settle_while_others_write)
        assert [row.key for row in tr.get_range(b"g", b"p", reverse=reverse)] == [b"k"]
