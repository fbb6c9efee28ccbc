"""``fdbqueue groups``, ``schedules``, ``streams`` and ``subscriptions``: what layers keep of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from fdbqueue.cli import errors
from fdbqueue.cli.errors import end_if, noted, refuse, refuse_if, tell
from fdbqueue.cli.input import JsonRecord
from fdbqueue.cli.naming import refuse_among_sessions, sessions_of
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import only_one
from fdbqueue.cli.output import SCREENFUL, TableColumn, number_text, print_rows, say, time_text, wants_table
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import value_of
from fdbqueue.errors import CompletionError
from fdbqueue.layers.groups import Group, Groups, GroupStats
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.schedules import Schedule, Schedules
from fdbqueue.layers.subscriptions import Subscriptions, SubscriptionStats
from fdbqueue.moves.ends import group_keys
from fdbqueue.stored.names import session_text

if TYPE_CHECKING:
    from fdbqueue.layers.streams import StreamState


T = TypeVar("T")

HOLD_SECONDS = 3_600.0
"""How long a group that `enqueue` has opened stays open after the last enqueue, unless `fdbqueue groups` closes it."""
TOKEN = b"fdbqueue"
"""The token of that hold. All commands share it, so that any of them can end it."""


async def held_open(groups: Groups, name: str, tr: Transaction) -> None:
    """Open a group if there is none. Hold it open for some time, unless its hold was ended."""
    layout = groups.leases.layout
    if await group_keys(layout, name).read(tr) is None:
        await groups.open.steps(tr, name, hold=HOLD_SECONDS, token=TOKEN)
    elif (await value_of(tr.get(group_keys(layout, name).holds.pack((TOKEN,))))).present():
        await with_hold(groups, name).hold.steps(tr, duration=HOLD_SECONDS)


def with_hold(groups: Groups, name: str) -> Group:
    """Return a group with the hold of the commands."""
    return Group(groups, name, token=TOKEN)


LOOK_SECONDS = 10.0
"""The longest wait in one call. It is shorter than the time that a transaction may take, which also ends watches."""


def until_ended(wait: Callable[..., T], deadline: float) -> T:
    """Return what `wait` returns. It is called with a timeout, again and again.

    Args:
        deadline: the end of the wait by `time.monotonic`; infinity: no limit.

    Raises:
        TimeoutError: the time is over.
    """
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return wait(timeout=min(left, LOOK_SECONDS))
        except TimeoutError:
            if left <= LOOK_SECONDS:
                raise


def list_rows(
    what: str, found: Iterable[T], columns: Sequence[TableColumn[T]], record: Callable[[T], JsonRecord], *, table: bool
) -> None:
    """Print rows, as `print_rows`. If there are none, say so on standard error, and end with 1 as all commands do."""
    if not print_rows(found, columns, record, table=table):
        tell(f"The queue has no {what}.")
        end_if(True)


_Found: TypeAlias = tuple[str, GroupStats]
STATES = [field.name for field in fields(GroupStats) if field.name not in ("state", "ended")]


def groups(
    queue: str,
    name: str | None = None,
    close: bool = False,
    cancel: bool = False,
    wait: float | None = None,
    sessions: bool = False,
    limit: int | None = None,
    after: str | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """List the groups of a queue with the numbers of their items. Exits with 1 if there is none.

    With a GROUP it prints that one, after it has closed or cancelled it, or waited for its end, as the options say. A
    wait exits with 8 if the group was cancelled, and with 9 if the time is over.

    `fdbqueue enqueue --group` opens a group. It can't end before it is closed, or for an hour after the last enqueue.

    Args:
        name (argument, GROUP, reads=group): The group. Default: all groups.
        close: No command adds items any more: the group may end with its last item.
        cancel: Take and add no more of its items, and remove those that wait.
        sessions (-S): Groups of items in sessions.
        limit (as listed):
        after (reads=group): Only groups behind this name.

    Example: fdbqueue groups orders invoices --close --wait 60
    """
    refuse_if(
        name is None and (close or cancel or wait is not None), "name a group to close, cancel or wait for", "GROUP"
    )
    refuse_if(close and cancel, "a group is closed or cancelled", "--close / --cancel")
    table = wants_table(as_json)
    code = 0
    with opened_queue(url, queue) as (db, own):
        source = Groups(sessions_of(own) if sessions else Leases(own))
        if name is None:
            found = list(_listed(source, db, after, limit or (SCREENFUL if table else None)))
        else:
            found, code = _one(source, db, name, close=close, cancel=cancel, wait=wait)
    end_if(code and not found, code)
    what = f"groups of {'items in sessions' if sessions else 'plain items'}{' that fit' if after else ''}"
    list_rows(what, found, GROUPS, lambda one: {"queue": queue, "group": one[0], **asdict(one[1])}, table=table)
    end_if(code, code)


def _one(
    source: Groups, db: Database, name: str, *, close: bool, cancel: bool, wait: float | None
) -> tuple[list[_Found], int]:
    """Act on one group. Return what it is then, and the exit code."""
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
        tell(f"Error: {error}")
        code = errors.EMPTY if error.outcome == "gone" else errors.REMOVED
    except TimeoutError:
        tell(f"Error: The group {name!r} has not ended in {wait:g} s.")
        code = errors.TIMED_OUT
    if code != errors.EMPTY:
        try:
            return [(name, group.stats(db))], code
        except CompletionError as error:
            tell(f"Error: {error}")
    return [], errors.EMPTY


def _listed(source: Groups, db: Database, after: str | None, most: int | None) -> Iterator[_Found]:
    for group in source.list(db, after=after, limit=most):
        with suppress(CompletionError):  # it was removed meanwhile
            yield group.name, group.stats(db)


def _count(state: str) -> TableColumn[_Found]:
    return TableColumn(state, lambda one: number_text(getattr(one[1], state)), number=True)


GROUPS: tuple[TableColumn[_Found], ...] = (
    TableColumn("group", lambda one: session_text(one[0])),
    TableColumn("state", lambda one: f"{one[1].state}, ended" if one[1].ended else one[1].state),
    *map(_count, STATES),
)


SCHEDULES: tuple[TableColumn[Schedule], ...] = (
    TableColumn("schedule", lambda one: session_text(one.name)),
    TableColumn("task", lambda one: one.task),
    TableColumn("rule", lambda one: f"{one.rule}{', changed' * one.changed}"),
    TableColumn("status", lambda one: one.status),
    TableColumn("next", lambda one: time_text(one.next_at)),
    TableColumn("last", lambda one: time_text(one.last_at)),
)


def schedules(
    queue: str,
    pause: str | None = None,
    resume: str | None = None,
    change: str | None = None,
    cron: str = "",
    every: float | None = None,
    tz: str | None = None,
    reset: str | None = None,
    remove: str | None = None,
    url: str | None = None,
    as_json: bool = False,
) -> None:
    """List the schedules of a queue of tasks. Exits with 1 if there is none.

    A schedule is on time, paused, or stopped: its tick is over, and no worker has enqueued it. Then no worker runs, or
    its code has left. With one of the options that take a name it changes that schedule first.

    Args:
        pause (NAME, reads=schedule): Enqueue no ticks of it.
        resume (NAME, reads=schedule): End its pause.
        change (NAME, reads=schedule): Give it other times, by --cron or --every.
        cron (EXPRESSION): A cron expression.
        every (SECONDS): Seconds between ticks.
        tz: The time zone of the expression.
        reset (NAME, reads=schedule): Take the times of the code again.
        remove (NAME, reads=schedule): Forget it. Its code makes it again.

    Example: fdbqueue schedules mail --change digest --cron '0 8 * * *'
    """
    given = only_one(pause=pause, resume=resume, reset=reset, remove=remove, change=change)
    times = cron or every is not None or tz is not None
    refuse_if(change is None and times, "they go with --change NAME", "--cron / --every / --tz")
    with opened_queue(url, queue) as (db, own):
        source = Schedules(own, time.time)
        if given is not None:
            verb, name = given
            try:
                if verb == "change":
                    source.change(db, name, cron, every=every, tz=tz)
                else:
                    getattr(source, verb)(db, name)
            except LookupError as error:
                refuse(str(error.args[0]), f"--{verb}")
        found = source.list(db)
    record = partial(_schedule, queue=queue)
    list_rows("schedules", found, SCHEDULES, record, table=wants_table(as_json))


def _schedule(one: Schedule, queue: str) -> JsonRecord:
    return {
        "queue": queue,
        "schedule": one.name,
        "task": one.task,
        "rule": one.rule,
        "status": one.status,
        "changed": one.changed,
        "next": one.next_at,
        "last": one.last_at,
    }


STREAMS: tuple[TableColumn[StreamState], ...] = (
    TableColumn("stream", lambda one: one.name),
    TableColumn("open batch", lambda one: "" if one.batch is None else str(one.batch)),
    TableColumn("items", lambda one: f"{one.items:,}"),
    TableColumn("acked batch", lambda one: str(one.acked)),
    TableColumn("acked items", lambda one: f"{one.acked_items:,}"),
    TableColumn("reader seen", lambda one: time_text(one.seen_at)),
)


def streams(queue: str, url: str | None = None, as_json: bool = False) -> None:
    """List the streams out of a queue, as Spark reads them, and their open batches. Exits with 1 if there is none.

    The items of an open batch are claimed: no consumer gets them before the batch is acked or given back.

    Example: fdbqueue streams orders
    """
    from fdbqueue.spark.operators import streams as all_streams

    table = wants_table(as_json)
    with opened_queue(url, queue) as (db, own):
        found = list(all_streams(db, own.layout.space))
    list_rows("streams", found, STREAMS, lambda one: {"queue": queue, **asdict(one)}, table=table)


def subscribe(
    queue: str,
    name: str,
    selector: str | None = None,
    credit: int | None = None,
    credit_bytes: int | None = None,
    plain: bool = False,
    create: bool = False,
    url: str | None = None,
) -> None:
    """Register a subscription. `fdbqueue lease --subscription NAME` then leases the items that it selects, in order.

    An existing subscription gets this selector and credit. If the selector changes, it starts at the head again.
    It selects no items of sessions, so a queue that has some is refused unless you give --plain.

    Args:
        name (as subscription_name):
        selector (-s): Condition: "color = 'red' AND weight > 2". Default: all items.
        credit (min=0): Number of items that its consumers may have at once. Default: no limit.
        credit_bytes (min=0): Number of bytes that they may have at once.

    Example: fdbqueue subscribe orders red --selector "color = 'red'" --credit 10
    """
    with opened_queue(url, queue, create=create) as (db, own):
        if not plain:
            refuse_among_sessions(db, own, "Run a Consumer of its Sessions")
        subscription = Subscriptions(own).subscribe(db, name, selector=selector)
        subscription.grant(db, items=credit, size_bytes=credit_bytes)
    say(f"{session_text(name)} is subscribed")


def subscriptions(queue: str, url: str | None = None, as_json: bool = False) -> None:
    """Print a queue's subscriptions, their selectors, and their leased items. Exits with 1 if there are none.

    Example: fdbqueue subscriptions orders
    """
    with opened_queue(url, queue) as (db, own):
        found = Subscriptions(own).stats(db)
    list_rows("subscriptions", found, SUBSCRIPTIONS, asdict, table=wants_table(as_json))


def unsubscribe(queue: str, name: str, url: str | None = None) -> None:
    """Remove a subscription. The items stay. Exits with 1 if there was none.

    Args:
        name (as subscription_name):

    Example: fdbqueue unsubscribe orders red
    """
    with opened_queue(url, queue) as (db, own):
        end_if(not Subscriptions(own).unsubscribe(db, name))
    say(f"{session_text(name)} is not subscribed any more")


def _state(one: SubscriptionStats) -> str:
    return "suspended" if one.suspended else "exclusive" if one.exclusive else "browser" if one.browser else ""


SUBSCRIPTIONS: tuple[TableColumn[SubscriptionStats], ...] = (
    TableColumn("name", lambda one: session_text(one.name)),
    TableColumn("selector", lambda one: "a function" if one.selector is None else one.selector),
    TableColumn("state", _state),
    TableColumn("credit", lambda one: "" if one.credit is None else f"{one.credit:,}", number=True),
    TableColumn("held", lambda one: f"{one.held:,}", number=True),
    TableColumn("bytes held", lambda one: f"{one.held_bytes:,}", number=True),
)
