"""A stranger finds, explains and repairs five planted troubles: from the shell alone, and from the page alone.

Each step uses only what an earlier step has shown: names, positions and sessions are read there.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue import Queue
from fdbqueue.cli import app
from fdbqueue.cli.opening import queue_of
from fdbqueue.layers import Leases, Sessions, constant
from tests.helpers.staging import wait_until
from tests.web.test_served import Server, browser, stops_servers

__all__ = ["browser", "stops_servers"]
SLOW_CARRIER, NO_ADDRESS = "TimeoutError: the carrier did not answer", "ValueError: no such address"


def plant(db: Any) -> None:
    """Plant a poisoned item, a stuck lease, a pause, dead letters of two kinds, and a session in its back-off."""
    orders: Queue[Any] = Queue("orders", codec="json")
    orders.enqueue(db, {"sku": "cup"})
    orders.dequeue(db)
    queue_of("orders").enqueue(db, b"{oops", headers={})
    orders.enqueue(db, {"sku": "pot"})

    mails = Leases(Queue("mails", codec="json"), clock=lambda: time.time() - 3_600)
    mails.enqueue(db, {"to": "Ann"})
    assert mails.lease(db, duration=30, consumer="worker-7")

    invoices: Queue[Any] = Queue("invoices", codec="json")
    invoices.enqueue(db, {"number": 1})
    invoices.pause(db, reason="stocktaking", by="Bob")

    shipments = Leases(Queue("shipments", codec="json"), max_attempts=1)
    shipments.enqueue_many(db, [{"number": number} for number in range(5)])
    for number in range(5):
        lease = shipments.lease(db)
        assert lease
        shipments.nack(db, lease, error=SLOW_CARRIER if number < 3 else NO_ADDRESS)

    bank = Sessions(Queue("bank", codec="json"), backoff=constant(3_600.0))
    bank.enqueue_many(db, [{"transfer": 1}, {"transfer": 2}], session="Ann")
    turn = bank.lease(db)
    assert turn
    bank.nack(db, turn, error="the ledger is down")


def assert_repaired(url: str) -> None:
    """Every queue can be consumed, and what had to go has gone."""
    with fdbqueue.open(url) as db:
        assert [item.value for item in Queue("orders", codec="json").dequeue_many(db)] == [{"sku": "pot"}]
        assert Leases(Queue("orders")).stats(db).dead == 1
        lease = Leases(Queue("mails", codec="json")).lease(db)
        assert lease
        assert lease.value == {"to": "Ann"}
        assert Queue("invoices", codec="json").dequeue(db)
        shipments = Leases(Queue("shipments", codec="json"))
        assert shipments.stats(db).dead == 0
        assert [item.value["number"] for item in shipments.lease_many(db, limit=9)] == [0, 1, 2]
        turn = Sessions(Queue("bank", codec="json")).lease(db)
        assert turn
        assert (turn.session, turn.value) == ("Ann", {"transfer": 1})


@pytest.fixture
def planted(tmp_path: Any) -> str:
    url = f"file:{tmp_path / 'shop'}"
    with fdbqueue.open(url) as db:
        plant(db)
    return url


@pytest.mark.slow
def test_from_the_shell_alone(planted: str) -> None:
    def run(*arguments: str, code: int = 0) -> list[Any]:
        ran = CliRunner().invoke(app, list(arguments), env={"FDBQUEUE_URL": planted})
        assert ran.exit_code == code, (arguments, ran.stdout, ran.stderr)
        return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]

    [health] = run("health", code=1)
    told = "\n".join(health["problems"])
    listed = {one["queue"]: one for one in run("queues")}

    # The stuck lease: health names it, and the command.
    [command] = re.findall(r"`fdbqueue (watchdog [^`]+)`", told)
    run(*command.split())
    # The poisoned item: health names the queue, and inspect the item.
    [poisoned] = re.findall(r"^(\w+): The first item can't be decoded as json: JSON is malformed", told, re.MULTILINE)
    [page] = run("inspect", poisoned)
    [bad] = [one["item"] for one in page["first"] if "can't be read" in one.get("note", "")]
    run("bury", poisoned, bad, "--error", "is no JSON")
    # The paused queue.
    [paused] = [name for name, one in listed.items() if "paused" in one]
    assert listed[paused]["paused"]["reason"] == "stocktaking"
    run("resume", paused)
    # Dead letters of two kinds: one is tried again, and the other removed.
    [letters] = [name for name, one in listed.items() if one["dead"]]
    kinds = {one["error"]: one["items"] for one in run("dead", letters, "--by-error")}
    assert kinds == {SLOW_CARRIER: 3, NO_ADDRESS: 2}
    run("redrive", letters, "--error", "TimeoutError")
    run("purge", letters, "--error", "ValueError", "--yes")
    # The session in its back-off.
    [waits] = [name for name, one in listed.items() if one.get("sessions", {}).get("waiting")]
    [session] = run("sessions", waits, "--status", "waiting")
    assert session["until"] > time.time()
    assert run("sessions", waits, "--items", session["session"])[0]["error"] == "the ledger is down"
    run("sessions", waits, "--pause", session["session"])
    run("sessions", waits, "--resume", session["session"])

    assert run("health")[0]["ok"]
    assert_repaired(planted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_from_the_page_alone(planted: str, browser: Any) -> None:
    server = Server("--url", planted, "--allow-changes")

    def script(code: str) -> Any:
        return browser.execute_script(code)  # at once: the live part of a page is replaced again and again

    def text() -> str:
        return str(script("return document.querySelector('main').innerText"))

    def follow(find: str) -> None:
        """Click what a piece of script finds, and wait for the page that follows."""
        script(f"window.isOld = true; {find}.click()")
        wait_until(lambda: script("return !window.isOld && document.readyState == 'complete'"))

    def go(*links: str) -> str:
        for link in links:
            follow(f"[...document.links].find(one => one.textContent.trim() == {json.dumps(link)})")
        return text()

    def confirm(value: str) -> str:
        """Press the button of the preview, and return what the next page says."""
        assert script("return document.querySelector('h1').innerText").endswith("?")
        follow(f"document.querySelector('main button[value={value}]')")
        return str(script("return document.querySelector('[role=status]').innerText"))

    def press(value: str) -> str:
        follow(f"document.querySelector('main button[value={value}]')")
        return confirm(value)

    browser.get(server.address + "/")
    wait_until(lambda: script("return document.querySelectorAll('main td.name a[href*=\"queue?\"]').length") == 5)
    overview = text()
    names: list[str] = script(
        "return [...document.querySelectorAll('main td.name a[href*=\"queue?\"]')].map(one => one.textContent.trim())"
    )
    pages: dict[str, str] = {name: go("All queues", name) for name in dict.fromkeys(names)}
    assert "paused" in overview.lower()

    def named(sign: str) -> str:
        [found] = [name for name, page in pages.items() if sign in page]
        return found

    # The stuck lease.
    go("All queues", named("1 lease has expired"))
    assert "worker-7" in text()
    assert "1 done" in press("sweep")
    # The poisoned item.
    go("All queues", named("The first item can't be"))
    follow("document.querySelector('main .troubles .problem a')")
    assert "can't be read" in text()
    browser.find_element("name", "why").send_keys("is no JSON")
    assert "1 done" in press("bury")
    # The paused queue.
    assert "stocktaking" in go("All queues", named("It is paused"))
    press("resume")
    # Dead letters of two kinds.
    go("All queues", named("dead letters by error"), "Dead letters")
    for error, change, number in ((SLOW_CARRIER, "redrive", 3), (NO_ADDRESS, "purge", 2)):
        row = f"[...document.querySelectorAll('main tr')].find(one => one.innerText.includes({json.dumps(error)}))"
        follow(f"{row}.querySelector('button[value={change}]')")
        assert f"{number} done" in confirm(change)
    # The session in its back-off.
    [waits] = [name for name in pages if "back-off" in go("All queues", name, "Sessions") or "Ann" in text()]
    go("All queues", waits, "Sessions", "Ann")
    assert "waits for its back-off" in text()
    assert "the ledger is down" in text()
    assert "1 done" in press("session-try")

    assert server.stop() in (0, 143, -15)
    assert_repaired(planted)
