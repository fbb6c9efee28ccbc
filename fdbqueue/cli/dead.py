"""``fdbqueue dead``, ``redrive``, ``purge`` and ``bury``: dead letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fdbqueue.arrow.stored import Range, pages
from fdbqueue.base.deprecation import ALL
from fdbqueue.base.reprs import counted
from fdbqueue.cli.errors import end, end_if, noted, tell
from fdbqueue.cli.items import Selection, confirm_removal, present_state
from fdbqueue.cli.naming import tell_none
from fdbqueue.cli.opening import CodecName, opened_queue
from fdbqueue.cli.options import position
from fdbqueue.cli.output import SCREENFUL, TableColumn, item_columns, item_record, print_rows, say, wants_table
from fdbqueue.engine.api import Database
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.leases.browsing import browse
from fdbqueue.layers.subscriptions.selectors import item_test, row_test
from fdbqueue.reads.inspecting import DeadReason, reasons_of
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.layout import Layout

LETTER = "item value error attempt consumer died_at rank? headers?"
"""A dead letter as JSON has it. Its life has no end any more, as after a redrive."""
BY_ERROR: tuple[TableColumn[DeadReason], ...] = (
    TableColumn("items", lambda one: f"{one.items:,}", number=True),
    TableColumn("error", lambda one: one.error),
)


def dead(
    queue: str,
    limit: int | None = None,
    where: str | None = None,
    error: str | None = None,
    by_error: bool = False,
    url: str | None = None,
    codec: CodecName = CodecName.json,
    as_json: bool = False,
) -> None:
    """Print dead letters with their last errors, and leave them in their places. Exits with 1 if there is none.

    `fdbqueue redrive` and `fdbqueue purge` take the "item" of a dead letter. One that can't be read has the value null.

    With --by-error it prints one line for each error instead, the most frequent one first.

    Args:
        limit (-n, min=1): Number of dead letters. Default: all, or 20 on a terminal.
        error (as error_begins):
        by_error: Print each first line of an error with the number of its dead letters.

    Example: fdbqueue dead orders --limit 5
    """
    table = wants_table(as_json)
    with opened_queue(url, queue, codec) as (db, source):
        if by_error:
            printed = _print_errors(db, source.layout, item_test(source.layout, where, error), limit, table=table)
        else:
            wanted = row_test(source.layout, "dead", where, error) if where or error else None
            most = limit or (SCREENFUL if table else None)
            letters = browse(db, source, state="dead", limit=most, on_bad="null", wanted=wanted)
            columns = item_columns(codec, "item value error attempt died")
            printed = print_rows(letters, columns, partial(item_record, codec=codec, fields=LETTER), table=table)
        if not printed:
            fitting = " that fit" if where is not None or error is not None else ""
            tell_none(db, source, f"dead letters{fitting}", "dead")
    end_if(not printed)


def _print_errors(
    db: Database, layout: Layout, wanted: Callable[[bytes, bytes], bool], limit: int | None, *, table: bool
) -> int:
    """Print the first lines of errors with their numbers, and return how many.

    It reads all dead letters, without payloads in chunks.
    """
    found = (
        (salvaged_notes(value)[0].error.partition("\n")[0], 0)
        for page in pages(db, layout, Range(None, None), ("dead",), payloads=False)
        for at, value in enumerate(page.values)
        if wanted(layout.available.key(page.packed(at)), value)
    )
    listed = reasons_of(found)[:limit]
    return print_rows(listed, BY_ERROR, lambda one: {"error": one.error, "items": one.items}, table=table)


def redrive(
    queue: str,
    items: list[str] | None = None,
    limit: int | None = None,
    tail: bool = False,
    where: str | None = None,
    error: str | None = None,
    everything: bool = False,
    url: str | None = None,
) -> None:
    """Make dead letters available again, with their attempts reset to 0. Exits with 1 if there was none.

    Args:
        items (as dead_items):
        limit (as dead_limit):
        tail: Put them behind the last item instead of in their old places.
        error (as error_begins):
        everything (as all_dead):

    Example: fdbqueue redrive orders --where "color = 'red'" --limit 100
    """
    selection = Selection(items, where, everything, error, ("dead",), limit)
    chosen = selection.named
    note = "Some dead letters may be redriven already; `fdbqueue dead` prints those that are left."
    with opened_queue(url, queue) as (db, own), noted(note):
        redriven = partial(Leases(own).dead.redrive, db, to="tail" if tail else "place")
        if selection.has_condition:
            moved = sum(redriven(found) for found in selection.found(db, own.layout))
        else:
            moved = redriven(chosen or ALL, limit=limit)
        if not moved:
            tell_none(db, own, f"{'' if everything else 'such '}dead letters to redrive", "dead")
            end()
    say(f"{counted(moved, 'dead letter')} redriven")


def purge(
    queue: str,
    items: list[str] | None = None,
    limit: int | None = None,
    older_than: float = 0.0,
    where: str | None = None,
    error: str | None = None,
    everything: bool = False,
    url: str | None = None,
    yes: bool = False,
) -> None:
    """Remove dead letters for good. Asks first, with their number. Exits with 1 if there was none.

    Args:
        items (as dead_items):
        limit (as dead_limit):
        older_than (min=0.0): Only those that died at least this many seconds ago.
        error (as error_begins):
        everything (as all_dead):

    Example: fdbqueue purge orders --all --older-than 604800
    """
    selection = Selection(items, where, everything, error, ("dead",), limit)
    chosen = selection.named
    with opened_queue(url, queue) as (db, own):
        purged, there = partial(Leases(own).dead.purge, db, older_than=older_than), own.stats(db).dead
        if not there:
            tell_none(db, own, "dead letters to remove", "dead")
            end()
        wanted = list(selection.found(db, own.layout)) if selection.has_condition else None
        if wanted is not None:
            there = sum(map(len, wanted))
        elif chosen:
            there = len(set(chosen))
        if there:
            confirm_removal(f"up to {min(filter(None, (there, limit))):,} dead letters of {queue}", yes=yes)
        with noted("Some dead letters may be removed already; `fdbqueue dead` prints those that are left."):
            removed = purged(chosen or ALL, limit=limit) if wanted is None else sum(map(purged, wanted))
        if not removed:
            such = "" if everything and not older_than else "such "
            tell_none(db, own, f"{such}dead letters to remove", "dead")
            end()
    say(f"{counted(removed, 'dead letter')} removed")


def bury(queue: str, items: list[str], error: str | None = None, url: str | None = None) -> None:
    """Make available items dead letters, also one that can't be read. Exits with 1 if one is not available.

    For an item that holds up the queue: the error of a take names it. `fdbqueue dead` shows it, and `fdbqueue cancel`
    removes it for good.

    Args:
        error: Why, for people who look at the dead letters. Default: the item's last error.

    Example: fdbqueue bury orders 7:72616e646f6d --error "of an older program"
    """
    chosen = [position(item) for item in items]
    with opened_queue(url, queue) as (db, own):
        buried = [Leases(own).dead.bury(db, one, error=error) for one in chosen]
        missing = [one for one, done in zip(chosen, buried, strict=True) if not done]
        states = {one: present_state(db, own, one) for one in missing}
    say(f"{counted(sum(buried), 'item')} buried")
    for one, state in states.items():
        tell(f"The item {one.text} is not available{state and f': it {state}'}.")
    end_if(missing)
