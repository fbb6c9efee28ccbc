"""The web page with 1,000 queues, and many items in one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.web import changes, looks
from tests.web import scale


@pytest.mark.nightly
def test_no_page_takes_long_with_1000_queues_and_100000_items_in_one(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'many'}?durability=relaxed"
    scale.fill(url, 100_000, dead=2_000)

    for page in scale.measured(url, 50):
        # The processor time says more than the clock on a machine that runs other tests.
        assert page.cpu < 300, page
        assert page.p99 < 3_000, page


def test_a_preview_of_a_search_ends_when_its_time_is_over(db: Any, space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = fdbqueue.Queue(space["long"], codec="json")
    queue.enqueue_many(db, range(2 * looks.READ_ROWS))
    fields = {"state": "available", "text": "there is no such text"}

    assert changes.preview(db, queue, "cancel", fields, []).is_all
    monkeypatch.setattr(looks, "CHOOSE_SECONDS", -1.0)
    found = changes.preview(db, queue, "cancel", fields, [])
    assert (found.number, found.is_all) == (0, False)
