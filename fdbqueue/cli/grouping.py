"""Groups, as commands name them and add items to them."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.cli.options import text_of
from fdbqueue.cli.sessioning import sessions_of
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.steps import value_of
from fdbqueue.layers.groups import Group, Groups
from fdbqueue.layers.leases import Leases
from fdbqueue.moves.groups import group_keys, group_record
from fdbqueue.verbs.queue import Queue

HOLD_SECONDS = 3_600.0
"""How long a group that `enqueue` has opened stays open after the last enqueue, unless `fdbqueue groups` closes it."""
TOKEN = b"fdbqueue"
"""The token of that hold. All commands share it, so that any of them can end it."""

GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="The group of the items. It is opened if there is none of this name.",
        callback=text_of("group"),
    ),
]


def groups_of(queue: Queue, *, of_sessions: bool) -> Groups:
    """Return the groups of a queue's plain items, or those of the items in its sessions."""
    return Groups(sessions_of(queue) if of_sessions else Leases(queue))


async def held_open(groups: Groups, name: str, tr: Transaction) -> None:
    """Open a group if there is none. Hold it open for some time, unless its hold was ended."""
    layout = groups.leases.layout
    if await group_record(tr, layout, name) is None:
        await groups.open.steps(tr, name, hold=HOLD_SECONDS, token=TOKEN)
    elif (await value_of(tr.get(group_keys(layout, name).holds.pack((TOKEN,))))).present():
        await with_hold(groups, name).hold.steps(tr, duration=HOLD_SECONDS)


def with_hold(groups: Groups, name: str) -> Group:
    """Return a group with the hold of the commands."""
    return Group(groups, name, token=TOKEN)
