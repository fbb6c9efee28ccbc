"""``fdbqueue subscribe``, ``fdbqueue subscriptions`` and ``fdbqueue unsubscribe``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fdbqueue.cli import errors
from fdbqueue.cli.opening import Create, opened_queue
from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import print_shown, say, wants_table, write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.layers.subscriptions import Subscriptions, SubscriptionStats

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]


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
    create: Create = False,
    url: Url = None,
) -> None:
    """Register a subscription. `fdbqueue lease --subscription NAME` then leases the items that it selects, in order.

    An existing subscription gets this selector and credit. If the selector changes, it starts at the head again.

    Example: fdbqueue subscribe orders red --selector "color = 'red'" --credit 10
    """
    own = queue_of(queue)
    with opened_queue(url, own, create=create) as db:
        subscription = Subscriptions(own).subscribe(db, name, selector=selector)
        subscription.grant(db, items=credit, size_bytes=credit_bytes)
    say(f"{name} is subscribed")


def subscriptions(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Print a queue's subscriptions, their selectors, and their leased items. Exits with 1 if there are none.

    Example: fdbqueue subscriptions orders
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        found = Subscriptions(own).stats(db)
    if wants_table(as_json) and found:
        print_shown(_table(found))
    else:
        write_lines([encode_json(asdict(one)).encode() + b"\n" for one in found])
    if not found:
        raise typer.Exit(errors.EMPTY)


def unsubscribe(queue: QueueName, name: Name, url: Url = None) -> None:
    """Remove a subscription. The items stay. Exits with 1 if there was none.

    Example: fdbqueue unsubscribe orders red
    """
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        if not Subscriptions(own).unsubscribe(db, name):
            raise typer.Exit(errors.EMPTY)
    say(f"{name} is not subscribed any more")


def _table(found: list[SubscriptionStats]) -> Table:
    table = Table(header_style="bold")
    for column in ("name", "selector", "state"):
        table.add_column(column, overflow="fold")
    for column in ("credit", "held", "bytes held"):
        table.add_column(column, justify="right")
    for one in found:
        selector = "a function" if one.selector is None else one.selector
        state = "suspended" if one.suspended else "exclusive" if one.exclusive else "browser" if one.browser else ""
        credit = "" if one.credit is None else f"{one.credit:,}"
        table.add_row(Text(one.name), Text(selector), state, credit, f"{one.held:,}", f"{one.held_bytes:,}")
    return table
