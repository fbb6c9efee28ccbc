"""What the pages show, and that nothing in an item can harm them."""

from __future__ import annotations

import re
import threading
import tracemalloc
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest

import fdbqueue
from fdbqueue import Stats
from fdbqueue.layers import Groups, Results, Subscriptions
from fdbqueue.reads.remembering import History, Look
from fdbqueue.stored.codecs import CODEC_ERRORS, codec_named
from fdbqueue.web import AdminApp
from fdbqueue.web.sampling import HOUR, POINTS
from fdbqueue.web.shown import BoundedCodec, plain
from tests.web.conftest import EVIL, Browser, Client, Shop

PAGES = ("queue", "items", "dead", "sessions", "parts")


def test_the_first_page_lists_all_queues_with_their_figures(pages: Browser, shop: Shop) -> None:
    text = pages.text("")
    assert shop.name in text
    assert shop.bank_name in text
    assert 'data-name="dead"><a class="hot"' in text


def test_a_name_finds_a_queue(pages: Browser, shop: Shop) -> None:
    text = pages.text("", find="ORDERS")
    assert shop.name in text
    assert shop.bank_name not in text


@pytest.mark.parametrize("page", PAGES)
def test_each_page_of_a_queue_loads(pages: Browser, shop: Shop, page: str) -> None:
    for name in (shop.name, shop.bank_name):
        assert name in pages.text(page, queue=name)


@pytest.mark.parametrize("state", ["available", "leased", "delayed", "dead"])
def test_items_are_shown_by_state(pages: Browser, shop: Shop, state: str) -> None:
    text = pages.text("items", queue=shop.name, state=state)
    numbers = {"available": 3, "leased": 1, "delayed": 1, "dead": 2}
    assert text.count('name="position"') == numbers[state]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ({"where": "color = 'red'"}, 2),
        ({"text": "cup 4"}, 1),
        ({"text": "nowhere"}, 0),
        ({"state": "dead", "error": "ValueError"}, 1),
        ({"where": "color = 'red'", "text": "cup 3"}, 1),
    ],
)
def test_a_search_finds_items(pages: Browser, shop: Shop, query: dict[str, str], number: int) -> None:
    assert pages.text("items", queue=shop.name, **query).count('name="position"') == number


def test_a_search_goes_on_page_by_page(pages: Browser, db: Any, space: Any) -> None:
    queue = fdbqueue.Queue(space["long"], codec="str")
    queue.enqueue_many(db, (f"item {n:04}" for n in range(120)))
    name = next(info.text for info in fdbqueue.queues(db, within=space))
    seen: list[str] = []
    after = ""
    for _ in range(4):
        text = pages.text("items", queue=name, after=after)
        seen += re.findall(r"item \d{4}", text)
        found = re.search(r"after=([^\"]+)\">Go on", text)
        if not found:
            break
        after = found[1].replace("%3A", ":")
    assert seen == [f"item {n:04}" for n in range(120)]


def test_one_item_shows_its_value_headers_attempts_and_error(pages: Browser, shop: Shop, db: Any) -> None:
    letter = next(iter(shop.orders.dead.browse(db)))
    text = pages.text("item", queue=shop.name, position=letter.position.text)
    assert '"sku": "cup 0"' in text
    assert '"color": "red"' in text
    assert "ValueError: no such sku" in text
    assert ">dead<" in text


def test_an_item_that_is_gone_is_not_here(pages: Browser, shop: Shop) -> None:
    answer = pages.get("item", queue=shop.name, position="77:00")
    assert answer.status_code == 404
    assert "has left the queue" in answer.text


def test_dead_letters_are_grouped_by_their_error(pages: Browser, shop: Shop) -> None:
    text = pages.text("dead", queue=shop.name)
    assert text.count('data-name="items">1<') == 2
    assert "second line" not in text


def test_a_session_shows_what_waits_and_why_it_is_blocked(pages: Browser, shop: Shop) -> None:
    listed = pages.text("sessions", queue=shop.bank_name)
    assert listed.count('data-name="session"') == 3
    assert "blocked" in pages.text("sessions", queue=shop.bank_name, status="blocked")
    assert "the till is shut" in pages.text("session", queue=shop.bank_name, session="Ann")
    assert "ready" in pages.text("session", queue=shop.bank_name, session='["shop", 7]')


def test_subscriptions_and_groups_are_listed(pages: Browser, shop: Shop, db: Any) -> None:
    Subscriptions(shop.orders).subscribe(db, "reds", selector="color = 'red'")
    Groups(Results(shop.orders)).open(db, "march")
    text = pages.text("parts", queue=shop.name)
    assert "reds" in text
    assert "march" in text


def test_the_queues_page_links_items_and_sessions_and_shows_json(pages: Browser, shop: Shop, db: Any) -> None:
    page = pages.text("queue", queue=shop.name)
    first = next(iter(shop.orders.queue.browse(db))).position
    assert f'{urlencode({"position": first.text})}">{first.text}</a>' in page
    assert '{"sku": "cup 3"}' in page
    assert '{"color": "red"}' in page
    assert "{'" not in page

    shop.bank.enqueue(db, 1, session="Cy", delay=3_600)
    page = pages.text("queue", queue=shop.bank_name)
    for name, status in (("Ann", "blocked"), ("Bob", "ready"), ('["shop", 7]', "ready"), ("Cy", "waiting")):
        found = re.search(f">{re.escape(name)}</a></td><td[^>]*>{status}</td><td[^>]*>([^<]*)</td>", page)
        assert found, name
        assert found[1].endswith(" UTC") == (status == "waiting")


@pytest.mark.parametrize(
    ("state", "title"), [("available", "enqueued"), ("leased", "lease ends"), ("delayed", "due"), ("dead", "died")]
)
def test_the_time_of_an_item_is_named_by_its_state(pages: Browser, shop: Shop, state: str, title: str) -> None:
    page = pages.text("items", queue=shop.name, state=state)
    assert f'<th scope="col">{title}</th>' in page
    assert re.search(rf'data-name="{title}">\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC<', page)


def test_all_times_say_utc(pages: Browser, shop: Shop) -> None:
    for page in ("", *PAGES):
        for name in (shop.name, shop.bank_name):
            times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(.{0,4})", pages.text(page, queue=name))
            assert set(times) <= {" UTC"}, page


def test_one_dead_letter_is_one(pages: Browser, shop: Shop) -> None:
    assert "2 dead letters." in pages.text("dead", queue=shop.name)
    pages.change("purge", shop.name, state="dead", error="ValueError")
    assert "1 dead letter." in pages.text("dead", queue=shop.name)


def test_nothing_in_an_item_becomes_markup(pages: Browser, shop: Shop, db: Any) -> None:
    shop.orders.queue.pause(db, reason=EVIL.replace("\x00", ""), by="Ann")
    for page in ("", "queue", "items"):
        raw = pages.get(page, queue=shop.name).text
        assert "<script>alert" not in raw
        assert "\x00" not in raw
        assert "\u202e" not in raw


def test_an_item_that_cannot_be_read_is_named_and_does_no_harm(pages: Browser, db: Any, space: Any) -> None:
    queue = fdbqueue.Queue(space["broken"], codec="json")
    position = queue.enqueue(db, 1)
    queue.enqueue(db, 2)
    row = next(iter(db.create_transaction().get_range(queue.layout.begin, queue.layout.end)))
    db[row.key] = b"\xee\xff"
    name = next(info.text for info in fdbqueue.queues(db, within=space))
    assert position.text in pages.text("items", queue=name)
    assert "be read" in pages.text("item", queue=name, position=position.text)
    assert pages.get("queue", queue=name).status_code == 200


def test_a_large_item_is_cut(pages: Browser, db: Any, space: Any) -> None:
    queue = fdbqueue.Queue(space["large"], codec="bytes")
    position = queue.enqueue(db, b"x" * 3_000_000)
    name = next(info.text for info in fdbqueue.queues(db, within=space))
    assert "3,000,000 bytes" in pages.text("items", queue=name)
    text = pages.text("item", queue=name, position=position.text)
    assert len(text) < 60_000
    assert "The rest is left out" in text


class Encoded:
    """Stores JSON as it is given."""

    name = "json"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"{}," * 700_000 + b"0]",
        b'"' + b"\\u0001" * 300_000 + b'"',
        b"[" * 900 + b"0," * 9_000 + b"0" + b"]" * 900,
    ],
    ids=["objects", "escapes", "deep"],
)
def test_a_page_takes_no_more_memory_than_what_it_shows(pages: Browser, db: Any, space: Any, value: bytes) -> None:
    queue = fdbqueue.Queue(space["large"], codec=Encoded())
    position = queue.enqueue(db, value)
    name = next(info.text for info in fdbqueue.queues(db, within=space))
    pages.text("item", queue=name, position=position.text)
    tracemalloc.start()
    text = pages.text("item", queue=name, position=position.text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(value) + 2_000_000
    assert len(text) < 60_000
    assert "The rest is left out" in text


def test_a_value_is_shown_whole_or_cut_as_its_text(pages: Browser, db: Any, space: Any) -> None:
    queue = fdbqueue.Queue(space["texts"], codec="str")
    queue.enqueue_many(db, ["é" * 9_999, "é" * 30_000])
    whole, cut = (plain(BoundedCodec(queue.codec).decode(item.value.encode())) for item in queue.browse(db))
    assert whole == ("é" * 9_999, False)
    assert cut == ("é" * 20_000, True)
    assert plain(BoundedCodec(fdbqueue.Queue("b").codec).decode(b"\xff" * 30_000))[0].startswith("ff ff")
    with pytest.raises(CODEC_ERRORS):
        BoundedCodec(codec_named("json")).decode(b"[" * 50_000)


@pytest.mark.parametrize("name", ["origin", "host", "cookie", "authorization", "content-type", "sec-fetch-site"])
@pytest.mark.parametrize("value", ["http://[", "[", "//", "\xff", "a" * 5_000, "http://a:b:c"], ids=ascii)
def test_no_header_of_a_request_breaks_the_page(db: Any, space: Any, name: str, value: str) -> None:
    terms: Any
    for terms in {}, {"hosts": None, "token": "t" * 16}:
        app = AdminApp(db, within=space, **terms)
        client, given = Client(app, "http://127.0.0.1:8080"), {name: value.encode("latin-1")}
        for answer in (client.get("/", headers=given), client.post("/preview", data={"a": "b"}, headers=given)):
            assert answer.status_code in (200, 303, 400, 401, 403), answer.text
        app.close()


@pytest.mark.parametrize(
    ("page", "query", "status"),
    [
        ("queue", {"queue": "no such queue"}, 404),
        ("queue", {"queue": ""}, 400),
        ("queue", {"queue": "[1"}, 400),
        ("queue", {"queue": "[" * 5_000}, 400),
        ("queue", {"queue": "[true]"}, 404),
        ("queue", {"queue": "[{}]"}, 400),
        ("items", {"state": "nowhere"}, 400),
        ("items", {"where": "color ="}, 400),
        ("items", {"after": "x"}, 400),
        ("item", {"position": ""}, 400),
        ("session", {"session": ""}, 400),
        ("session", {"session": "Nobody"}, 404),
        ("sessions", {"status": "asleep"}, 400),
        ("nowhere", {}, 404),
        ("static/../app.py", {}, 404),
        ("static/app.py", {}, 404),
    ],
)
def test_a_wrong_address_is_a_sentence(
    pages: Browser, shop: Shop, page: str, query: dict[str, str], status: int
) -> None:
    answer = pages.get(page, **{"queue": shop.name, **query})
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_a_page_of_some_queues_shows_no_other(db: Any, space: Any, shop: Shop) -> None:
    app = AdminApp(db, within=space["elsewhere"])
    page = Browser(app)
    assert shop.name not in page.text("")
    assert page.get("queue", queue=shop.name).status_code == 404
    app.close()


def test_the_page_can_be_mounted_in_another_application(db: Any, space: Any, shop: Shop) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    admin = AdminApp(db, within=space)
    page = Browser(Starlette(routes=[Mount("/queues", app=admin)]))
    text = page.text("queues/")
    assert 'href="/queues/queue?queue=' in text
    assert page.get("queues/static/style.css").status_code == 200
    assert page.get("queues/queue", queue=shop.name).status_code == 200
    admin.close()


def test_many_looks_share_the_reads_of_the_catalogue(db: Any, space: Any, shop: Shop, monkeypatch: Any) -> None:
    reads: list[int] = []
    plain = fdbqueue.queues

    def counted(*given: Any, **more: Any) -> Any:
        reads.append(1)
        return plain(*given, **more)

    monkeypatch.setattr(fdbqueue, "queues", counted)
    app = AdminApp(db, within=space)
    page = Browser(app)
    for _ in range(20):
        page.get("")
    assert len(reads) < 20
    app.close()


def test_a_fault_of_the_page_is_a_sentence_and_a_traceback_in_the_log(
    db: Any, space: Any, shop: Shop, monkeypatch: Any, caplog: Any
) -> None:
    app = AdminApp(db, within=space)
    monkeypatch.setattr("fdbqueue.web.looks.errors_of", lambda *_: 1 / 0)
    answer = Browser(app).get("dead", queue=shop.name)
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.text
    assert "Traceback" not in answer.text
    assert caplog.records[-1].exc_info
    app.close()


def test_closing_ends_the_thread(db: Any, space: Any) -> None:
    app = AdminApp(db, within=space)
    Browser(app).get("")
    app.close()
    assert not [one for one in threading.enumerate() if one is app.sampler.thread]


def test_a_history_keeps_an_hour_and_forgets_a_cleared_queue() -> None:
    history, nothing = History(HOUR), Stats(*[0] * 10)

    def add(at: int, items: int) -> None:
        look = Look(float(at), replace(nothing, available=items, enqueued=items, dequeued=items))
        history.add(look, POINTS, apart=HOUR / POINTS)

    for at in range(0, 7_200, 5):
        add(at, at)
    assert history.looks[0].at >= 7_195 - 3_600 - 15
    assert len(history.looks) <= 242
    assert [*history.rates] == [1.0, 1.0]
    assert history.depths[-1] == 7_195.0
    add(7_300, 0)
    assert len(history.looks) == 1
    assert history.rates == (None, None)
