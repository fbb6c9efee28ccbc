"""A page over a database of each engine, and a client that behaves like a browser."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import fdbqueue
from fdbqueue.layers import Gate, Leases, Sessions
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import name_text
from fdbqueue.web import AdminApp

EVIL = "</td><script>alert('x')</script>\x00\x1b[31m\u202e"


_clients: list[Client] = []


@pytest.fixture(autouse=True)
def _closes_clients() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


class Client:
    """Sends requests to an application, and keeps its cookies."""

    def __init__(self, app: Any, base: str) -> None:
        self.app = app
        self._loop = asyncio.Runner()
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=base, follow_redirects=True)
        _clients.append(self)

    def close(self) -> None:
        self._loop.run(self._client.aclose())
        self._loop.close()

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    def request(self, method: str, path: str, **given: Any) -> httpx.Response:
        return self._loop.run(self._client.request(method, path, **given))

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self.request("GET", path, **given)

    def put(self, path: str) -> httpx.Response:
        return self.request("PUT", path)

    def post(self, path: str, **given: Any) -> httpx.Response:
        return self.request("POST", path, **given)


class Browser:
    """Loads pages, and sends the forms that it finds there.

    Args:
        app: the page.
        base: the address that it is opened under.
    """

    def __init__(self, app: Any, base: str = "http://127.0.0.1:8080") -> None:
        self.client = Client(app, base)
        self.base = base

    def get(self, page: str, **query: Any) -> httpx.Response:
        """Load a page."""
        return self.client.get(f"/{page}", params=query, headers={"accept": "text/html"})

    def text(self, page: str, **query: Any) -> str:
        """Return the text of a page that must load."""
        answer = self.get(page, **query)
        assert answer.status_code == 200, answer.text
        return html.unescape(answer.text)

    def csrf(self) -> str:
        """Return the token of a form."""
        page = self.get("")
        found = re.search(r'name="csrf" value="(\w+)"', self.get("login").text + page.text)
        return found[1] if found else self._csrf_of_a_queue(page.text)

    def _csrf_of_a_queue(self, page: str) -> str:
        link = re.search(r'href="/(queue\?[^"]+)"', page)
        assert link, "no queue is listed"
        found = re.search(r'name="csrf" value="(\w+)"', self.client.get(f"/{html.unescape(link[1])}").text)
        return found[1] if found else ""

    def send(self, page: str, fields: dict[str, Any], **headers: str) -> httpx.Response:
        """Send a form as this page's own."""
        given = {"origin": self.base, **headers}
        return self.client.post(f"/{page}", data=fields, headers=given)

    def change(self, change: str, queue: str, **fields: Any) -> str:
        """Preview a change, confirm it, and return the page that follows."""
        csrf = self.csrf()
        first = self.send("preview", {"csrf": csrf, "queue": queue, "change": change, **fields})
        assert first.status_code == 200, first.text
        hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', first.text)
        form: dict[str, Any] = {"change": change}
        for name, value in hidden:
            found = html.unescape(value)
            form[name] = [*form.get(name, []), found] if name == "position" else found
        assert form.get("queue") == queue, first.text
        last = self.send("apply", form)
        assert last.status_code == 200, last.text
        return html.unescape(last.text)


class Shop:
    """Queues below a test's own space, with items in each state."""

    def __init__(self, db: Any, space: Any) -> None:
        self.db = db
        self.name = name_text(name_of(space["orders"].key()))
        self.bank_name = name_text(name_of(space["bank"].key()))
        self.orders = Leases(fdbqueue.Queue(space["orders"], codec="json"), max_attempts=1)
        self.bank = Sessions(
            fdbqueue.Queue(space["bank"], codec="json"),
            max_attempts=1,
            on_dead="block",
            gates=lambda name: [Gate("all", limit=2)],
        )

    def fill(self) -> None:
        """Enqueue items, and let some fail."""
        self.orders.enqueue_many(self.db, [{"sku": f"cup {n}"} for n in range(5)], headers={"color": "red"})
        self.orders.enqueue(self.db, {"sku": EVIL}, headers={"color": "blue"})
        self.orders.enqueue(self.db, {"sku": "later"}, delay=3_600)
        for error in ("ValueError: no such sku", "TimeoutError: on fire\nsecond line"):
            lease = self.orders.lease(self.db)
            assert lease
            self.orders.nack(self.db, lease, error=error)
        assert self.orders.lease(self.db, duration=3_600)
        for name in ("Ann", "Bob", ("shop", 7)):
            self.bank.enqueue_many(self.db, [1, 2], session=name)
        turn = self.bank.lease(self.db)
        assert turn
        self.bank.nack(self.db, turn, error="the till is shut")


@pytest.fixture
def shop(db: Any, space: Any) -> Shop:
    found = Shop(db, space)
    found.fill()
    return found


@pytest.fixture
def pages(db: Any, space: Any) -> Iterator[Browser]:
    """A browser on a page with buttons."""
    app = AdminApp(db, allow_changes=True, within=space)
    yield Browser(app)
    app.close()
