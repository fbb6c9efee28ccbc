"""Handles of leases, as arguments or as lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from fdbqueue.cli.errors import BadValue
from layers.lease import LeaseHandle

Handles = Annotated[
    list[str] | None,
    typer.Argument(metavar="LEASE", help="Handles of leases; without one, lines of standard input."),
]


def handles_of(given: list[str] | None) -> Iterator[LeaseHandle]:
    """Return the handles that were given or, if none were, those in the lines of standard input.

    Raises:
        BadParameter: none were given, and standard input is a terminal.
        BadValue: one is no handle; while the handles are read.
    """
    if given:
        return iter([_handle(text, text) for text in given])
    if sys.stdin.isatty():
        raise typer.BadParameter("give handles, or pipe lines into standard input", param_hint="LEASE")
    return _lines()


def _lines() -> Iterator[LeaseHandle]:
    for number, line in enumerate(sys.stdin, 1):
        text = line.strip()
        if text:
            yield _handle(_text(text), f"Line {number}")


def _text(line: str) -> str:
    """Return the handle in a line: bare, as a JSON string, or as the "lease" of a JSON object."""
    try:
        decoded = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    return str(decoded.get("lease") if isinstance(decoded, dict) else decoded)


def _handle(text: str, where: str) -> LeaseHandle:
    try:
        return LeaseHandle.parse(text)
    except ValueError as error:
        raise BadValue(f"{where}: {error}") from error
