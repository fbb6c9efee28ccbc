"""The document: Markdown pages of what benchmarks print, with a chart for each of their questions.

`writing` opens the document. While it is open, printed text goes to the terminal and into the document, and `chart`
draws. Without a document `chart` does nothing, so a benchmark runs the same by itself.

Each title of the second level becomes a page of its own. The front page has the limits of all figures, a picture for
each of `QUESTIONS`, and links to the other pages.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import fdbqueue
from tests.benchmarks.samples import Figures

NAME = "README.md"
CHARTS = "charts"
LIMITS = "What this does not show"
"""The section that stays on the front page."""
BACK = f"From the [benchmarks]({NAME}).\n\n"
WHERE_IT_RAN = "where-it-ran.md"
QUESTIONS = {
    "How many consumers can share one queue?": (
        "Consumers that each take one item after another, with a server, threads over 4 processes",
        "Consumers that each take one item after another, embedded, threads over 4 processes",
    ),
    "How fast are a few processes on a laptop?": ("one item out at a time, durable",),
    "Does a long queue become slow?": ("One item in and one out of a queue with so many items, embedded",),
    "What do large items cost?": ("One item in and one out, by the item's size, embedded",),
    "How fast do handlers get their items?": ("20,000 items of 100 B, each leased and acked, embedded, durable",),
    "How fast does Spark load a queue?": ("1,000,000 rows of 100 B by Spark into an embedded queue, 2 tasks at once",),
}
"""A user's questions, and the charts that answer them: the first one that was drawn is shown."""


class Page(io.TextIOBase):
    """A page that is being written, and the terminal that shows it meanwhile.

    Args:
        folder: where the page and its charts go.
        terminal: where the text goes as well.
        whole: whether this is a run of all benchmarks, whose pages replace all that are there.
    """

    def __init__(self, folder: Path, terminal: TextIO, *, whole: bool) -> None:
        self.folder = folder
        self._whole = whole
        self._terminal = terminal
        self._text: list[str] = []
        self._charts: set[str] = set()

    def write(self, text: str) -> int:
        """Put text on the page."""
        self._text.append(text)
        return self._terminal.write(text)

    def flush(self) -> None:
        """Show what was written."""
        self._terminal.flush()

    def add_chart(self, question: str, drawing: str) -> None:
        """Put a chart on the page, in a file of its own."""
        name = _slug(question)
        while name in self._charts:
            name += "-again"
        self._charts.add(name)
        (self.folder / CHARTS / f"{name}.svg").write_text(drawing)
        self.write(f"![As a chart]({CHARTS}/{name}.svg)\n\n")  # the heading above has the question

    def save(self) -> None:
        """Write the pages into the folder, and remove the pages and charts of an earlier run.

        A run of some benchmarks replaces their pages only, and says there when it was made.
        """
        text = re.sub(r"\n{3,}", "\n\n", "".join(self._text)).strip() + "\n"
        kept = {} if self._whole else {path.name: path.read_text() for path in self.folder.glob("*.md")}
        if kept:
            alone = f"Measured on {datetime.now(UTC):%Y-%m-%d}, with fdbqueue {fdbqueue.__version__}.\n\n"
            pages = joined(kept, divided(text), alone)
        else:
            pages = divided(text)
        shown = {name for page in pages.values() for name in re.findall(rf"\({CHARTS}/(.*)\)", page)}
        for old in [*self.folder.glob("*.md"), *(self.folder / CHARTS).glob("*.svg")]:
            if old.name not in pages and old.name not in shown:
                old.unlink()
        for name, page in pages.items():
            (self.folder / name).write_text(page)


def divided(text: str) -> dict[str, str]:
    """Divide the printed text into pages, by the names of their files.

    >>> pages = divided("# All\\n\\n## One thing\\n\\n### How fast?\\n\\n42\\n")
    >>> sorted(pages)
    ['README.md', 'one-thing.md']
    >>> print(pages["one-thing.md"])
    # One thing
    <BLANKLINE>
    From the [benchmarks](README.md).
    <BLANKLINE>
    ## How fast?
    <BLANKLINE>
    42
    <BLANKLINE>
    """
    opening, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    pages: dict[str, str] = {}
    limits = ""
    for section in sections:
        title, _, body = section.removeprefix("## ").partition("\n")
        if title == LIMITS:
            limits = section.strip() + "\n"
            continue
        body = re.sub(r"^#(##+ )", r"\1", body.strip(), flags=re.MULTILINE)
        pages[f"{_slug(title)}.md"] = f"# {title}\n\n{BACK}{body}\n"
    return {NAME: _front(opening, pages, limits)} | pages


def joined(kept: dict[str, str], new: dict[str, str], alone: str) -> dict[str, str]:
    """Return the pages of an earlier run, of which a run of some benchmarks has replaced its own.

    >>> whole = divided("# All\\n\\n## One\\n\\n1\\n\\n## Two\\n\\n2\\n")
    >>> pages = joined(whole, divided("# All\\n\\n## Two\\n\\n3\\n"), "Alone. ")
    >>> pages["one.md"].splitlines()[-1], pages["two.md"].splitlines()[-1]
    ('1', 'Alone. 3')
    """
    opening, *sections = re.split(r"^(?=## )", kept[NAME], flags=re.MULTILINE)
    limits = next((section for section in sections if section.startswith(f"## {LIMITS}\n")), "")
    listed = re.findall(r"^- \[.*\]\((.*)\)$", kept[NAME], flags=re.MULTILINE)
    replaced = {
        name: page.replace(BACK, BACK + alone, 1) for name, page in new.items() if name not in (NAME, WHERE_IT_RAN)
    }
    pages = {name: kept[name] for name in listed if name in kept} | replaced
    return {NAME: _front(opening, pages, limits)} | pages


def _front(opening: str, pages: dict[str, str], limits: str) -> str:
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in pages.items()}
    listed = "".join(f"- [{title}]({name})\n" for name, title in titles.items())
    parts = [opening.strip() + "\n", *_answers(pages), f"## All pages\n\n{listed}", limits]
    return "\n".join(part for part in parts if part)


def _answers(pages: dict[str, str]) -> Iterator[str]:
    """Yield a part of the front page for each question that a chart answers."""
    for question, charts in QUESTIONS.items():
        shown = (
            f"## {question}\n\n![{chart}]({found[1]})\n\nThe table is in [{name.removesuffix('.md')}]({name}).\n"
            for chart in charts
            for name, text in pages.items()
            if (found := re.search(rf"^!\[.*\]\(({CHARTS}/{_slug(chart)}\.svg)\)$", text, flags=re.MULTILINE))
        )
        yield next(shown, "")


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:80]


_open: ContextVar[Page | None] = ContextVar("page", default=None)


@contextlib.contextmanager
def writing(folder: Path, *, whole: bool = True) -> Iterator[None]:
    """Write pages while the block runs; what is there by then is saved also if it fails.

    Args:
        folder: of the pages and their charts.
        whole: whether all benchmarks run. Otherwise the pages of others stay.
    """
    (folder / CHARTS).mkdir(parents=True, exist_ok=True)
    page = Page(folder, sys.stdout, whole=whole)
    token = _open.set(page)
    try:
        with contextlib.redirect_stdout(page):
            yield
    finally:
        _open.reset(token)
        page.save()


def is_open() -> bool:
    """Say whether a page is being written."""
    return _open.get() is not None


def chart(question: str, found: Sequence[Figures], axis: str | None = None) -> None:
    """Draw a question's chart and put it onto the page, if one is being written."""
    page = _open.get()
    if page is None:
        return
    from tests.benchmarks import charts  # needs matplotlib, which a benchmark by itself does not

    page.add_chart(question, charts.bars(question, found) if axis is None else charts.lines(question, found, axis))
