"""Handles of leases, as arguments or as lines of standard input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from fdbqueue.base.position import Position
from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.input import InputFailed, groups_of_lines
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.values import from_json
from fdbqueue.errors import LeaseLost
from fdbqueue.layers.leases import LeaseHandle, LeaseRef
from fdbqueue.layers.leases.holding import mostly_lost
from fdbqueue.layers.sessions import SessionHandle

H = TypeVar("H", bound=LeaseRef)

Handles = Annotated[
    list[str] | None,
    typer.Argument(metavar="LEASE", help="Handles of leases. Default: lines of standard input."),
]


def handles_of(
    given: list[str] | None, results: dict[LeaseHandle, Any] | None = None
) -> Iterator[Iterator[LeaseHandle]]:
    """Return the given handles or, without any, those from groups of lines of standard input.

    Args:
        given: the handles; None: read lines.
        results: gets the "result" of each line that has one, while the lines are read.

    Raises:
        BadParameter: none were given, and standard input can't provide any.
        BadValue: one is no handle. It is raised while the handles are read.
    """
    if given:
        return iter([iter([_handle(text, "") for text in given])])
    numbers = itertools.count(1)
    return (
        _in_lines(group, numbers, {} if results is None else results) for group in groups_of_lines("handles", "LEASE")
    )


def told_lost(handle: LeaseHandle) -> None:
    """Report that a lease is lost."""
    typer.echo(f"Error: The lease {handle} is lost: {mostly_lost(handle.position)}.", err=True)


def with_those_held(
    action: Callable[[list[H]], object], leases: list[H], *, on_lost: Callable[[H], None] = lambda lease: None
) -> list[H]:
    """Call `action` with the leases that are not lost, and return those. Pass each lost lease to `on_lost`."""
    while leases:
        try:
            action(leases)
            break
        except LeaseLost as error:
            for lease in leases:
                if lease.position in error.lost:
                    on_lost(lease)
            leases = [lease for lease in leases if lease.position not in error.lost]
    return leases


def apart(bundle: list[LeaseHandle]) -> tuple[list[LeaseHandle], list[SessionHandle]]:
    """Return the handles of plain items, and those of sessions."""
    of_sessions = [handle for handle in bundle if isinstance(handle, SessionHandle)]
    return [handle for handle in bundle if not isinstance(handle, SessionHandle)], of_sessions


def bundles(handles: Iterable[LeaseHandle], most: int) -> Iterator[list[LeaseHandle]]:
    """Yield up to `most` handles at a time, no item twice in one bundle. Yield those before a wrong handle first."""
    bundle: dict[Position, LeaseHandle] = {}
    wrong = None
    try:
        for handle in handles:
            if len(bundle) == most or handle.position in bundle:
                yield list(bundle.values())
                bundle.clear()
            bundle[handle.position] = handle
    except (BadValue, InputFailed) as error:
        wrong = error
    if bundle:
        yield list(bundle.values())
    if wrong is not None:
        raise wrong


def _in_lines(lines: Iterable[bytes], numbers: Iterator[int], results: dict[LeaseHandle, Any]) -> Iterator[LeaseHandle]:
    for line, number in zip(lines, numbers, strict=False):
        text = line.decode(errors="replace").strip()
        if text:
            record = _record(text)
            where = f"Line {number}: "
            if record["lease"] is None:
                raise BadValue(f"{where}The field 'lease' is missing. Give the lines that `fdbqueue lease` prints.")
            handle = _handle(str(record["lease"]), where)
            if "result" in record:
                results[handle] = _result(record["result"], where)
            yield handle


def _result(decoded: Any, where: str) -> Any:
    try:
        return from_json(decoded, CodecName.msgpack)
    except BadValue as error:
        raise BadValue(f"{where}{error}") from error


def _record(line: str) -> dict[str, Any]:
    """Return the handle in a line as "lease": it is bare, a JSON string, or the "lease" of a JSON object."""
    try:
        decoded = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {"lease": line}
    return {"lease": None, **decoded} if isinstance(decoded, dict) else {"lease": decoded}


def _handle(text: str, where: str) -> LeaseHandle:
    try:
        return SessionHandle.parse(text) if "/" in text else LeaseHandle.parse(text)
    except ValueError as error:
        raise BadValue(f"{where}{error}") from error
