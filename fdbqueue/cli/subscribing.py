"""``fdbqueue subscribe``, ``fdbqueue subscriptions`` and ``fdbqueue unsubscribe``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.opening import Create, opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of, text_of
from fdbqueue.cli.output import say, wants_table
from fdbqueue.cli.sessioning import Plain, refuse_among_sessions
from fdbqueue.cli.tables import TableColumn, line_of, print_rows
from fdbqueue.layers.subscriptions import Subscriptions, SubscriptionStats
from fdbqueue.stored.names import session_text

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the subscription.", callback=text_of("subscription"))
]


def subscribe(
    queue: QueueName,
    name: Name,
    selector: Annotated[
        str | None,
        typer.Option("--selector", "-s", help="Condition: \"color = 'red' AND weight > 2\". Default: all items."),
    ] = None,
    credit: Annotated[
        int | None,
        typer.Option("--credit", min=0, help="Number of items that its consumers may have at once. Default: no limit."),
    ] = None,
    credit_bytes: Annotated[
        int | None, typer.Option("--credit-bytes", min=0, help="Number of bytes that they may have at once.")
    ] = None,
    plain: Plain = False,
    create: Create = False,
    url: Url = None,
) -> None:
    """Register a subscription. `fdbqueue lease --subscription NAME` then leases the items that it selects, in order.

    An existing subscription gets this selector and credit. If the selector changes, it starts at the head again.
    It selects no items of sessions, so a queue that has some is refused unless you give --plain.

    Example: fdbqueue subscribe orders red --selector "color = 'red'" --credit 10
    """
    own = queue_of(queue)
    with opened_queue(url, own, create=create) as db:
        if not plain:
            refuse_among_sessions(db, own, "Run a Consumer of its Sessions")
        subscription = Subscriptions(own).subscribe(db, name, selector=selector)
        subscription.grant(db, items=credit, size_bytes=credit_bytes)
    say(f"{session_text(name)} is subscribed")


def subscriptions(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Print a queue's subscriptions, their selectors, and their leased items. Exits with 1 if there are none.

    Example: fdbqueue subscriptions orders
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        found = Subscriptions(own).stats(db)
    if not print_rows(found, COLUMNS, lambda one: line_of(asdict(one)), table=wants_table(as_json)):
        raise typer.Exit(errors.EMPTY)


def unsubscribe(queue: QueueName, name: Name, url: Url = None) -> None:
    """Remove a subscription. The items stay. Exits with 1 if there was none.

    Example: fdbqueue unsubscribe orders red
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        if not Subscriptions(own).unsubscribe(db, name):
            raise typer.Exit(errors.EMPTY)
    say(f"{session_text(name)} is not subscribed any more")


def _state(one: SubscriptionStats) -> str:
    return "suspended" if one.suspended else "exclusive" if one.exclusive else "browser" if one.browser else ""


COLUMNS: tuple[TableColumn[SubscriptionStats], ...] = (
    TableColumn("name", lambda one: session_text(one.name)),
    TableColumn("selector", lambda one: "a function" if one.selector is None else one.selector),
    TableColumn("state", _state),
    TableColumn("credit", lambda one: "" if one.credit is None else f"{one.credit:,}", number=True),
    TableColumn("held", lambda one: f"{one.held:,}", number=True),
    TableColumn("bytes held", lambda one: f"{one.held_bytes:,}", number=True),
)
