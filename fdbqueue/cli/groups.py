"""``fdbqueue groups``: which groups a queue has, what became of their items, and what operators do to them."""

from __future__ import annotations

import time
from dataclasses import asdict, fields
from typing import Annotated, Any, TypeAlias

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.grouping import groups_of, with_hold
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of, text_of
from fdbqueue.cli.output import wants_table
from fdbqueue.cli.tables import SCREENFUL, TableColumn, line_of, number_text, print_rows
from fdbqueue.cli.waiting import Wait, until_ended
from fdbqueue.errors import CompletionError
from fdbqueue.layers.groups import Groups, GroupStats
from fdbqueue.stored.names import session_text

_Found: TypeAlias = tuple[str, GroupStats]
STATES = [field.name for field in fields(GroupStats) if field.name not in ("state", "ended")]


def groups(
    queue: QueueName,
    name: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="The group. Default: all groups.", callback=text_of("group"))
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="No command adds items any more: the group may end with its last item.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take and add no more of its items, and remove those that wait.")
    ] = False,
    wait: Wait = None,
    sessions: Annotated[bool, typer.Option("--sessions", "-S", help="Groups of items in sessions.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Largest number. Default: all; on a terminal, 20.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", help="Only groups behind this name.", callback=text_of("group"))
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the groups of a queue with the numbers of their items. Exits with 1 if there is none.

    With a GROUP it prints that one, after it has closed or cancelled it, or waited for its end, as the options say. A
    wait exits with 8 if the group was cancelled, and with 9 if the time is over.

    `fdbqueue enqueue --group` opens a group. It can't end before it is closed, or for an hour after the last enqueue.

    Example: fdbqueue groups orders invoices --close --wait 60
    """
    if name is None and (close or cancel or wait is not None):
        raise typer.BadParameter("name a group to close, cancel or wait for", param_hint="GROUP")
    if close and cancel:
        raise typer.BadParameter("a group is closed or cancelled", param_hint="--close / --cancel")
    own = queue_of(queue)
    source = groups_of(own, of_sessions=sessions)
    table = wants_table(as_json)
    with opened_queue(url, own) as db:
        if name is None:
            most = limit or (SCREENFUL if table else None)
            printed = _print(queue, _listed(source, db, after, most), table=table)
            code = 0 if printed else errors.EMPTY
        else:
            code = _one(source, db, queue, name, close=close, cancel=cancel, wait=wait, table=table)
    if code:
        raise typer.Exit(code)


def _one(
    source: Groups, db: Any, queue: str, name: str, *, close: bool, cancel: bool, wait: float | None, table: bool
) -> int:
    """Act on one group, and print it. Return the exit code."""
    group = source.group(db, name)
    code = 0
    try:
        if close:
            with_hold(source, name).close(db)
        if cancel:
            group.cancel(db)
        if wait is not None:
            with noted(f"The group {name!r} has not ended."):
                until_ended(group.wait, time.monotonic() + wait)
    except CompletionError as error:
        typer.echo(f"Error: {error}", err=True)
        code = errors.EMPTY if error.outcome == "gone" else errors.REMOVED
    except TimeoutError:
        typer.echo(f"Error: The group {name!r} has not ended in {wait:g} s.", err=True)
        code = errors.TIMED_OUT
    if code != errors.EMPTY:
        try:
            _print(queue, [(name, group.stats(db))], table=table)
        except CompletionError as error:
            typer.echo(f"Error: {error}", err=True)
            code = errors.EMPTY
    return code


def _listed(source: Groups, db: Any, after: str | None, most: int | None) -> list[_Found]:
    found = []
    for group in source.list(db, after=after, limit=most):
        try:
            found.append((group.name, group.stats(db)))
        except CompletionError:
            continue  # it was removed meanwhile
    return found


def _print(queue: str, found: list[_Found], *, table: bool) -> int:
    """Print groups. Return how many."""

    def line(one: _Found) -> bytes:
        return line_of({"queue": queue, "group": one[0], **asdict(one[1])})

    return print_rows(found, COLUMNS, line, table=table)


def _count(state: str) -> TableColumn[_Found]:
    return TableColumn(state, lambda one: number_text(getattr(one[1], state)), number=True)


COLUMNS: tuple[TableColumn[_Found], ...] = (
    TableColumn("group", lambda one: session_text(one[0])),
    TableColumn("state", lambda one: f"{one[1].state}, ended" if one[1].ended else one[1].state),
    *map(_count, STATES),
)
