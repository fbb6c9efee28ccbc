"""Someone who knows only the page, or only the shell, finds what is wrong, and repairs it."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import fdbqueue
from fdbqueue.cli.opening import queue_of
from fdbqueue.layers import Leases, Sessions, constant
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import name_text
from tests.web.conftest import Browser, Shop


def test_the_page_says_that_the_first_item_cant_be_read(pages: Browser, db: Any, space: Any) -> None:
    name = name_text(name_of(space["invoices"].key()))
    fdbqueue.Queue(space["invoices"], codec="json").enqueue(db, 1)
    position = queue_of(name).enqueue(db, b"{", headers={})
    assert "The first item can't be" not in pages.text("queue", queue=name)

    fdbqueue.Queue(space["invoices"], codec="json").dequeue(db)
    page = pages.text("queue", queue=name)
    assert "The first item can't be decoded as json" in page
    assert f"position={position.text.replace(':', '%3A')}" in page
    pages.change("cancel", name, position=position.text)
    assert "can't be" not in pages.text("queue", queue=name)


def test_a_session_that_waits_for_its_back_off_is_tried_now(pages: Browser, db: Any, space: Any) -> None:
    bank = Sessions(fdbqueue.Queue(space["slow"], codec="json"), backoff=constant(3_600))
    bank.enqueue_many(db, [1, 2], session="Ann")
    turn = bank.lease(db)
    assert turn
    bank.nack(db, turn, error="the ledger is down")
    name = name_text(name_of(space["slow"].key()))

    page = pages.text("session", queue=name, session="Ann")
    assert "Try now ends the wait" in page
    assert "the ledger is down" in page
    assert bank.lease(db) is None
    assert "Try now: 1 done" in pages.change("session-try", name, session="Ann")
    again = bank.lease(db)
    assert again
    assert (again.value, again.attempt) == (1, 2)
    assert "Try now: nothing changed" in pages.change("session-try", name, session="Ann")
    assert 'value="session-try"' not in pages.text("session", queue=name, session="Ann")


def test_try_now_takes_the_item_whose_time_comes_first(pages: Browser, db: Any, space: Any) -> None:
    bank = Sessions(fdbqueue.Queue(space["slow"], codec="json"))
    bank.enqueue(db, "later", session="Ann", delay=7_200)
    bank.enqueue(db, "soon", session="Ann", delay=3_600)
    pages.change("session-try", name_text(name_of(space["slow"].key())), session="Ann")
    turn = bank.lease(db)
    assert turn
    assert turn.value == "soon"


def test_the_page_says_that_nothing_changed(pages: Browser, shop: Shop) -> None:
    told = [
        pages.change(change, shop.bank_name, session="Bob")
        for change in ("session-resume", "session-pause", "session-pause", "session-resume", "session-remove")
    ]
    numbers = [1 if ": 1 done" in page else 0 for page in told]
    assert numbers == [0, 1, 0, 1, 1]
    assert "Resume: nothing changed" in told[0]
    assert "Resume: nothing changed" in pages.change("session-resume", shop.bank_name, session="Ann")  # it is blocked
    assert "Pause: 1 done" in pages.change("session-pause", shop.bank_name, session="Ann")
    assert "Resume: 1 done" in pages.change("session-resume", shop.bank_name, session="Ann")
    assert "Remove: nothing changed" in pages.change("session-remove", shop.bank_name, session="Bob")


ASKED = "Is a consumer running?"


def test_the_page_of_a_paused_queue_asks_for_no_consumer(pages: Browser, db: Any, space: Any) -> None:
    queue = fdbqueue.Queue(space["idle"], codec="json")
    queue.enqueue(db, 1)
    name = name_text(name_of(space["idle"].key()))
    assert ASKED in pages.text("queue", queue=name)
    queue.pause(db)
    assert ASKED not in pages.text("queue", queue=name)


def test_the_page_names_a_first_item_that_failed_often(pages: Browser, db: Any, space: Any) -> None:
    mails = Leases(fdbqueue.Queue(space["mails"], codec="json"), max_attempts=None, backoff=constant(0))
    position = mails.enqueue(db, {"to": "Ann"})
    for _ in range(9):
        lease = mails.lease(db)
        assert lease
        mails.nack(db, lease, error="SMTPError: no such box\nsecond line")
    page = pages.text("queue", queue=name_text(name_of(space["mails"].key())))
    assert '<td data-name="error">SMTPError: no such box</td>' in page
    assert "An item is at attempt 9: SMTPError: no such box." in page
    assert f"position={position.text.replace(':', '%3A')}" in page
    assert ASKED not in page


def test_no_link_makes_the_page_say_something(pages: Browser, shop: Shop) -> None:
    assert "All orders were deleted" not in pages.text("queue", queue=shop.name, told="All orders were deleted")
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "pause"}
    answer = pages.send("apply", fields)
    assert "Pause: 1 done" in answer.text
    assert "Pause: 1 done" not in pages.client.get(str(answer.url)).text  # a reload


def test_the_first_page_remarks_on_what_is_wrong(pages: Browser, db: Any, space: Any) -> None:
    mails = Leases(fdbqueue.Queue(space["mails"], codec="json"), max_attempts=None, backoff=constant(0))
    mails.enqueue(db, 1)
    for _ in range(4):
        lease = mails.lease(db)
        assert lease
        mails.nack(db, lease)
    shipments = Leases(fdbqueue.Queue(space["shipments"], codec="json"), max_attempts=1)
    shipments.enqueue(db, 1)
    lease = shipments.lease(db)
    assert lease
    shipments.nack(db, lease)
    Sessions(fdbqueue.Queue(space["slow"], codec="json")).enqueue(db, 1, session="Ann", delay=3_600)
    page = pages.text("")
    assert "3 things need you" in page
    assert ">An item is at attempt 4" in page
    assert ">1 dead letter" in page
    assert ">1 session waiting<" in page


def test_pages_remark_on_blocked_sessions_and_their_dead_letters(pages: Browser, shop: Shop) -> None:
    page = pages.text("")
    assert "The session 'Ann' is blocked: 1 item waits in it behind 1 dead letter: the till is shut." in page
    page = pages.text("queue", queue=shop.bank_name)
    assert "The session 'Ann' is blocked" in page
    pages.change("session-redrive", shop.bank_name, session="Ann")
    page = pages.text("queue", queue=shop.bank_name)
    assert "blocked" not in page
    assert "dead letter." not in page


def test_a_refused_form_leads_back_to_its_list(pages: Browser, shop: Shop) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "cancel", "state": "delayed"}
    answer = html.unescape(pages.send("preview", fields).text)
    assert "No item is chosen" in answer
    assert f"/items?{urlencode({'queue': shop.name, 'state': 'delayed'})}" in answer


def test_no_preview_waits_for_enter_on_its_button(pages: Browser, shop: Shop) -> None:
    for change in ("pause", "cancel"):
        fields = {"csrf": pages.csrf(), "queue": shop.name, "change": change, "state": "available", "all": "yes"}
        page = pages.send("preview", fields).text
        assert re.findall(r"<(\w+)[^>]*\sautofocus", page) == ["h1"]
