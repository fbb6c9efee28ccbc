"""``fdbqueue watch``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import told
from fdbqueue.cli.opening import Create, opened_queue
from fdbqueue.cli.options import Codec, CodecName, QueueName, Raw, Records, Url, check_raw, queue_of
from fdbqueue.cli.output import line, write_lines
from fdbqueue.cli.where import Where
from fdbqueue.errors import CodecError, FormatError, OtherCodec
from fdbqueue.layers.subscriptions import Subscriptions

ITEMS_AT_ONCE = 100


def watch(
    queue: QueueName,
    name: Annotated[
        str | None, typer.Option("--name", help="Keep the place under this name, and go on there the next time.")
    ] = None,
    head: Annotated[
        bool, typer.Option("--head", help="Begin with the items that are there now, not with the next arrival.")
    ] = False,
    where: Where = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="End after this number of items.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", min=0.0, help="End after this many seconds without an arrival.")
    ] = None,
    create: Create = False,
    url: Url = None,
    codec: Codec = CodecName.json,
    records: Records = False,
    raw: Raw = False,
) -> None:
    """Print items when they arrive, and leave them in their places, like tail -f. Repeats until Ctrl-C.

    Items that are given back, or become due, arrive again. Items that a consumer takes at once may not be printed. With
    --name no other item is missed, also while the command does not run; `fdbqueue unsubscribe` removes the name.

    Exits with 1 if there was no item.

    Example: fdbqueue watch orders --where "color = 'red'"
    """
    check_raw(raw, codec)
    own = queue_of(queue, codec)
    source = Subscriptions(own)
    printed, handled = 0, True
    with opened_queue(url, own, create=create) as db:
        follower = source.follow(db, name, selector=where, start="head" if head else "tail")
        try:
            while limit is None or printed < limit:
                handled = False  # a signal, or a closed pipe: the items come again
                most = ITEMS_AT_ONCE if limit is None else min(ITEMS_AT_ONCE, limit - printed)
                try:
                    found = follower.next_many(limit=most, timeout=timeout)
                except OtherCodec:
                    raise  # no item of the queue would decode
                except (CodecError, FormatError) as error:
                    typer.echo(f"Error: {told(error)}", err=True)
                    handled = True
                    continue
                if not found:
                    handled = True
                    break
                write_lines([line(item, codec, records=records, raw=raw) for item in found])
                printed += len(found)
                handled = True
        finally:
            follower.close(handled=handled)
    if not printed:
        raise typer.Exit(errors.EMPTY)
