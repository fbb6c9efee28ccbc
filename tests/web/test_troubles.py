"""Someone who knows only the page, or only the shell, finds what is wrong, and repairs it."""

from __future__ import annotations

from typing import Any

import fdbqueue
from fdbqueue.cli.options import queue_of
from fdbqueue.layers import Sessions, constant
from fdbqueue.stored.catalogue import name_of, name_text
from tests.web.conftest import Browser


def test_the_page_says_that_the_first_item_cant_be_read(pages: Browser, db: Any, space: Any) -> None:
    name = name_text(name_of(space["invoices"].key()))
    fdbqueue.Queue(space["invoices"], codec="json").enqueue(db, 1)
    position = queue_of(name).enqueue(db, b"{", headers={})
    assert "The first item can't be read" not in pages.text("queue", queue=name)

    fdbqueue.Queue(space["invoices"], codec="json").dequeue(db)
    page = pages.text("queue", queue=name)
    assert "The first item can't be read" in page
    assert f"position={position.text.replace(':', '%3A')}" in page
    pages.change("cancel", name, position=position.text)
    assert "can't be read" not in pages.text("queue", queue=name)


def test_a_session_that_waits_for_its_back_off_goes_on_after_a_pause(pages: Browser, db: Any, space: Any) -> None:
    bank = Sessions(fdbqueue.Queue(space["slow"], codec="json"), backoff=constant(3_600))
    bank.enqueue_many(db, [1, 2], session="Ann")
    turn = bank.lease(db)
    assert turn
    bank.nack(db, turn, error="the ledger is down")
    name = name_text(name_of(space["slow"].key()))

    page = pages.text("session", queue=name, session="Ann")
    assert "pause the session, and resume it" in page
    assert "the ledger is down" in page
    assert bank.lease(db) is None
    pages.change("session-pause", name, session="Ann")
    pages.change("session-resume", name, session="Ann")
    again = bank.lease(db)
    assert again
    assert (again.value, again.attempt) == (1, 2)
