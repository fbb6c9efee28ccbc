"""The help of the commands, at every width of the terminal."""

from __future__ import annotations

import inspect
import shutil
from functools import partial
from typing import Any

from typer.core import TyperCommand

NARROW_COLUMNS = 60
"""On a narrower terminal the tables of options would cut off the options' names."""
NAME_COLUMNS = 14
"""On a narrow terminal a longer name gets a line of its own."""


def reflowed(docstring: str | None) -> str:
    """Join the lines of each paragraph, so that the help wraps at the terminal's width.

    >>> reflowed('''Print items.
    ...
    ...     This sentence
    ...     has two lines.
    ...     ''')
    'Print items.\\n\\nThis sentence has two lines.'
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


class Command(TyperCommand):
    """A command whose help has no tables on a narrow terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        columns = shutil.get_terminal_size().columns
        if columns < NARROW_COLUMNS:
            self.rich_markup_mode = None
            formatter.width = columns - 1
            formatter.write_dl = partial(formatter.write_dl, col_max=NAME_COLUMNS)
        super().format_help(ctx, formatter)
