"""Checks a smart queue's index against a rescan of its items, and counts the items."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fdbqueue import CheckFailed, CheckReport, FormatError
from fdbqueue.lowlevel import (
    CLAIMED,
    Database,
    KeyValue,
    Layout,
    Shown,
    Steps,
    Transaction,
    is_database,
    items_of_all_places,
    notes_of,
    pages,
    parse,
    rows,
    strinc,
)

from ..leases import Leases, LeaseStats
from ._functions import Functions
from ._messages import MESSAGE_ERRORS, Messages
from .index import SmartIndex
from .orphans import keys_of, orphans, other_dependent_keys
from .recipients import Recipients
from .scanning import position_of

COUNTED = 1_000


@dataclass(frozen=True, slots=True, repr=False)
class RecipientStats(Shown):
    """The items that one recipient has yet to handle, each counted up to 1,000."""

    unsent: int
    """Items that it must fetch."""
    unconfirmed: int
    """Items that it must confirm, fetched or not."""


@dataclass(frozen=True, slots=True, repr=False)
class SmartStats(Shown):
    """The contents of a smart queue."""

    items: LeaseStats
    """Items by state."""
    types: dict[str, int]
    """Items of each type without dead letters, counted up to 1,000."""
    recipients: dict[str, RecipientStats]
    """Recipients by name."""


def read_smart_stats(
    tr: Transaction, layout: Layout, index: SmartIndex, messages: Messages, items: LeaseStats
) -> Steps[SmartStats]:
    """Count the items, by snapshot reads."""
    types = {}
    for name in messages.types:
        span = index.span(name)
        types[name] = len((yield from rows(tr.snapshot, span.begin, span.end, limit=COUNTED)))
    recipients = {}
    registry = yield from Recipients(layout).read(tr)
    for name, number in registry.numbers.items():
        counts = []
        for space in (layout.unsent, layout.copies):
            begin = space[number].key()
            counts.append(len((yield from rows(tr.snapshot, begin, strinc(begin), limit=COUNTED))))
        recipients[name] = RecipientStats(*counts)
    return SmartStats(items, types, recipients)


def check_smart(tr: Transaction | Database, leases: Leases, index: SmartIndex, messages: Messages) -> CheckReport:
    """Check the leases, then the index and the other dependent keys of items."""
    report = leases.check(tr)
    problems = index_problems(tr, leases.layout, index, messages)
    return dataclasses.replace(report, problems=(*report.problems, *problems))


def index_problems(tr: Transaction | Database, layout: Layout, index: SmartIndex, messages: Messages) -> list[str]:
    """Compare the index and the other dependent keys of items with a rescan of the items."""
    problems = _problems(tr, layout, index, messages)
    if problems and is_database(tr):
        # An item that came or went between two of its transactions looks wrong. A real problem shows again.
        again = set(_problems(tr, layout, index, messages))
        problems = [problem for problem in problems if problem in again]
    return problems


def _problems(tr: Transaction | Database, layout: Layout, index: SmartIndex, messages: Messages) -> list[str]:
    problems: list[str] = []
    functions = Functions(messages.types.values())
    wanted: set[bytes] = set()
    allowed: set[bytes] = set()
    for packed, state, row in items_of_all_places(tr, layout):
        if state in ("dead", CLAIMED):
            continue
        try:
            beside = set(layout.dependent_keys(notes_of(row.value).beside, packed))
        except FormatError:
            continue  # the queue's own check reports it
        allowed |= beside
        problem, entry = _entry_of(tr, layout, index, messages, functions, packed, row)
        if entry:
            wanted.add(entry)
        if problem:
            problems.append(f"The item {position_of(layout, packed)} {problem}.")
        elif entry not in beside:
            problems.append(f"The item {position_of(layout, packed)} has notes that do not name its index entry.")
    found = set(keys_of(tr, layout.smart))
    problems += [f"The item {_told(layout, index, key)} is missing in the index." for key in sorted(wanted - found)]
    problems += [
        f"The index has an entry of {_told(layout, index, key)}, which is no such item's." for key in found - wanted
    ]
    for name, space in other_dependent_keys(layout):
        problems += orphans(tr, layout, name, space, allowed)
    return problems


def _entry_of(
    tr: Transaction | Database,
    layout: Layout,
    index: SmartIndex,
    messages: Messages,
    functions: Functions,
    packed: bytes,
    row: KeyValue,
) -> tuple[str, bytes]:
    """Return the problem of an item, and the index key that it should have by its own message."""
    try:
        opened = parse(row.value)
        payload = opened.payload
        if opened.chunked is not None:
            begin, end = layout.chunk_range_of(packed)
            payload = b"".join(chunk.value for page in pages(tr, begin, end) for chunk in page)
        message = messages.decode(payload)
    except (FormatError, *MESSAGE_ERRORS) as error:
        return f"can't be read as a message: {error}", b""
    own = messages.type_of(message)
    try:
        key = functions.key(own, message, whose="that item")
    except CheckFailed as error:
        return f"can't be given its entry in the index. {str(error).rstrip('.')}", b""
    return "", layout.prefix + index.part(own.name, key) + packed


def _told(layout: Layout, index: SmartIndex, key: bytes) -> str:
    return f"{position_of(layout, index.packed(key))} of type {index.type_of(key)!r}"
