"""What the person on call sees first."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.layers import Leases
from fdbqueue.stored.names import queue_text
from tests.web.conftest import Browser


@pytest.mark.engines("memory")
def test_the_errors_of_a_queue_are_above_its_items_with_the_numbers_of_all_views(
    pages: Browser, db: Any, space: Any
) -> None:
    leases = Leases(Queue(space["mails"], codec="json"), max_attempts=1)
    leases.enqueue_many(db, range(222))
    while found := leases.lease_many(db, limit=100):
        for lease in found:
            leases.nack(db, lease, error="refused" if lease.value % 2 else "no token")
    leases.enqueue(db, "waits")
    name = queue_text(leases.layout.prefix)
    page = pages.text("queue", queue=name)
    # All are grouped, and not 200 of them, as on the page of dead letters.
    assert re.findall(r'data-name="items">([\d,]+)<', page)[:2] == ["111", "111"]
    assert re.findall(r'data-name="items">([\d,]+)<', pages.text("dead", queue=name)) == ["111", "111"]
    assert page.index("dead letters by error") < page.index("first items")
    assert page.count("dead letters by error") == 1
    assert re.search(r'<a href="/dead[^"]*" class="hot"><b>222</b>dead</a>', page)


def test_a_page_has_an_icon(pages: Browser) -> None:
    [icon] = re.findall(r'<link rel="icon" type="image/svg.xml" href="/([^"]*)">', pages.text(""))
    answer = pages.get(icon)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("image/svg+xml")
