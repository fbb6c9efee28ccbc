"""`fdbqueue web` as a process of its own, and its page in a real browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue.cli import app
from fdbqueue.layers import Leases
from tests.helpers import forked
from tests.helpers.chromium import chromium
from tests.web.conftest import EVIL

pytestmark = pytest.mark.slow

LISTENS = ("--listen", "127.0.0.1:0")
COMMAND = (sys.executable, "-m", "fdbqueue", "web", *LISTENS)


_servers: list[Server] = []


@pytest.fixture(autouse=True)
def stops_servers() -> Iterator[None]:
    yield
    while _servers:
        _servers.pop().kill()


class Server:
    """A served page."""

    def __init__(self, *options: str, **environment: str) -> None:
        self.process = forked.Popen(
            [*COMMAND, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        _servers.append(self)
        assert self.process.stderr
        self.line = self.process.stderr.readline()
        found = re.search(r"http\S+(?=/\.)", self.line)
        self.address = found[0] if found else ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(600)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr
        self.process.stderr.close()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    url = f"file:{tmp_path / 'shop'}"
    with fdbqueue.open(url) as db:
        orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=1)
        orders.enqueue_many(db, [{"sku": "cup"}, {"sku": EVIL}, {"sku": "pot"}])
        lease = orders.lease(db)
        assert lease
        orders.nack(db, lease, error=EVIL.replace("\x00", ""))
    return url


def test_it_serves_metrics_beside_the_page(folder: str) -> None:
    server = Server("--url", folder, "--metrics", "127.0.0.1:0")
    [address] = re.findall(r"http://\S+/metrics", server.line)
    assert server.process.stderr is not None
    assert "The page is at" in server.process.stderr.readline()
    with urllib.request.urlopen(address, timeout=600) as told:
        assert b'fdbqueue_died_total{queue="orders"} 1.0' in told.read()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "token"),
        (["--listen", "0.0.0.0:0", "--token-file", "missing"], "missing"),
        (["--cert", "x.pem"], "--key"),
        (["--url", "memory:"], "ends with the command"),
        (["--url", "file:nowhere"], "no"),
    ],
)
def test_wrong_options_are_refused(
    folder: str, tmp_path: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = options if "--url" in options else [*options, "--url", folder]
    found = CliRunner().invoke(app, ["web", *LISTENS, *given])
    assert found.exit_code in (2, 3)
    assert said in " ".join(found.stderr.replace("│", " ").split())
    assert isinstance(found.exception, SystemExit)


def test_a_port_in_use_is_an_error(folder: str) -> None:
    server = Server("--url", folder)
    port = server.address.rpartition(":")[2]
    again = forked.run(
        [*COMMAND[:-1], f"127.0.0.1:{port}", "--url", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 3
    assert "in use" in again.stderr
    server.stop()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with chromium(tmp_path / "profile") as opened:
        opened.implicitly_wait(10)
        yield opened


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_person_redrives_and_pauses_in_a_browser(folder: str, browser: Any) -> None:
    server = Server("--url", folder, "--allow-changes")

    def click(css: str) -> None:
        browser.find_element("css selector", css).click()

    def wait_for(text: str) -> None:  # a click may return before the next page is there
        browser.find_element("xpath", f"//main//*[contains(., '{text}')]")

    browser.get(server.address + "/")
    browser.find_element("link text", "orders").click()
    browser.find_element("link text", "Dead letters").click()
    assert EVIL.split("\x00")[0].strip() in browser.find_element("css selector", "table").text
    click("button[value=redrive]")
    wait_for("Redrive 1 item of orders?")
    click("main button[value=redrive]")
    assert "1 done" in browser.find_element("css selector", "[role=status]").text
    browser.find_element("link text", "Queue").click()
    browser.find_element("name", "reason").send_keys("stocktaking")
    click("button[value=pause]")
    wait_for("Pause orders?")
    click("main button[value=pause]")
    assert "stocktaking" in browser.find_element("css selector", ".troubles").text
    browser.find_element("link text", "Items").click()
    click("input[data-all]")
    assert all(box.is_selected() for box in browser.find_elements("name", "position"))
    problems = [entry for entry in browser.get_log("browser") if "favicon" not in entry["message"]]
    assert problems == []
    server.stop()
    with fdbqueue.open(folder) as db:
        orders = fdbqueue.Queue("orders", codec="json")
        pause = orders.paused(db)
        assert pause
        assert pause.reason == "stocktaking"
        assert orders.stats(db).dead == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_every_page_can_be_used_without_a_mouse_and_on_a_phone(folder: str, browser: Any) -> None:
    server = Server("--url", folder, "--allow-changes")
    browser.set_window_size(500, 900)
    for page in ("", "queue?queue=orders", "items?queue=orders", "dead?queue=orders", "sessions?queue=orders"):
        browser.get(f"{server.address}/{page}")
        width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1], f"{page} is wider than the window"
        nameless = browser.execute_script(
            "return [...document.querySelectorAll('input:not([type=hidden]),select,button,a')].filter(one =>"
            " !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map(one => one.outerHTML)"
        )
        assert nameless == []
        assert browser.find_elements("css selector", "h1, main, html[lang]")
    server.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_name_stays_in_one_line_and_headings_stand_over_their_numbers(folder: str, browser: Any) -> None:
    name = "shop-orders-from-the-north-2026"
    with fdbqueue.open(folder) as db:
        for queue in (fdbqueue.Queue(name, codec="json"), fdbqueue.Queue("n" * 300, codec="json")):
            queue.enqueue(db, 1)
            queue.pause(db, reason="we count all that is in the store " * 9, by="Ann")
    server = Server("--url", folder)
    browser.set_window_size(1280, 900)
    browser.get(f"{server.address}/")
    heights = browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('td[data-name=queue] a')].map(one =>"
        " [one.textContent, one.getClientRects().length + Math.round(one.getBoundingClientRect().height / 24)]))"
    )
    assert heights[name] == heights["orders"]
    width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]
    for page in ("", "queue?queue=orders", "dead?queue=orders", "items?queue=orders", "sessions?queue=orders"):
        browser.get(f"{server.address}/{page}")
        aligned = browser.execute_script(
            "return [...document.querySelectorAll('td.n')].map(one => [one.dataset.name, getComputedStyle("
            "one.closest('table').querySelectorAll('th')[one.cellIndex]).textAlign])"
        )
        assert [one for one in aligned if one[1] != "right"] == [], page
    server.stop()
