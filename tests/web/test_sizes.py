"""The pages in a real browser on a phone, a laptop and a large screen, light and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import uvicorn

import fdbqueue
from fdbqueue.layers import Leases, Sessions
from fdbqueue.web import AdminApp
from tests.helpers.chromium import chromium
from tests.helpers.staging import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

LONG = "a-name-without-a-blank-" * 10
SIZES = [(width, scheme) for width in (390, 1200, 1920) for scheme in ("light", "dark")]

WIDER = "return document.documentElement.scrollWidth > innerWidth ? [document.title] : []"

PALE = """
const parsed = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(one => one / 255).map(
  one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4
).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const ground = one => {
  for (; one; one = one.parentElement) {
    const found = parsed(getComputedStyle(one).backgroundColor);
    if (found.length < 4 || found[3] === 1) return found;
  }
  throw "no ground";
};
const contrast = (color, back) => {
  const [dark, bright] = [light(color), light(back)].sort((one, other) => one - other);
  return (bright + 0.05) / (dark + 0.05);
};
const pale = [];
for (const one of document.querySelectorAll("body *")) {
  const shows = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())
    || one.matches("input, select");
  if (!shows || !one.checkVisibility() || one.matches("option, script")) continue;
  const styles = [getComputedStyle(one)];
  if (one.placeholder) styles.push(getComputedStyle(one, "::placeholder"));
  for (const style of styles) {
    const found = contrast(parsed(style.color), ground(one));
    if (found < 4.5) pale.push([found, one.outerHTML.slice(0, 120)]);
  }
}
return pale;
"""

SLIPPED = """
const slipped = [];
for (const row of document.querySelectorAll("form.row, div.row")) {
  const fields = [...row.querySelectorAll("input:not([type=hidden], [type=checkbox]), select, button")];
  for (const one of fields) for (const other of fields) {
    const [here, there] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    if (here.top < there.bottom && there.top < here.bottom && Math.abs(here.bottom - there.bottom) > 1)
      slipped.push([one.name, other.name, here.bottom, there.bottom]);
  }
}
return slipped;
"""

UNMARKED = """
const unmarked = [];
for (const one of document.querySelectorAll("a, button, input:not([type=hidden]), select, pre")) {
  if (!one.checkVisibility()) continue;
  one.focus({focusVisible: true, preventScroll: true});
  const style = getComputedStyle(one);
  if (document.activeElement !== one || style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2)
    unmarked.push(one.outerHTML.slice(0, 120));
}
return unmarked;
"""

CUT = """
return [...document.querySelectorAll("main *")].filter(one => one.checkVisibility()
  && getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1
  && !one.matches("input, select")
).map(one => one.outerHTML.slice(0, 120));
"""


@pytest.fixture
def shop() -> Iterator[tuple[str, dict[str, str]]]:
    """A page over queues with each kind of trouble, and the addresses that are looked at."""
    with fdbqueue.open("memory:") as db:
        mails = Leases(fdbqueue.Queue("mails", codec="json"), max_attempts=1)
        mails.enqueue_many(db, [{"to": "x" * 400, "subject": "Your order"}] * 3, headers={"color": "r" * 300})
        position = None
        for error in ("ConnectionRefusedError: smtp.example.org:25 refused", "E" * 400):
            lease = mails.lease(db)
            assert lease
            position = lease.position
            mails.nack(db, lease, error=error)
        assert position
        uploads = fdbqueue.Queue("uploads", codec="json")
        uploads.set_quota(db, 2)
        uploads.enqueue_many(db, [1, 2])
        fdbqueue.Queue(LONG, codec="json").enqueue(db, 1)
        orders = Sessions(fdbqueue.Queue("orders", codec="json"), max_attempts=1, on_dead="block")
        for session in ("Bob", LONG):
            orders.enqueue_many(db, [1, 2], session=session)
            turn = orders.lease(db)
            assert turn
            orders.nack(db, turn, error="RuntimeError: stock is negative")
        pages = {
            "front": "",
            "mails": "queue?queue=mails",
            "uploads": "queue?queue=uploads",
            "orders": "queue?queue=orders",
            "long": "queue?" + urlencode({"queue": LONG}),
            "items": "items?queue=mails",
            "item": "item?" + urlencode({"queue": "mails", "position": position.text}),
            "dead": "dead?queue=mails",
            "sessions": "sessions?queue=orders",
            "session": "session?" + urlencode({"queue": "orders", "session": LONG}),
            "parts": "parts?queue=orders",
            "wrong": "queue?queue=nowhere",
        }
        app = AdminApp(db, allow_changes=True)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/", pages
        finally:
            server.should_exit = True
            thread.join()
            app.close()


def test_each_page_can_be_read_at_each_size_in_light_and_in_dark(
    shop: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, pages = shop
    with chromium(tmp_path / "profile") as browser:

        def look(name: str, width: int, scheme: str) -> None:
            for script in (WIDER, CUT, PALE, SLIPPED, UNMARKED):
                assert browser.execute_script(script) == [], (name, width, scheme)

        for width, scheme in SIZES:
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 400}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            for name, page in pages.items():
                browser.get(address + page)
                assert browser.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches") == (
                    scheme == "dark"
                )
                look(name, width, scheme)
                if name in ("front", "orders", "uploads"):  # what is wrong is in the first screen
                    top = "return document.querySelector('.problem a').getBoundingClientRect().bottom"
                    assert browser.execute_script(top) < 844
                if name == "items":
                    assert browser.execute_script("return document.querySelector('[data-all]').checkVisibility()")
                if name == "front":  # a phone shows no zeros in its cards
                    zeros = (
                        "return [...document.querySelectorAll('td .zero')].filter(one => one.checkVisibility()).length"
                    )
                    assert (browser.execute_script(zeros) == 0) == (width < 400)
            browser.get(address + "dead?queue=mails")
            browser.execute_script("document.querySelector('button[value=purge]').click()")
            browser.find_element("xpath", "//h1[starts-with(., 'Purge')]")
            look("preview", width, scheme)
