"""The document: one Markdown page of whatever benchmarks print, with a chart for each of their questions.

`writing` opens a page; while it is open, what is printed goes to the terminal and onto the page, and `chart` draws.
Without a page `chart` does nothing, so a benchmark runs the same by itself.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from tests.benchmarks.samples import Figures

NAME = "README.md"
CHARTS = "charts"


class Page(io.TextIOBase):
    """A page that is being written, and the terminal that shows it meanwhile.

    Args:
        folder: where the page and its charts go.
        terminal: where the text goes as well.
    """

    def __init__(self, folder: Path, terminal: TextIO) -> None:
        self.folder = folder
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
        name = re.sub(r"[^a-z0-9]+", "-", question.lower()).strip("-")[:80]
        while name in self._charts:
            name += "-again"
        self._charts.add(name)
        (self.folder / CHARTS / f"{name}.svg").write_text(drawing)
        self.write(f"![{question.replace('[', '(').replace(']', ')')}]({CHARTS}/{name}.svg)\n\n")

    def save(self) -> None:
        """Write the page into its folder; charts there that it does not show are those of an earlier run, and go."""
        for chart in (self.folder / CHARTS).glob("*.svg"):
            if chart.stem not in self._charts:
                chart.unlink()
        text = re.sub(r"\n{3,}", "\n\n", "".join(self._text)).strip() + "\n"
        (self.folder / NAME).write_text(text)


_open: ContextVar[Page | None] = ContextVar("page", default=None)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Write a page while the block runs; what is there by then is saved also if it fails."""
    (folder / CHARTS).mkdir(parents=True, exist_ok=True)
    page = Page(folder, sys.stdout)
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
