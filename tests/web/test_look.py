"""What the person on call sees first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue, web
from fdbqueue.layers import Leases
from fdbqueue.stored.names import queue_text
from tests.web.conftest import Browser, Shop


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


@pytest.mark.engines("memory")
def test_items_and_dead_letters_of_sessions_are_among_the_figures(pages: Browser, shop: Shop) -> None:
    shop.bank.enqueue(shop.db, 3, session="later", delay=3_600)
    front = pages.text("")
    row = front[front.index(f">{shop.bank_name}</a></td>") :].partition("</tr>")[0]
    assert re.search(r'data-name="in sessions"><a [^>]*>6</a>, <a class="hot" href="/sessions\?[^"]*">1 dead</a>', row)
    page = pages.text("queue", queue=shop.bank_name)
    assert re.search(r'<a href="/sessions[^"]*"><b>6</b>in sessions</a>', page)
    assert re.search(r'<a href="/sessions[^"]*" class="hot"><b>1</b>dead in sessions</a>', page)
    assert "in sessions" not in pages.text("queue", queue=shop.name)


@pytest.mark.engines("memory")
def test_a_session_has_the_buttons_that_fit_its_state(pages: Browser, shop: Shop) -> None:
    def buttons(session: str) -> list[str]:
        found = re.findall(r'value="session-(\w+)"', pages.text("session", queue=shop.bank_name, session=session))
        return list(found)

    assert buttons("Ann") == ["pause", "skip", "redrive", "purge", "remove"]  # it is blocked
    assert buttons("Bob") == ["pause", "remove"]
    pages.change("session-pause", shop.bank_name, session="Bob")
    assert buttons("Bob") == ["resume", "remove"]


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_texts_have_the_contrast_of_wcag_aa_in_light_and_in_dark() -> None:
    style = (Path(web.__file__).parent / "static" / "style.css").read_text()
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part)) for part in style.split("@media")[:2])
    assert light.keys() == dark.keys() >= {"back", "band", "front", "soft", "link", "good", "warn", "bad"}
    for colors in (light, dark):
        for text in colors.keys() - {"back", "band", "line"}:
            for ground in ("back", "band"):
                assert _contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    # Nothing else has a color of its own.
    assert set(re.findall(r"#[0-9a-f]{3,8}\b", style.partition("* {")[2])) == set()
    assert not re.search(r"(?<![-\w])color: (?!var\(|inherit)", style.partition("* {")[2])
    assert "var(--line)" not in "".join(re.findall(r"(?<![-\w])color: [^;]*;", style))
