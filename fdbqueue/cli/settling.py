"""``fdbqueue ack`` and ``fdbqueue nack``: the ends of leases, by their handles."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypedDict, TypeVar

import msgspec

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import counted
from fdbqueue.cli import errors
from fdbqueue.cli.errors import BadValue, DoneItems, end, end_if, refused, tell
from fdbqueue.cli.input import InputFailed, from_json, groups_of_lines, parse
from fdbqueue.cli.items import refuse_positions
from fdbqueue.cli.naming import sessions_of
from fdbqueue.cli.opening import CodecName, opened_queue
from fdbqueue.cli.output import line_of, say, write_lines
from fdbqueue.engine import FDBError
from fdbqueue.engine.api import Database
from fdbqueue.errors import CodecError, ItemTooLarge, LeaseLost
from fdbqueue.layers.leases import Disposition, LeaseHandle, LeaseRef, Leases
from fdbqueue.layers.leases.holding import mostly_lost
from fdbqueue.layers.sessions import SessionHandle, Sessions
from fdbqueue.moves.ends import encode_result
from fdbqueue.writes.adaptive_limit import Halving

H = TypeVar("H", bound=LeaseRef)


def handles_of(
    given: list[str] | None, results: dict[LeaseHandle, Any] | None = None
) -> Iterator[Iterator[LeaseHandle]]:
    """Return the given handles or, without any, those from groups of lines of standard input.

    Args:
        given: the handles; None: read lines.
        results: gets the "result" of each line that has one, while the lines are read.

    Raises:
        BadParameter: none were given, and standard input can't provide any.
        BadValue: one is no handle. It is raised while the handles are read.
    """
    if given:
        return iter([iter([_handle(text, "") for text in given])])
    numbers = itertools.count(1)
    return (
        _in_lines(group, numbers, {} if results is None else results) for group in groups_of_lines("handles", "LEASE")
    )


def told_lost(handle: LeaseHandle) -> None:
    """Report that a lease is lost."""
    tell(f"Error: The lease {handle} is lost: {mostly_lost(handle.position)}.")


def with_those_held(
    action: Callable[[list[H]], object], leases: list[H], *, on_lost: Callable[[H], None] = lambda lease: None
) -> list[H]:
    """Call `action` with the leases that are not lost, and return those. Pass each lost lease to `on_lost`."""
    while leases:
        try:
            action(leases)
            break
        except LeaseLost as error:
            for lease in leases:
                if lease.position in error.lost:
                    on_lost(lease)
            leases = [lease for lease in leases if lease.position not in error.lost]
    return leases


def bundles(handles: Iterable[LeaseHandle], most: int) -> Iterator[list[LeaseHandle]]:
    """Yield up to `most` handles at a time, no item twice in one bundle. Yield those before a wrong handle first."""
    bundle: dict[Position, LeaseHandle] = {}
    wrong = None
    try:
        for handle in handles:
            if len(bundle) == most or handle.position in bundle:
                yield list(bundle.values())
                bundle.clear()
            bundle[handle.position] = handle
    except (BadValue, InputFailed) as error:
        wrong = error
    if bundle:
        yield list(bundle.values())
    if wrong is not None:
        raise wrong


def _in_lines(lines: Iterable[bytes], numbers: Iterator[int], results: dict[LeaseHandle, Any]) -> Iterator[LeaseHandle]:
    for line, number in zip(lines, numbers, strict=False):
        text = line.decode(errors="replace").strip()
        if text:
            record = _record(text)
            where = f"Line {number}: "
            if record["lease"] is None:
                raise BadValue(f"{where}The field 'lease' is missing. Give the lines that `fdbqueue lease` prints.")
            handle = _handle(str(record["lease"]), where)
            if "result" in record:
                results[handle] = _result(record["result"], where)
            yield handle


def _result(decoded: object, where: str) -> Any:
    try:
        return from_json(decoded, CodecName.msgpack)
    except BadValue as error:
        raise BadValue(f"{where}{error}") from error


def _record(line: str) -> dict[str, Any]:
    """Return the handle in a line as "lease": it is bare, a JSON string, or the "lease" of a JSON object."""
    try:
        decoded = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {"lease": line}
    return {"lease": None, **decoded} if isinstance(decoded, dict) else {"lease": decoded}


def _handle(text: str, where: str) -> LeaseHandle:
    try:
        return SessionHandle.parse(text) if "/" in text else LeaseHandle.parse(text)
    except ValueError as error:
        raise BadValue(f"{where}{error}") from error


ACKED_AT_ONCE = 500
NACKED_AT_ONCE = 100
"""The most items that one transaction gives back. It writes them again, with up to 100,000 bytes each."""


class LeasesToEnd(NamedTuple):
    """The leases that a command ends."""

    db: Database
    leases: Leases
    sessions: Sessions
    bundles: Iterator[tuple[list[LeaseHandle], list[SessionHandle]]]
    """Handles of plain items and of sessions, as many as go into one transaction."""
    progress: DoneItems


@contextmanager
def _settling(
    progress: DoneItems,
    queue: str,
    url: str | None,
    handles: list[str] | None,
    most: int,
    *,
    results: dict[LeaseHandle, Any] | None = None,
    max_attempts: int | None = None,
) -> Iterator[LeasesToEnd]:
    """Open the queue of the leases that a command ends. Afterwards tell their number, and exit as it demands."""
    taken = 0

    def bundled() -> Iterator[tuple[list[LeaseHandle], list[SessionHandle]]]:
        nonlocal taken
        for group in given:
            for bundle in bundles(group, most):
                taken += len(bundle)
                of_sessions = [handle for handle in bundle if isinstance(handle, SessionHandle)]
                yield [handle for handle in bundle if not isinstance(handle, SessionHandle)], of_sessions

    try:
        given = handles_of(handles, results)
    except BadValue:
        refuse_positions(url, queue, handles)
        raise
    with opened_queue(url, queue) as (db, own), progress:
        leases, sessions = Leases(own, max_attempts=max_attempts), sessions_of(own, max_attempts=max_attempts)
        yield LeasesToEnd(db, leases, sessions, bundled(), progress)
    if not taken:
        tell(f"Standard input had no handles of leases: nothing was {progress.done}.")
        end()
    say(f"{counted(progress.items, 'item')} {progress.done}{progress.more}")
    end_if(progress.items < taken, errors.LOST)


def ack(queue: str, handles: list[str] | None = None, result: str | None = None, url: str | None = None) -> None:
    """Acknowledge leased items: their work is done. Exits with 5 if leases are lost, and with 1 if none are given.

    It prints the lost leases and acks the others.

    A line of standard input is a handle, or a line that `fdbqueue lease` printed. A line that also has a "result" gives
    that item's result, in place of --result. Items without a completion ignore results. If a result can't be stored, no
    item of its batch is acked.

    Args:
        result (JSON): Result of the items, for those that wait for it.

    Example: fdbqueue ack orders --result '{"paid": 9}' < leases.jsonl
    """
    usual: Any = None
    results: dict[LeaseHandle, Any] = {}
    if result is not None:
        with refused("--result", (BadValue, CodecError, ItemTooLarge)):
            usual = parse(result, CodecName.msgpack)
            encode_result(usual)
    with _settling(DoneItems("acked"), queue, url, handles, ACKED_AT_ONCE, results=results) as settled:
        for plain, of_sessions in settled.bundles:
            done = {handle: _checked(results.pop(handle, usual), handle) for handle in (*plain, *of_sessions)}
            ack_many = partial(_ack_many, settled.db, settled.leases, results=done)
            settled.progress.items += len(with_those_held(ack_many, plain, on_lost=told_lost))
            for handle in of_sessions:
                with _telling_lost(handle):
                    settled.sessions.ack(settled.db, handle, result=done[handle])
                    settled.progress.items += 1


def _checked(result: object, handle: LeaseHandle) -> Any:
    """Return a result that can be stored.

    Raises:
        BadValue: this one can't.
    """
    try:
        encode_result(result)
    except (CodecError, ItemTooLarge) as error:
        raise BadValue(f"The result of {handle} can't be stored: {error} None of its batch was acked.") from error
    return result


def _ack_many(db: Database, leases: Leases, handles: list[LeaseHandle], results: dict[LeaseHandle, Any]) -> None:
    leases.ack_many(db, handles, results=[results[handle] for handle in handles])


@contextmanager
def _telling_lost(handle: LeaseHandle) -> Iterator[None]:
    try:
        yield
    except LeaseLost:
        told_lost(handle)


def nack(
    queue: str,
    handles: list[str] | None = None,
    delay: float | None = None,
    error: str | None = None,
    max_attempts: int | None = None,
    url: str | None = None,
) -> None:
    """Give leased items back after failed attempts. Exits with 5 if leases are lost, and prints those.

    It exits with 1 if none are given. A line of standard input is a handle, or a line that `fdbqueue lease` printed.
    For each item it prints a line with the item's disposition: available again in its old place, delayed, dead or
    expired.

    Args:
        delay (-d, min=0): Seconds until the items are available again. Default: the queue's back-off; none: at once.
        error: Reason, stored with the items and dead letters.

    Example: fdbqueue nack orders --delay 30 --error 'printer is off' < leases.jsonl
    """
    fates: Counter[str] = Counter()
    terms: NackTerms = {"delay": delay, "error": error}
    progress = DoneItems("given back", "")
    with _settling(progress, queue, url, handles, NACKED_AT_ONCE, max_attempts=max_attempts) as settled:
        for plain, of_sessions in settled.bundles:
            for held, of_held in chain(_fates(settled, plain, terms), _fates_in_sessions(settled, of_sessions, terms)):
                fates.update(fate.value for fate in of_held)
                progress.items = fates.total()
                progress.more = "".join(f", {number:,} {fate}" for fate, number in fates.items())
                shown = [{"lease": str(one), "fate": fate.value} for one, fate in zip(held, of_held, strict=True)]
                write_lines(map(line_of, shown))


class NackTerms(TypedDict):
    """How items are given back."""

    delay: float | None
    error: str | None


_Fates: TypeAlias = Iterator[tuple[Sequence[LeaseHandle], list[Disposition]]]


def _fates_in_sessions(settled: LeasesToEnd, handles: list[SessionHandle], terms: NackTerms) -> _Fates:
    """Give items of sessions back, one after the other, and report the lost leases."""
    for handle in handles:
        with _telling_lost(handle):
            yield [handle], [settled.sessions.nack(settled.db, handle, **terms)]


def _fates(settled: LeasesToEnd, bundle: list[LeaseHandle], terms: NackTerms) -> _Fates:
    """Give items back, in one transaction if they fit into one, and report the lost leases."""
    halving = Halving([bundle])
    for held in halving:
        try:
            fates = settled.leases.nack_many(settled.db, held, **terms)
        except LeaseLost as error:
            for handle in held:
                if handle.position in error.lost:
                    told_lost(handle)
            halving.again([handle for handle in held if handle.position not in error.lost])
        except FDBError as error:
            halving.halve(error)
        else:
            yield held, fates
