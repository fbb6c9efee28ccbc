"""Troubles as commands print them: lines on a terminal, records elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from fdbqueue.cli.tables import print_shown
from fdbqueue.reads.trouble import Severity, Trouble, Troubles
from fdbqueue.stored.names import session_json

STYLES: dict[Severity, str] = {"problem": "bold red", "warning": "bold yellow", "note": "bold"}
MOST_SHOWN = 50
"""So many troubles a terminal shows."""


def trouble_record(one: Trouble) -> dict[str, Any]:
    """Return a trouble in a form that JSON can hold."""
    record = one.record()
    return record if one.session is None else {**record, "session": session_json(one.session)}


def troubles_shown(found: Iterable[Trouble]) -> dict[str, Any]:
    """Return the troubles of one queue as a record has them; empty if there are none."""
    told = [trouble_record(one) for one in found]
    return {"troubles": told} if told else {}


def next_step(one: Trouble) -> str:
    """Return a trouble in one line, with the command that comes next.

    >>> next_step(Trouble("dead_letters", "warning", "orders", "2 dead letters.", command="fdbqueue dead orders"))
    'orders: 2 dead letters. Next: `fdbqueue dead orders`.'
    """
    return f"{one.sentence} Next: `{one.command}`." if one.command else one.sentence


def print_troubles(found: Troubles, sentences: Sequence[str] = ()) -> None:
    """Print troubles on a terminal, each with its next command on a line of its own.

    Args:
        sentences: what to print above them.
    """
    print_shown(troubles_text(found, sentences))


def troubles_text(found: Troubles, sentences: Sequence[str] = ()) -> Text:
    """Return what `print_troubles` prints."""
    text = Text(found.heading, style="bold")
    for sentence in sentences:
        text.append("\n").append(sentence, style="red")
    for one in found[:MOST_SHOWN]:
        text.append("\n").append_text(trouble_line(one))
    if len(found) > MOST_SHOWN:
        text.append(f"\n… and {len(found) - MOST_SHOWN:,} more: `fdbqueue troubles --json` has all", style="not bold")
    return text


def trouble_line(one: Trouble) -> Text:
    """Return a trouble for a terminal: its sentence, since when, and its next command on a line of its own."""
    line = Text.assemble((f"{one.severity} ", STYLES[one.severity]), (f"{one.sentence}{one.told_since}", "not bold"))
    return line.append(f"\n    {one.command}", style="not bold") if one.command else line
