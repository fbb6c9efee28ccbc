"""``fdbqueue copy``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import noted
from fdbqueue.cli.export import tell
from fdbqueue.cli.opening import opened, opened_queue
from fdbqueue.cli.options import QueueName, queue_of
from fdbqueue.transfer import copy_queue, release_copy


def copy(
    queue: QueueName,
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="The database that the queue is in: file:PATH or fdb:.")
    ],
    target: Annotated[
        str | None, typer.Argument(metavar="TO", help="The database that it moves to.", show_default=False)
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="End an unfinished copy. Leave TO out if that database is lost.")
    ] = False,
) -> None:
    """Move a queue to another database while both are in use. Exits with 1 if items are left.

    Every item moves once, with its position, attempts and times. Leased items stay until they are acked or given back.
    Let producers and consumers use the new database, and repeat the command until none is left. An interrupted command
    goes on when it is repeated. It prints a digest of all items that have moved, and one of the items at the target.
    They are equal until a producer or a consumer uses the target.

    With --release it ends a copy that will not be finished. The queue can be copied to another database then. Items
    of the last batch go back to their places, unless TO has them; those that have moved stay there.

    Example: fdbqueue copy orders file:shop fdb:
    """
    moved = queue_of(queue)
    if release:
        with opened_queue(source, moved) as one, _opened(target) as other:
            tell(released=release_copy(one, moved, target=other))
        return
    if target is None:
        raise typer.BadParameter("give the database that the queue moves to", param_hint="TO")
    again = noted("Run the same command again: it goes on.")
    with opened_queue(source, moved) as one, opened(target, create=True) as other, again:
        report = copy_queue(one, other, moved)
    tell(
        items=report.items,
        moved=report.moved,
        left=report.left,
        digest=report.digest,
        target_digest=report.target_digest,
    )
    if report.left:
        raise typer.Exit(errors.EMPTY)


def _opened(target: str | None) -> AbstractContextManager[Any]:
    return nullcontext() if target is None else opened(target)
