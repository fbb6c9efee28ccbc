"""Names of every kind: each link opens what it shows, and each button changes exactly that."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Groups, Leases, Sessions
from fdbqueue.stored.names import queue_text
from fdbqueue.web import AdminApp

from .conftest import Browser

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200e\u202e]")


def links(page: str, to: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(rf'href="(/{to}\?[^"]*)"', page)]


NAMES: list[tuple[Any, ...]] = [
    ("orders",),
    (None, "orders"),
    ("(None, 'orders')",),
    ("a", 1.5),
    ("a", 1),
    ("a", True),
    ("a", 1.0),
    (b"raw", ("x", ())),
    ("[",),
    ('["a", 1]',),
    ('{"prefix": "02"}',),
    ("a\x00b\r\n\u202e",),
    ("a/b?c=d&e#f%2e",),
]


def test_every_link_of_the_front_page_opens_the_queue_that_it_shows(db: Any, space: Subspace) -> None:
    queues = [Queue(space[number].subspace(name), codec="json") for number, name in enumerate(NAMES)]
    queues.append(Queue(Subspace(rawPrefix=space.key() + b"\x02no tuple"), codec="json"))
    for number, queue in enumerate(queues):
        queue.enqueue(db, f"item number {number}!")
    app = AdminApp(db, hosts=None, within=space)
    browser = Browser(app)
    page = browser.get("").text
    shown = dict.fromkeys(links(page, "queue"))
    assert len(shown) == len(queues)
    opened = []
    for link in shown:
        answer = browser.client.get(link)
        assert answer.status_code == 200, link
        opened += re.findall(r"item number (\d+)!", answer.text)
        assert UNSEEN.search(answer.text) is None
    assert sorted({int(number) for number in opened}) == [*range(len(queues))]
    app.close()


def test_the_session_that_a_link_shows_is_the_one_that_its_button_pauses(db: Any, space: Subspace) -> None:
    sessions = Sessions(Queue(space["orders"], codec="str"))
    owners: dict[Any, str] = {
        ("vip", 7): "of the tuple",
        '["vip", 7]': "of the text",
        b"vip": "of bytes",
        '{"base64": "dmlw"}': "of a text like bytes",
        "('vip', 7)": "as Python has it",
        "a\nb": "of two lines",
    }
    for name, value in owners.items():
        sessions.enqueue(db, value, session=name, delay=1_000.0)
    app = AdminApp(db, hosts=None, within=space, allow_changes=True)
    browser = Browser(app)
    found = links(browser.get("sessions", queue=queue_text(sessions.queue.layout.prefix)).text, "session")
    assert len(found) == len(owners)
    opened = set()
    for link in found:
        page = browser.client.get(link).text
        [shown] = {value for value in owners.values() if f">{value}<" in page}
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
        given = {key: html.unescape(value) for key, value in form.items()}
        browser.send("apply", {**given, "change": "session-pause"})
        [paused] = sessions.list(db, status="paused")
        assert owners[paused.session] == shown
        sessions.resume(db, paused.session)
        opened.add(shown)
    assert opened == {*owners.values()}
    app.close()


def test_queues_whose_names_are_equal_in_python_have_each_their_own_remarks(db: Any, space: Subspace) -> None:
    for number, (part, failed) in enumerate([(1, 3), (True, 0), (1.0, 4)]):
        leases = Leases(Queue(space["same"].subspace((part,)), codec="json"))
        leases.enqueue(db, number)
        for _ in range(failed):
            lease = leases.lease(db)
            assert lease is not None
            leases.nack(db, lease, error="x")
    app = AdminApp(db, hosts=None, within=space)
    page = Browser(app).text("")
    assert page.count(">An item is at attempt 3: x.<") == page.count(">An item is at attempt 4: x.<") == 1
    app.close()


def test_groups_and_subscriptions_of_any_name_are_listed(db: Any, space: Subspace) -> None:
    queue = Queue(space["orders"], codec="json")
    groups = Groups(Leases(queue))
    for name in ("plain", "[7]", "a\x00b\u202e", '{"text": "x"}'):
        groups.open(db, name)
    app = AdminApp(db, hosts=None, within=space)
    page = Browser(app).text("parts", queue=queue_text(queue.layout.prefix))
    for shown in ("plain", '{"text": "[7]"}', '{"text": "a\\u0000b\\u202e"}', '{"text": "{\\"text\\": \\"x\\"}"}'):
        assert f">{shown}<" in page
    app.close()


@pytest.mark.parametrize("path", ["queue", "items", "dead", "sessions", "parts", "session", "item"])
def test_no_page_shows_control_characters_and_none_is_broken_by_a_name(db: Any, space: Subspace, path: str) -> None:
    evil = "a\x00b\x1b[31m\u202e</title><script>"
    sessions = Sessions(Queue(space[evil], codec="json"))
    ref = sessions.enqueue(db, {evil: evil}, session=evil)
    leases = Leases(sessions.queue)
    leases.enqueue(db, {evil: evil})
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease, error=evil)
    leases.dead.bury(db, lease.position, error=evil)
    app = AdminApp(db, hosts=None, within=space)
    text = queue_text(sessions.queue.layout.prefix)
    answer = Browser(app).get(path, queue=text, session=evil, position=ref.text)
    assert answer.status_code == 200, answer.text
    assert UNSEEN.search(answer.text) is None
    assert "<script>" not in answer.text.replace("</title>", "")
    missing = Browser(app).get(path, queue=evil, session=evil, position=evil)
    assert missing.status_code in (400, 404)
    assert UNSEEN.search(missing.text) is None
    app.close()
