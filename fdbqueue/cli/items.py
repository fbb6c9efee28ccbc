"""``fdbqueue peek``, ``browse``, ``get``, ``update``, ``reschedule``, ``cancel``, ``clear``: items in their places."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import typer

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.base.position import Position
from fdbqueue.base.reprs import counted
from fdbqueue.cli.errors import BadValue, end, end_if, noted, refuse, refuse_if, tell
from fdbqueue.cli.input import is_terminal, parse, terms_of, wait_for_input
from fdbqueue.cli.naming import check_level, has_keys, levels_of, session_named, sessions_of, tell_none
from fdbqueue.cli.opening import CodecName, opened_queue
from fdbqueue.cli.options import ChosenState, check_raw, position
from fdbqueue.cli.output import (
    SCREENFUL,
    TAKEN,
    item_columns,
    item_record,
    line,
    print_json,
    print_rows,
    say,
    shown_rows,
    time_text,
    wants_table,
    write_lines,
)
from fdbqueue.engine.api import Database
from fdbqueue.engine.steps import run
from fdbqueue.errors import CodecError, FormatError
from fdbqueue.layers.leases import LeaseHandle
from fdbqueue.layers.leases.browsing import browse as browse_kept
from fdbqueue.layers.priority import PriorityQueue
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.sessions.session.records import SessionName
from fdbqueue.layers.subscriptions.selectors import item_test, row_test
from fdbqueue.reads.browse import Browser
from fdbqueue.reads.queue_rows import ITEM_STATES
from fdbqueue.stored.counters import read_stats
from fdbqueue.stored.items import Item
from fdbqueue.stored.layout import Layout, name_of
from fdbqueue.stored.names import queue_word
from fdbqueue.stored.places import STATES, StoredItem
from fdbqueue.verbs.editing import UNCHANGED
from fdbqueue.verbs.queue import Queue

STORED = (
    "item state value rank? headers? attempt consumer? error? expires_at? visible_at? ttl_at? enqueued_at? died_at?"
)
"""An item in any state, as JSON has it."""


class BrowseRange(TypedDict):
    """Where a browse begins and ends."""

    after: Position | None
    limit: int | None
    reverse: bool


# Which items a command means.


@dataclass(frozen=True, slots=True)
class Selection:
    """The items that a command means: those that it names, those that fit a condition, or all.

    It refuses a command that names no items, or names them in two ways.
    """

    items: list[str] | None
    """Positions as texts."""
    where: str | None = None
    """A condition on headers."""
    everything: bool = False
    error: str | None = ""
    """How the last error begins; "": the command has no word for that."""
    states: tuple[str, ...] = STATES
    limit: int | None = None

    def __post_init__(self) -> None:
        by_error = bool(self.error)
        named = {
            "INDEX:RANDOM": bool(self.items),
            "--where": self.where is not None,
            "--error": by_error,
            "--all": self.everything,
        }
        given = [word for word, is_given in named.items() if is_given]
        if len(given) == 1 or given == ["--where", "--error"]:
            return
        words = " / ".join(word for word in named if word != "--error" or self.error != "")
        refuse_if(given, "only one of these says which items are meant", " / ".join(given))
        last = ", give --error" if self.error is None else ""
        refuse(f"name items, give a condition{last}, or --all", words)

    @property
    def named(self) -> list[Position]:
        """The positions that the command names."""
        return [position(item) for item in self.items or ()]

    @property
    def has_condition(self) -> bool:
        """Whether items are found by a condition."""
        return self.where is not None or bool(self.error)

    def found(self, db: Database, layout: Layout) -> Iterator[list[Position]]:
        """Yield the positions of items that a condition selects in lists, up to `limit` in all, while they are read."""
        test, left = item_test(layout, self.where, self.error), self.limit
        for page in pages(db, layout, Range(None, None), self.states, payloads=False):
            keys = [layout.available.key(page.packed(at)) for at in range(len(page))]
            fitting = [key for key, value in zip(keys, page.values, strict=True) if test(key, value)]
            found = [layout.position_of(key) for key in fitting[:left]]
            if found:
                yield found
            if left is not None:
                left -= len(found)
                if not left:
                    return

    def text(self, queue: str) -> str:
        """Return the selection as the end of a question."""
        return f"of {queue}" if self.where is None else f"of {queue} for which {self.where}"


def confirm_removal(what: str, *, yes: bool, verb: str = "remove") -> None:
    """Ask whether something may be removed, unless the command says so.

    Args:
        what: the things to remove, with their number, as in "3 items of orders".
        yes: whether the command says so.
        verb: what else happens to them.
    """
    if yes:
        return
    if not is_terminal(sys.stdin):
        refuse(f"to {verb} {what} unasked, say --yes", "--yes")
    question = f"{verb.capitalize()} {what}?"
    try:
        while (answer := _answered(question)) not in ("y", "yes"):
            if answer in ("", "n", "no"):
                raise typer.Abort
            tell("Answer y or n.")
    except KeyboardInterrupt:  # a signal, and not an answer
        tell()
        raise


def _answered(question: str) -> str:
    """Ask on the terminal, and return the answer; "" at its end. A signal ends the wait."""
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)
    wait_for_input(sys.stdin)
    return sys.stdin.readline().strip().lower()


# The first items.


def peek(
    queue: str,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    records: bool = False,
    raw: bool = False,
    as_json: bool = False,
) -> None:
    """Print the first item and leave it in its place. Exits with 1 if there is none.

    Example: fdbqueue peek orders
    """
    check_raw(raw, codec)
    with opened_queue(url, queue, codec) as (db, source):
        item: Item | StoredItem | None
        if records:  # records show more of an item than `Queue.peek` returns
            item = next(iter(browse_kept(db, source, state="available", limit=1)), None)
        else:
            item = source.peek(db)
    if item is None:
        end()
    if wants_table(as_json) and not raw:
        write_lines([shown_rows([item], item_columns(codec, TAKEN))])
    else:
        write_lines([line(item, codec, records=records, raw=raw)])


def browse(
    queue: str,
    limit: int | None = None,
    reverse: bool = False,
    after: str | None = None,
    duty_cycle: float = 1.0,
    where: str | None = None,
    state: ChosenState = ChosenState.available,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    records: bool = False,
    raw: bool = False,
    as_json: bool = False,
) -> None:
    """Print items in order and leave them in their places. Exits with 1 if there is none.

    Args:
        limit (-n, min=1): Number of items. Default: all, or 20 on a terminal.
        reverse (-r): From the last item to the first.
        after (INDEX:RANDOM): Only items after this position.
        duty_cycle (min=0.001, max=1): Fraction of the time spent reading. Less disturbs others less.
        state: The state of the items.

    Example: fdbqueue browse orders --reverse --limit 5 --where "color = 'red'"
    """
    check_raw(raw, codec)
    table = wants_table(as_json) and not raw
    start = None if after is None else position(after)
    with opened_queue(url, queue, codec) as (db, source):
        terms: BrowseRange = {"after": start, "limit": limit or (SCREENFUL if table else None), "reverse": reverse}
        found: Browser[Item] | Browser[StoredItem]
        if records or where is not None or state is not ChosenState.available:
            wanted = row_test(source.layout, state.value, where, None) if where else None
            found = browse_kept(db, source, state=state.value, wanted=wanted, duty_cycle=duty_cycle, **terms)
        else:
            found = source.browse(db, duty_cycle=duty_cycle, **terms)
        printed = 0
        shown: list[Item | StoredItem] = []
        for item in found:
            if table:
                shown.append(item)
            else:
                write_lines([line(item, codec, records=records, raw=raw)])
            printed += 1
        if not printed:
            fitting = " that fit" if where is not None or after is not None else ""
            tell_none(db, source, f"{state.value} plain items{fitting}", ITEM_STATES[state].in_sessions)
    if shown:
        write_lines([shown_rows(shown, item_columns(codec, TAKEN))])
    end_if(not printed)


# Items by their positions.


@dataclass(frozen=True, slots=True)
class NamedItems:
    """The items that a command names."""

    queue: Queue | PriorityQueue | Sessions
    session: tuple[SessionName, ...]
    """The session's name, if the items are in one: the first argument of each verb."""

    def verb(self, name: str, db: Database, positions: Sequence[Position]) -> Callable[..., list[Any]]:
        """Return a verb of these items, to be called with its terms."""
        return partial(getattr(self.queue, f"{name}_many"), db, *self.session, positions)


def get(
    queue: str,
    items: list[str],
    session: str | None = None,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    as_json: bool = False,
) -> None:
    """Print items by their positions, whatever their states. Exits with 1 if one has left the queue.

    Example: fdbqueue get orders 7:72616e646f6d
    """
    chosen = [position(item) for item in items]
    table = wants_table(as_json)
    with opened_queue(url, queue, codec) as (db, own):
        found = _source(db, own, session).verb("get", db, chosen)()
        there = [item is not None for item in found]
        hint = hint_of_session(db, own, session, there)
    print_stored([item for item in found if item is not None], codec, table=table)
    tell_missing(chosen, there, hint=hint)


def print_stored(items: Sequence[StoredItem], codec: CodecName, *, table: bool) -> None:
    """Print items in any state, as a table or as lines."""
    columns = item_columns(codec, "item state value headers consumer error")
    print_rows(items, columns, partial(item_record, codec=codec, fields=STORED), table=table)


def cancel(
    queue: str,
    items: list[str] | None = None,
    where: str | None = None,
    everything: bool = False,
    state: list[ChosenState] | None = None,
    limit: int | None = None,
    yes: bool = False,
    session: str | None = None,
    url: str | None = None,
) -> None:
    """Remove items by their positions, a condition, or all, whatever their states. Exits with 1 if one was not there.

    With --where or --all it asks first, with their number. Items in batches of streams stay. A consumer that has one of
    the items learns it when it acks: its lease is lost.

    Args:
        limit (as where_limit):

    Example: fdbqueue cancel orders --where "color = 'red'" --limit 100
    """
    selection = _selected(items, where, everything, state, limit, session)
    chosen = selection.named
    with opened_queue(url, queue) as (db, own):
        if chosen:
            gone = _source(db, own, session).verb("cancel", db, chosen)()
            hint = hint_of_session(db, own, session, gone)
            number = sum(gone)
        else:
            found: Iterable[list[Position]] = selection.found(db, own.layout)
            if not yes and (found := list(found)):  # only those that were asked for
                confirm_removal(f"{counted(sum(map(len, found)), 'item')} {selection.text(queue)}", yes=yes)
            with noted("Some items may be cancelled already; the same command cancels the others."):
                number = sum(sum(own.cancel_many(db, positions)) for positions in found)
    say(f"{counted(number, 'item')} cancelled")
    if chosen:
        tell_missing(chosen, gone, hint=hint)
    end_if(not number)


def _selected(
    items: list[str] | None,
    where: str | None,
    everything: bool,
    state: list[ChosenState] | None,
    limit: int | None,
    session: str | None,
) -> Selection:
    states = tuple(one.value for one in state) if state else STATES
    found = Selection(items, where, everything, states=states, limit=limit)
    refuse_if(
        items and (limit is not None or state), "it goes with --where or --all", "--state" if state else "--limit"
    )
    hint = "--all" if where is None else "--where"
    refuse_if(not items and session is not None, "items of a session are named by their positions", hint)
    return found


def update(
    queue: str,
    items: list[str],
    value: str | None = None,
    headers: str | None = None,
    session: str | None = None,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    raw: bool = False,
) -> None:
    """Give items another value, or other headers. Prints their positions. Exits with 1 if one is not there.

    An item keeps its place, unless the queue's order gives it another rank. If it is leased, its lease ends.

    Args:
        value: The new value. Default: the present one.

    Example: fdbqueue update orders 7:72616e646f6d --value '{"sku": "cup"}'
    """
    check_raw(raw, codec)
    refuse_if(value is None and headers is None, "say what changes", "--value / --headers")
    is_text = raw or codec in (CodecName.str, CodecName.bytes)
    terms = {
        "value": UNCHANGED if value is None else parse(value, codec, raw=is_text),
        "headers": None if headers is None else terms_of(headers, None, None, None).headers or {},
    }
    chosen = [position(item) for item in items]
    with opened_queue(url, queue, codec) as (db, own):
        changed = _source(db, own, session).verb("update", db, chosen)(**terms)
        hint = hint_of_session(db, own, session, [after is not None for after in changed])
    _tell_changed(chosen, changed, "updated", hint)


def reschedule(
    queue: str,
    items: list[str] | None = None,
    where: str | None = None,
    everything: bool = False,
    state: list[ChosenState] | None = None,
    limit: int | None = None,
    yes: bool = False,
    delay: float | None = None,
    at: float | None = None,
    priority: int | None = None,
    session: str | None = None,
    level: int | None = None,
    url: str | None = None,
) -> None:
    """Make items available at another time, or with another priority. Exits with 1 if one is not there.

    Prints their positions, which another priority changes. A leased item is taken away from its consumer. A dead letter
    comes back. With --where or --all it asks first, with their number.

    Args:
        limit (as where_limit):

    Example: fdbqueue reschedule orders --where "color = 'red'" --state delayed --delay 0
    """
    terms_of(None, delay, at, None)
    check_level(session, level)
    refuse_if(session is not None and priority is not None, "items of a session have --level", "--priority")
    terms = {"delay": delay, "at": at, **({"priority": priority} if session is None else {"level": level})}
    refuse_if(all(term is None for term in terms.values()), "say what changes", "--delay / --at / --priority")
    selection = _selected(items, where, everything, state, limit, session)
    chosen = selection.named
    with opened_queue(url, queue) as (db, own):  # the rank of an item without an order by its value needs no codec
        source = _source(db, own, session)
        if chosen:
            changed = source.verb("reschedule", db, chosen)(**terms)
            hint = hint_of_session(db, own, session, [after is not None for after in changed])
        else:
            # Read to the end first: another priority moves an item to where it would be read again.
            found = list(selection.found(db, own.layout))
            if found:
                what = f"{counted(sum(map(len, found)), 'item')} {selection.text(queue)}"
                confirm_removal(what, yes=yes, verb="reschedule")
            moved = 0
            with noted("Some items may be rescheduled already; those that were printed are."):
                for positions in found:
                    moved += _print_changed(positions, source.verb("reschedule", db, positions)(**terms))
    if chosen:
        _tell_changed(chosen, changed, "rescheduled", hint)
    else:
        say(f"{counted(moved, 'item')} rescheduled")
        end_if(not moved)


def _source(db: Database, queue: Queue, session: str | None) -> NamedItems:
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
        print_json({"item": after.text, **({} if after == before else {"was": before.text})})
    return len(done)


def hint_of_session(db: Database, queue: Queue, session: str | None, there: list[bool]) -> str:
    """Return how to name an item of a session, if the queue has sessions and the command has named none."""
    if session is not None or all(there) or not has_keys(db, queue, "session"):
        return ""
    return "The queue has sessions. For an item of a session give its name too: --session NAME."


def tell_missing(chosen: list[Position], there: list[bool], *, hint: str = "") -> None:
    """Name the items that are not there, with a hint, and then exit with 1."""
    missing = [one.text for one, is_there in zip(chosen, there, strict=True) if not is_there]
    for one in missing:
        tell(f"The item {one} is not in the queue.")
    if missing:
        if hint:
            tell(hint)
        end()


def present_state(db: Database, queue: Queue, at: Position) -> str:
    """Return a plain item's state as the end of a sentence, with the consumer of a leased one; "" if it is gone."""
    item = None
    with suppress(CodecError, FormatError):  # this is a hint
        item = queue.get(db, at)
    if item is None or item.state != "leased":
        return "" if item is None else f"is {item.state}"
    command = f"fdbqueue reschedule {queue_word(name_of(queue.layout.prefix))} {at.text} --delay 0"
    whose = f" by {item.consumer}" if item.consumer else ""
    return f"is leased{whose} until {time_text(item.expires_at)}; `{command}` takes it away"


def refuse_positions(url: str | None, name: str, texts: list[str] | None) -> None:
    """Refuse positions of items where handles of leases are needed, and say what state the items are in.

    Raises:
        BadValue: one is a position.
    """
    with opened_queue(url, name) as (db, queue):
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


def clear(queue: str, url: str | None = None, yes: bool = False) -> None:
    """Remove all items and everything else that the queue owns, including its counters. Asks first.

    Example: fdbqueue clear orders
    """
    with opened_queue(url, queue, renamed=True) as (db, cleared):
        items = "items"
        with suppress(FormatError):  # a counter that can't be read: a clear mends that
            held = run(cleared.read(db, partial(read_stats, layout=cleared.layout)))  # also of an old name
            items = counted(held.available + held.leased + held.delayed + held.dead + held.claimed, "item")
        confirm_removal(f"the {items} of {queue} and all that belongs to it", yes=yes)
        cleared.clear(db)
    say(f"{items} removed")
