"""``fdbqueue get``, ``fdbqueue cancel``, ``fdbqueue update`` and ``fdbqueue reschedule``: items by their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue, noted
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import (
    AsJson,
    Codec,
    CodecName,
    QueueName,
    Raw,
    Url,
    Yes,
    check_raw,
    place,
    position,
    queue_of,
)
from fdbqueue.cli.ordering import Priority, levels_of
from fdbqueue.cli.output import headers_shown, rank_of, say, wants_table, write_lines, writing
from fdbqueue.cli.sessioning import Level, SessionOption, session_named, sessions_of
from fdbqueue.cli.tables import TableColumn, headers_text, line_of, print_rows, time_text, value_text
from fdbqueue.cli.terms import At, Delay, HeadersText, terms_of
from fdbqueue.cli.values import encode_json, parse, to_json
from fdbqueue.cli.where import ChosenState, Where, check_chosen, chosen_positions, confirm_removal
from fdbqueue.engine.steps import rows, run
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.layers.leases import LeaseHandle
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import queue_word
from fdbqueue.stored.states import STATES, StoredItem
from fdbqueue.verbs.editing import UNCHANGED
from fdbqueue.verbs.queue import Queue

Items = Annotated[
    list[str],
    typer.Argument(metavar="INDEX:RANDOM", help="Positions of items, as other commands print them."),
]
_TIMES = ("expires_at", "visible_at", "ttl_at", "enqueued_at", "died_at")


MaybeItems = Annotated[
    list[str] | None,
    typer.Argument(metavar="INDEX:RANDOM", help="Positions of items, as other commands print them."),
]
WhereLimit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="Largest number of items, with --where or --all. Default: all."),
]
InStates = Annotated[
    list[ChosenState] | None,
    typer.Option(
        "--state", help="Only items in this state, with --where or --all. May be repeated. Default: all states."
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="All plain items, or those in a --state.")]


@dataclass(frozen=True, slots=True)
class NamedItems:
    """The items that a command names."""

    queue: Any
    """The queue, or its sessions."""
    session: tuple[Any, ...]
    """The session's name, if the items are in one: the first argument of each verb."""

    def verb(self, name: str, db: Any, positions: Sequence[Position]) -> Callable[..., list[Any]]:
        """Return a verb of these items, to be called with its terms."""
        return partial(getattr(self.queue, f"{name}_many"), db, *self.session, positions)


def get(
    queue: QueueName,
    items: Items,
    session: SessionOption = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    as_json: AsJson = False,
) -> None:
    """Print items by their positions, whatever their states. Exits with 1 if one has left the queue.

    Example: fdbqueue get orders 7:72616e646f6d
    """
    chosen = [position(item) for item in items]
    table = wants_table(as_json)
    own = queue_of(queue, codec)
    with opened_queue(url, own) as db:
        found = _source(db, own, session).verb("get", db, chosen)()
        there = [item is not None for item in found]
        hint = hint_of_session(db, own, session, there)
    print_stored([item for item in found if item is not None], codec, table=table)
    tell_missing(chosen, there, hint=hint)


def print_stored(items: Sequence[StoredItem], codec: CodecName, *, table: bool) -> None:
    """Print items in any state, as a table or as lines."""
    print_rows(items, _columns(codec), partial(_line, codec=codec), table=table)


def cancel(
    queue: QueueName,
    items: MaybeItems = None,
    where: Where = None,
    everything: Everything = False,
    state: InStates = None,
    limit: WhereLimit = None,
    yes: Yes = False,
    session: SessionOption = None,
    url: Url = None,
) -> None:
    """Remove items by their positions, a condition, or all, whatever their states. Exits with 1 if one was not there.

    With --where or --all it asks first, with their number. Items in batches of streams stay. A consumer that has one of
    the items learns it when it acks: its lease is lost.

    Example: fdbqueue cancel orders --where "color = 'red'" --limit 100
    """
    _check_choice(where, items, everything, state, limit, session)
    if where is not None or everything:
        _cancel_found(queue, where, _states(state), limit, yes, url)
        return
    chosen = [position(item) for item in items or ()]
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        gone = _source(db, own, session).verb("cancel", db, chosen)()
        hint = hint_of_session(db, own, session, gone)
    say(f"{counted(sum(gone), 'item')} cancelled")
    tell_missing(chosen, gone, hint=hint)


def _check_choice(
    where: str | None,
    items: list[str] | None,
    everything: bool,
    state: list[ChosenState] | None,
    limit: int | None,
    session: str | None,
) -> None:
    """Refuse a command that names no items, or names them in two ways."""
    check_chosen(where, items, everything)
    if items and (limit is not None or state):
        raise typer.BadParameter("it goes with --where or --all", param_hint="--state" if state else "--limit")
    if not items and session is not None:
        hint = "--all" if where is None else "--where"
        raise typer.BadParameter("items of a session are named by their positions", param_hint=hint)


def _chosen_text(queue: str, where: str | None) -> str:
    return f"of {queue}" if where is None else f"of {queue} for which {where}"


def _states(chosen: list[ChosenState] | None) -> tuple[str, ...]:
    return tuple(one.value for one in chosen) if chosen else STATES


def _cancel_found(
    queue: str, where: str | None, states: tuple[str, ...], limit: int | None, yes: bool, url: str | None
) -> None:
    own = queue_of(queue)
    with opened_queue(url, own) as db:
        found: Iterable[list[Position]] = chosen_positions(db, where, own.layout, states, limit)
        if not yes:
            found = list(found)  # only those that were asked for
            if found:
                confirm_removal(f"{counted(sum(map(len, found)), 'item')} {_chosen_text(queue, where)}", yes=yes)
        with noted("Some items may be cancelled already; the same command cancels the others."):
            gone = sum(sum(own.cancel_many(db, positions)) for positions in found)
    say(f"{counted(gone, 'item')} cancelled")
    if not gone:
        raise typer.Exit(errors.EMPTY)


def update(
    queue: QueueName,
    items: Items,
    value: Annotated[str | None, typer.Option("--value", help="The new value. Default: the present one.")] = None,
    headers: HeadersText = None,
    session: SessionOption = None,
    url: Url = None,
    codec: Codec = CodecName.json,
    raw: Raw = False,
) -> None:
    """Give items another value, or other headers. Prints their positions. Exits with 1 if one is not there.

    An item keeps its place, unless the queue's order gives it another rank. If it is leased, its lease ends.

    Example: fdbqueue update orders 7:72616e646f6d --value '{"sku": "cup"}'
    """
    check_raw(raw, codec)
    if value is None and headers is None:
        raise typer.BadParameter("say what changes", param_hint="--value / --headers")
    is_text = raw or codec in (CodecName.str, CodecName.bytes)
    terms = {
        "value": UNCHANGED if value is None else parse(value, codec, raw=is_text),
        "headers": None if headers is None else terms_of(headers, None, None, None).headers or {},
    }
    chosen = [position(item) for item in items]
    own = queue_of(queue, codec)
    with opened_queue(url, own) as db:
        changed = _source(db, own, session).verb("update", db, chosen)(**terms)
        hint = hint_of_session(db, own, session, [after is not None for after in changed])
    _tell_changed(chosen, changed, "updated", hint)


def reschedule(
    queue: QueueName,
    items: MaybeItems = None,
    where: Where = None,
    everything: Everything = False,
    state: InStates = None,
    limit: WhereLimit = None,
    yes: Yes = False,
    delay: Delay = None,
    at: At = None,
    priority: Priority = None,
    session: SessionOption = None,
    level: Level = None,
    url: Url = None,
) -> None:
    """Make items available at another time, or with another priority. Exits with 1 if one is not there.

    Prints their positions, which another priority changes. A leased item is taken away from its consumer. A dead letter
    comes back. With --where or --all it asks first, with their number.

    Example: fdbqueue reschedule orders --where "color = 'red'" --state delayed --delay 0
    """
    terms_of(None, delay, at, None)
    if session is None and level is not None:
        raise typer.BadParameter("a level is one of a session: give --session too", param_hint="--level")
    if session is not None and priority is not None:
        raise typer.BadParameter("items of a session have --level", param_hint="--priority")
    terms: dict[str, Any] = {"delay": delay, "at": at}
    terms |= {"priority": priority} if session is None else {"level": level}
    if all(term is None for term in terms.values()):
        raise typer.BadParameter("say what changes", param_hint="--delay / --at / --priority")
    _check_choice(where, items, everything, state, limit, session)
    chosen = [position(item) for item in items or ()]
    own = queue_of(queue)  # the rank of an item without an order by its value needs no codec
    with opened_queue(url, own) as db:
        source = _source(db, own, session)
        if not items:
            # Read to the end first: another priority moves an item to where it would be read again.
            found = list(chosen_positions(db, where, own.layout, _states(state), limit))
            _reschedule_found(db, source, found, _chosen_text(queue, where), terms, yes=yes)
            return
        changed = source.verb("reschedule", db, chosen)(**terms)
        hint = hint_of_session(db, own, session, [after is not None for after in changed])
    _tell_changed(chosen, changed, "rescheduled", hint)


def _reschedule_found(
    db: Any, source: NamedItems, found: list[list[Position]], which: str, terms: dict[str, Any], *, yes: bool
) -> None:
    if found:
        confirm_removal(f"{counted(sum(map(len, found)), 'item')} {which}", yes=yes, verb="reschedule")
    moved = 0
    with noted("Some items may be rescheduled already; those that were printed are."):
        for positions in found:
            changed = source.verb("reschedule", db, positions)(**terms)
            moved += _print_changed(positions, changed)
    say(f"{counted(moved, 'item')} rescheduled")
    if not moved:
        raise typer.Exit(errors.EMPTY)


def _source(db: Any, queue: Queue, session: str | None) -> NamedItems:
    if session is not None:
        return NamedItems(sessions_of(queue), (session_named(session, "--session"),))
    levels = levels_of(db, queue, None, None)
    return NamedItems(queue if levels is None else PriorityQueue(queue, levels=levels), ())


def _tell_changed(chosen: list[Position], changed: list[Position | None], told: str, hint: str) -> None:
    say(f"{counted(_print_changed(chosen, changed), 'item')} {told}")
    tell_missing(chosen, [after is not None for after in changed], hint=hint)


def _print_changed(chosen: list[Position], changed: list[Position | None]) -> int:
    """Print the positions of items that were changed, and return how many."""
    done = [(before, after) for before, after in zip(chosen, changed, strict=True) if after is not None]
    for before, after in done:
        was = {} if after == before else {"was": place(before)}
        write_lines([encode_json({"item": place(after), **was}).encode() + b"\n"])
    return len(done)


def hint_of_session(db: Any, queue: Queue[Any], session: str | None, there: list[bool]) -> str:
    """Return how to name an item of a session, if the queue has sessions and the command has named none."""
    if session is not None or all(there):
        return ""
    span = queue.layout.space["session"].range()
    if not run(queue.read(db, lambda tr: rows(tr.snapshot, span.start, span.stop, limit=1))):
        return ""
    return "The queue has sessions. For an item of a session give its name too: --session NAME."


def tell_missing(chosen: list[Position], there: list[bool], *, hint: str = "") -> None:
    """Name the items that are not there, with a hint, and then exit with 1."""
    missing = [place(one) for one, is_there in zip(chosen, there, strict=True) if not is_there]
    for one in missing:
        typer.echo(f"The item {one} is not in the queue.", err=True)
    if missing:
        if hint:
            typer.echo(hint, err=True)
        raise typer.Exit(errors.EMPTY)


def present_state(db: Any, queue: Queue, at: Position) -> str:
    """Return a plain item's state as the end of a sentence, with the consumer of a leased one; "" if it is gone."""
    item = None
    with suppress(CodecError, FormatError):  # this is a hint
        item = queue.get(db, at)
    if item is None or item.state != "leased":
        return "" if item is None else f"is {item.state}"
    command = f"fdbqueue reschedule {queue_word(name_of(queue.layout.prefix))} {place(at)} --delay 0"
    whose = f" by {item.consumer}" if item.consumer else ""
    return f"is leased{whose} until {time_text(item.expires_at)}; `{command}` takes it away"


def refuse_positions(db: Any, queue: Queue, texts: list[str] | None) -> None:
    """Refuse positions of items where handles of leases are needed, and say what state the items are in.

    Raises:
        BadValue: one is a position.
    """
    for text in texts or ():
        try:
            at = Position.parse(text)
        except ValueError:
            continue
        with suppress(ValueError):
            LeaseHandle.parse(text)  # a handle may look like a position with a rank
            continue
        state = present_state(db, queue, at) or "is not in the queue"
        told = f"{text!r} is an item's position and no lease's handle, as `fdbqueue lease` prints it."
        raise BadValue(f"{told} The item {state}.")


def _line(item: StoredItem, codec: CodecName) -> bytes:
    with writing(item.position):
        shown = {
            "item": place(item.position),
            "state": item.state,
            "value": to_json(item.value, codec),
            **rank_of(item.position),
            **headers_shown(item.headers),
            "attempt": item.attempt,
            **{name: text for name in ("consumer", "error") if (text := getattr(item, name))},
            **{name: time for name in _TIMES if (time := getattr(item, name)) is not None},
        }
        return line_of(shown)


def _columns(codec: CodecName) -> tuple[TableColumn[StoredItem], ...]:
    return (
        TableColumn("item", lambda one: place(one.position), whole=True),
        TableColumn("state", lambda one: one.state),
        TableColumn("value", lambda one: value_text(one, codec)),
        TableColumn("headers", lambda one: headers_text(one)),
        TableColumn("consumer", lambda one: one.consumer),
        TableColumn("error", lambda one: one.error),
    )
