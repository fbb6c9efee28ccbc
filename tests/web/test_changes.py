"""The buttons: previews that change nothing, changes that take no more than they said, and who may send them."""

from __future__ import annotations

import html
import re
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Quota
from fdbqueue.layers import Leases, Sessions, Tasks
from fdbqueue.layers.schedules import Schedules
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import name_text
from fdbqueue.web import AdminApp
from tests.web.conftest import Browser, Shop


def test_a_preview_says_how_many_and_changes_nothing(pages: Browser, shop: Shop, db: Any) -> None:
    before = shop.orders.queue.stats(db)
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "redrive", "state": "dead", "all": "yes"}
    assert "Redrive 2 items of" in pages.send("preview", fields).text
    assert shop.orders.queue.stats(db) == before


def test_all_dead_letters_are_redriven(pages: Browser, shop: Shop, db: Any) -> None:
    text = pages.change("redrive", shop.name, state="dead", all="yes")
    assert "Redrive: 2 done" in text
    assert shop.orders.stats(db).dead == 0


def test_dead_letters_of_one_error_are_purged(pages: Browser, shop: Shop, db: Any) -> None:
    pages.change("purge", shop.name, state="dead", error="ValueError: no such sku")
    assert [letter.error.split(":")[0] for letter in shop.orders.dead.browse(db)] == ["TimeoutError"]


def test_items_that_a_search_finds_are_cancelled(pages: Browser, shop: Shop, db: Any) -> None:
    text = pages.change("cancel", shop.name, state="available", where="color = 'red'")
    assert "Cancel: 2 done" in text
    assert [item.headers["color"] for item in shop.orders.queue.browse(db)] == ["blue"]


def test_chosen_items_are_rescheduled(pages: Browser, shop: Shop, db: Any) -> None:
    first, second, _ = [item.position.text for item in shop.orders.queue.browse(db)]
    pages.change("reschedule", shop.name, state="available", position=[first, second], delay="60")
    assert shop.orders.stats(db).delayed == 3


def test_a_search_takes_no_more_than_the_preview_said(pages: Browser, shop: Shop, db: Any) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "cancel", "state": "available", "all": "yes"}
    assert "Cancel 3 items" in pages.send("preview", fields).text
    shop.orders.enqueue_many(db, [{"sku": n} for n in range(10)])
    pages.send("apply", {**fields, "most": "3"})
    assert shop.orders.stats(db).available == 10


def test_a_queue_is_paused_and_resumed(pages: Browser, shop: Shop, db: Any) -> None:
    text = pages.change("pause", shop.name, reason="stocktaking", by="Ann")
    pause = shop.orders.queue.paused(db)
    assert pause
    assert (pause.reason, pause.by) == ("stocktaking", "Ann")
    assert "stocktaking" in text
    pages.change("resume", shop.name)
    assert shop.orders.queue.paused(db) is None


def test_a_quota_is_set_and_removed(pages: Browser, shop: Shop, db: Any) -> None:
    text = pages.change("quota", shop.name, items="100", bytes="2000000", when_full="wait")
    assert f"Set the quota of {shop.name}: 1 done" in text
    assert shop.orders.queue.quota(db) == Quota(100, "wait", 2_000_000)
    pages.change("quota", shop.name, items="", bytes="", when_full="wait")
    assert shop.orders.queue.quota(db) is None


def test_the_form_of_a_quota_has_the_present_one(pages: Browser, shop: Shop, db: Any) -> None:
    shop.orders.queue.set_quota(db, None, size_bytes=2_000_000, when_full="wait")
    page = pages.text("queue", queue=shop.name)
    sent = {name: re.findall(rf'<input name="{name}"[^>]* value="([^"]*)"', page)[0] for name in ("items", "bytes")}
    [sent["when_full"]] = re.findall(r"<option selected>(\w+)</option>", page)
    pages.change("quota", shop.name, **sent)
    assert shop.orders.queue.quota(db) == Quota(None, "wait", 2_000_000)


def test_the_preview_of_a_quota_says_what_it_was_and_will_be(pages: Browser, shop: Shop, db: Any) -> None:
    shop.orders.queue.set_quota(db, 500, size_bytes=2_000_000, when_full="wait")
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "quota"}
    page = pages.send("preview", {**fields, "items": "600", "bytes": "", "when_full": "refuse"}).text
    assert "now: at most 500 items and about 2,000,000 bytes, then wait" in page
    assert "then: at most 600 items, then refuse" in page
    assert "then: no quota" in pages.send("preview", {**fields, "items": "", "when_full": "refuse"}).text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status"), [("session-pause", "paused"), ("session-skip", "ready"), ("session-redrive", "ready")]
)
def test_a_session_is_changed(pages: Browser, shop: Shop, db: Any, change: str, status: str) -> None:
    name = "Bob" if change == "session-pause" else "Ann"
    pages.change(change, shop.bank_name, session=name)
    info = shop.bank.info(db, name)
    assert info
    assert info.status in (status, "gated")


def test_all_dead_letters_of_a_session_are_purged(pages: Browser, db: Any, space: Any) -> None:
    many = Sessions(fdbqueue.Queue(space["many"], codec="json"), max_attempts=1)
    many.enqueue_many(db, range(101), session="Cy")
    for _ in range(101):
        turn = many.lease(db)
        assert turn
        many.nack(db, turn, error="no paper")

    pages.change("session-purge", name_text(name_of(space["many"].key())), session="Cy")
    assert many.info(db, "Cy") is None


def test_a_schedule_is_listed_paused_and_resumed(pages: Browser, db: Any, space: Any) -> None:
    app = Tasks(Leases(fdbqueue.Queue(space["mail"], codec="json")))

    @app.periodic("0 8 * * *", name="digest")
    @app.task(name="digest")
    def digest() -> None:
        """Send it."""

    app.run_due(db)
    digest.enqueue(db)  # a queue is listed from its first item on
    name = name_text(name_of(space["mail"].key()))
    assert "0 8 * * *" in pages.text("parts", queue=name)
    pages.change("schedule-pause", name, schedule="digest")
    [one] = Schedules(fdbqueue.Queue(space["mail"], codec="json"), time.time).list(db)
    assert one.status == "paused"
    pages.change("schedule-resume", name, schedule="digest")
    answer = pages.send("preview", {"csrf": pages.csrf(), "queue": name, "change": "schedule-pause", "schedule": "x"})
    assert answer.status_code == 200
    form = {"csrf": pages.csrf(), "queue": name, "change": "schedule-pause", "schedule": "no such one"}
    assert pages.send("apply", form).status_code == 400


def test_an_item_of_a_session_is_cancelled(pages: Browser, shop: Shop, db: Any) -> None:
    item = shop.bank.scheduled(db, "Bob")[0]
    pages.change("session-cancel", shop.bank_name, session="Bob", position=item.position.text)
    assert [one.value for one in shop.bank.scheduled(db, "Bob")] == [2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"change": "explode"},
        {"change": "cancel", "state": "available"},
        {"change": "cancel", "state": "nowhere", "all": "yes"},
        {"change": "redrive", "state": "available", "all": "yes"},
        {"change": "cancel", "position": "x"},
        {"change": "cancel", "state": "available", "where": "color ="},
        {"change": "reschedule", "state": "available", "all": "yes", "delay": "soon"},
        {"change": "reschedule", "state": "available", "all": "yes", "delay": "-1"},
        {"change": "reschedule", "state": "available", "all": "yes", "delay": "nan"},
        {"change": "quota", "items": "5", "when_full": "zz"},
        *({"change": "quota", "items": wrong} for wrong in ("0", "-1", "abc", "9" * 30, "1_0", "\u0663")),
        {"change": "quota", "items": "5", "bytes": "999"},
    ],
)
@pytest.mark.parametrize("page", ["preview", "apply"])
def test_a_wrong_form_changes_nothing(pages: Browser, shop: Shop, db: Any, page: str, fields: dict[str, str]) -> None:
    before = shop.orders.queue.stats(db)
    answer = pages.send(page, {"csrf": pages.csrf(), "queue": shop.name, "most": "9", **fields})
    assert answer.status_code == 400, answer.text
    assert shop.orders.queue.stats(db) == before


def test_apply_without_a_preview_is_refused(pages: Browser, shop: Shop, db: Any) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "cancel", "state": "available", "all": "yes"}
    assert pages.send("apply", fields).status_code == 400
    assert shop.orders.stats(db).available == 3


@pytest.mark.parametrize("page", ["preview", "apply"])
def test_a_page_without_buttons_changes_nothing(db: Any, space: Any, shop: Shop, page: str) -> None:
    app = AdminApp(db, within=space)
    browser = Browser(app)
    text = browser.get("queue", queue=shop.name).text
    assert "<button name" not in text
    assert "read-only" in text
    fields = {"queue": shop.name, "change": "cancel", "state": "available", "all": "yes", "most": "9"}
    fields["csrf"] = AdminCsrf.of(app, browser)
    answer = browser.send(page, fields)
    assert answer.status_code == 403
    assert "--allow-changes" in html.unescape(answer.text)
    assert shop.orders.stats(db).available == 3
    app.close()


class AdminCsrf:
    """The token of a page that has no form."""

    @staticmethod
    def of(app: Any, browser: Browser) -> str:
        browser.get("")
        return str(app._app.csrf(browser.client.cookies["fdbqueue_browser"]))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:9999"},
    ],
)
def test_a_form_of_another_page_is_refused(pages: Browser, shop: Shop, db: Any, headers: dict[str, str]) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "pause"}
    assert pages.send("apply", fields, **headers).status_code == 403
    assert shop.orders.queue.paused(db) is None


def test_a_form_without_any_origin_needs_the_browsers_word(pages: Browser, shop: Shop) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "pause"}
    assert pages.client.post("/preview", data=fields).status_code == 403
    assert pages.client.post("/preview", data=fields, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert pages.client.post("/preview", data=fields, headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("csrf", ["", "0" * 64, "é", None])
def test_a_form_without_its_token_is_refused(pages: Browser, shop: Shop, db: Any, csrf: str | None) -> None:
    pages.get("")
    fields = {"queue": shop.name, "change": "pause", **({} if csrf is None else {"csrf": csrf})}
    assert pages.send("apply", fields).status_code == 403
    assert shop.orders.queue.paused(db) is None


def test_a_token_belongs_to_one_browser(pages: Browser, shop: Shop) -> None:
    stolen = pages.csrf()
    other = Browser(pages.client.app)
    other.get("")
    assert other.send("preview", {"csrf": stolen, "queue": shop.name, "change": "pause"}).status_code == 403


def test_another_host_is_refused(db: Any, space: Any) -> None:
    app = AdminApp(db, within=space)
    for base in ("http://evil.example", "http://127.0.0.1.evil.example", "http://localhost.evil.example:8080"):
        assert Browser(app, base).get("").status_code == 400
    for base in ("http://localhost:1", "http://127.0.0.1", "http://[::1]:8080"):
        assert Browser(app, base).get("").status_code == 200
    assert Browser(AdminApp(db, within=space, hosts=None), "http://shop.example").get("").status_code == 200
    app.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(pages: Browser, method: str) -> None:
    assert pages.client.request(method, "/").status_code == 405


def test_a_form_may_not_be_large(pages: Browser, shop: Shop) -> None:
    fields = {"csrf": pages.csrf(), "queue": shop.name, "change": "pause", "reason": "x" * 70_000}
    assert pages.send("preview", fields).status_code == 413


def test_a_token_is_asked_for(db: Any, space: Any, shop: Shop) -> None:
    token = "a token of some length"
    app = AdminApp(db, within=space, token=token)
    page = Browser(app)
    assert 'name="token"' in page.get("queue", queue=shop.name).text
    assert page.client.get("/", headers={"accept": "application/json"}).status_code == 401
    wrong = page.send("login", {"csrf": page.csrf(), "token": "another token altogether"})
    assert "That is not the token" in wrong.text
    right = page.send("login", {"csrf": page.csrf(), "token": token})
    assert shop.name in html.unescape(right.text)
    bearer = {"authorization": f"Bearer {token}"}
    assert Browser(app).client.get("/", headers=bearer).status_code == 200
    assert Browser(app).client.get("/", headers={"authorization": "Bearer no"}).status_code == 401
    app.close()


def test_a_wrong_login_of_any_letters_is_refused(db: Any, space: Any) -> None:
    pages = Browser(AdminApp(db, within=space, token="0123456789abcdef"))
    cookie = {"cookie": "fdbqueue_login=\u00e9".encode("latin-1"), "accept": "text/plain"}
    assert pages.client.get("/queue", headers=cookie).status_code == 401
    bearer = {"authorization": "Bearer \u00e9".encode("latin-1"), "accept": "text/plain"}
    assert pages.client.get("/queue", headers=bearer).status_code == 401


def test_every_answer_has_the_headers_that_protect_it(pages: Browser, shop: Shop) -> None:
    for answer in (pages.get(""), pages.get("nowhere"), pages.client.put("/"), pages.get("static/page.js")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = pages.get("queue", queue=shop.name).text
    assert not re.search(r"\son\w+=|style=|<style|javascript:|https?://(?!www\.w3)", page)


def test_cookies_are_kept_from_scripts_and_other_pages(db: Any, space: Any) -> None:
    app = AdminApp(db, within=space)
    cookie = Browser(app).get("").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    app.close()
