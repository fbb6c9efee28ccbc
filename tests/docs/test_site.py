"""The documentation site: it is built without a warning, whole, from here only, and can be used by everybody."""

from __future__ import annotations

import doctest
import html
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.site import build, drawing, mermaid, pictures, reference, transforms
from docs.site.drawing import PALETTE
from fdbqueue.engine.verb import Verb
from tests.helpers.chromium import chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

ROOT = Path(__file__).parents[2]
LOOKED_AT = (
    "index.html",
    "README.html",
    "docs/tutorial.html",
    "docs/guides/which-class.html",
    "docs/reference/Leases.html",
    "docs/reference/command-line.html",
    "docs/explanation/staged-dequeue.html",
    "docs/comparison.html",
    "docs/benchmarks/README.html",
    "search.html",
)
"""One page of each kind."""
TRIED_AGAIN = ("index.html", "docs/guides/which-class.html", "docs/reference/Leases.html", "docs/tutorial.html")
"""Those that are looked at in dark and on a phone, too."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all tests, with warnings as errors: a dead link or anchor is one."""
    folder = tmp_path_factory.mktemp("site") / "html"
    ran = subprocess.run([sys.executable, "-m", "docs.site", str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return sorted(site.glob("**/*.html"))


def test_it_has_every_document(site: Path, repository: Path) -> None:
    documents = {path.relative_to(repository) for path in repository.glob("docs/**/*.md")} - {Path("docs/README.md")}
    missing = [path for path in documents if not (site / path).with_suffix(".html").exists()]
    assert not missing
    assert len(pages(site)) > 150


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text()):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), f"{page.name}: {tag}"
    for style in site.glob("**/*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//|@import\s+['\"]?http", style.read_text()), style.name


def test_the_reference_has_every_public_class_and_verb_with_its_signature(site: Path) -> None:
    looked_at = 0
    for names in reference.public().values():
        for name, one in names:
            page, _ = reference.anchors()[name]
            text = html.unescape(re.sub(r"<[^>]+>", "", (site / f"{page}.html").read_text()))
            for verb, member in reference.methods(one) if inspect.isclass(one) else ():
                assert f"{name}.{verb}#" in text, f"{name}.{verb} has no heading"
                if isinstance(member, Verb):
                    assert f"{verb}(" in text
                    looked_at += 1
    assert looked_at > 200


def test_every_verb_says_its_conflicts_and_its_cost_or_names_the_verb_that_does() -> None:
    for place, names in reference.public().items():
        for name, one in names if place != "fdbqueue.agents" else ():  # dialogs with a server, not transactions
            for verb, member in reference.methods(one) if inspect.isclass(one) else ():
                said = reference.documented(member)
                both = "Conflicts" in said and "Cost" in said
                assert not isinstance(member, Verb) or both or re.search(r"`[\w.]+`", said), f"{name}.{verb}"


def test_a_name_in_a_guide_leads_to_its_place_in_the_reference(site: Path) -> None:
    text = (site / "docs" / "guides" / "consumers.html").read_text()
    assert 'href="../reference/Leases.html"' in text
    assert "../reference/Queue.html#" in (site / "docs" / "guides" / "which-class.html").read_text()


def test_each_picture_is_as_its_source_draws_it(repository: Path) -> None:
    folder = repository / "docs" / "pictures"
    for name, draw in pictures.ALL.items():
        drawn = (folder / f"{name}.svg").read_text()
        assert drawn == draw().svg(), f"{name}: python -m docs.site.pictures"
    for path in folder.glob("*.svg"):
        text = path.read_text()
        assert "prefers-color-scheme:dark" in text.replace(" ", "")
        assert all(f"--{name}:" in text for name in PALETTE)


@pytest.mark.nightly
def test_each_mermaid_block_is_drawn(repository: Path) -> None:
    there = {path.name for path in (repository / "docs" / "pictures").glob("mermaid-*.svg")}
    assert there == set(mermaid.sources()), "python -m docs.site.mermaid draws them again"


@pytest.mark.parametrize("module", [build, drawing, reference, transforms])
def test_examples_of_its_tools_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        opened.set_script_timeout(300)  # axe looks at each part of a page; a busy machine takes its time
        yield opened


def show(browser: Any, page: Path, *, scheme: str = "light", width: int = 1280) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    device = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    browser.get(page.as_uri())


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1280), *(pytest.param(*look, marks=pytest.mark.nightly) for look in (("dark", 1280), ("light", 390)))],
)
def test_axe_finds_no_fault(site: Path, browser: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_core_python.selenium").Axe()
    found = []
    for name in LOOKED_AT if (scheme, width) == ("light", 1280) else TRIED_AGAIN:
        show(browser, site / name, scheme=scheme, width=width)
        for fault in axe.run(browser, options={"resultTypes": ["violations"]})["violations"]:
            found += [f"{name}: {fault['id']}: {node['html'][:120]}" for node in fault["nodes"][:3]]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_pictures_follow_the_pages_button_for_the_colour_scheme(site: Path, browser: Any, scheme: str) -> None:
    show(browser, site / "docs" / "explanation" / "staged-dequeue.html", scheme="light" if scheme == "dark" else "dark")
    browser.execute_script("document.body.dataset.theme = arguments[0]", scheme)
    of_picture = "return getComputedStyle(document.querySelector('article img')).colorScheme"
    assert browser.execute_script(of_picture) == scheme


def test_no_page_scrolls_sideways_on_a_phone(site: Path, browser: Any) -> None:
    for name in LOOKED_AT:
        show(browser, site / name, width=390)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, name


def test_the_search_finds_without_a_network(site: Path, browser: Any) -> None:
    browser.get((site / "search.html").as_uri() + "?q=staged+dequeue")
    browser.implicitly_wait(20)
    found = browser.find_element("css selector", "#search-results li a")
    assert found.get_attribute("href").startswith("file:")
