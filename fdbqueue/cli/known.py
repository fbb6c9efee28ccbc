"""Queues by their names: completion in the shell, and the codec that a queue is registered with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import typer

from fdbqueue.cli.opening import opened
from fdbqueue.cli.remedies import in_shell
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import beginning, within
from fdbqueue.engine.steps import rows, run, value_of
from fdbqueue.engine.transactional import attempts
from fdbqueue.errors import FormatError, StorageError, UrlError
from fdbqueue.observe.troubles import troubles_of
from fdbqueue.stored.catalogue import read_about
from fdbqueue.stored.layout import CATALOGUE, Layout
from fdbqueue.stored.names import FORMS, queue_text
from fdbqueue.verbs.queue import Queue

COMPLETION_SECONDS = 2.0
"""How long the shell waits for names."""
MOST_NAMES = 10_000
"""How many names it looks at."""


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the registered names that begin with the typed text; none if the database can't be read."""
    url = ctx.params.get("url") or os.environ.get("FDBQUEUE_URL")
    if url is None:
        return []
    with suppress(Exception), opened(url, patience=COMPLETION_SECONDS) as db:
        names = run(attempts(db, partial(_names, begins=incomplete)))
        return [name for name in names if name.startswith(incomplete)]
    return []


async def _names(tr: Transaction, begins: str) -> list[str]:
    """Return registered names. Of those that are plain text, only names that begin so: their keys do, too."""
    span = beginning(begins, CATALOGUE) if begins and begins[0] not in FORMS else within(CATALOGUE)
    found = await rows(tr.snapshot, *span, limit=MOST_NAMES)
    return [queue_text(row.key[len(CATALOGUE) :]) for row in found]


def registered_codec(layout: Layout, url: str | None) -> str:
    """Return the name of the codec that a queue is registered with; "" if it is not, or if there is no database."""
    try:
        with opened(url) as db:
            return run(attempts(db, partial(_codec, layout=layout)))
    except (StorageError, UrlError):
        return ""  # the command opens it, too: it makes the folder, or reports the error


async def _codec(tr: Transaction, layout: Layout) -> str:
    value = await value_of(tr.snapshot.get(layout.catalogue_key))
    with suppress(FormatError):
        return read_about(layout, bytes(value))[1].codec if value.present() else ""
    return ""


def tell_if_paused(db: Any, queue: Queue) -> None:
    """Say on standard error that a queue is paused, where a command found no more items to take."""
    if (pause := queue.paused(db)) is not None:
        typer.echo(
            in_shell(f"The queue {queue.layout.describe()} is paused {pause.text}. Queue.resume ends that."), err=True
        )


@contextmanager
def beside_troubles(db: Any, queue: Queue) -> Iterator[None]:
    """Say on standard error what the troubles of a queue are, if its page or its numbers can't be read."""
    try:
        yield
    except FormatError as error:
        for one in run(attempts(db, partial(troubles_of, layout=queue.layout))):
            if str(error) not in one.text:
                typer.echo(f"{in_shell(one.text)}{one.told_since} Next: `{one.command}`.", err=True)
        raise


def tell_troubles(db: Any, queue: Queue, *kinds: str) -> None:
    """Say on standard error what the troubles of these kinds are, where a command found no more items to take."""
    for one in run(attempts(db, partial(troubles_of, layout=queue.layout))):
        if one.kind in kinds:
            typer.echo(f"{one.text}{one.told_since} Next: `{one.command}`.", err=True)
