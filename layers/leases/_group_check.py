"""Check that every member of a group has its key, and that the counters of groups are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fdbqueue import FormatError
from fdbqueue.lowlevel import Database, Layout, Transaction, pages
from fdbqueue.moves.ends import group_keys, named_group
from fdbqueue.stored.own_rows import own_rows
from fdbqueue.stored.own_values import decoded, signed

from .outcome_check import Tracked

_OPEN = {"available": "available", "leased": "leased", "claimed": "leased", "delayed": "delayed"}
"""The states of open members, and the counter of each: a member in a stream's batch is at work."""


def check_groups(tr: Transaction | Database, layout: Layout, tracked: Iterable[Tracked]) -> list[str]:
    """Return the problems of groups, a sentence each.

    *Cost:* reads all keys of groups; memory for the keys of members.
    """
    wanted: set[bytes] = set()
    there: Counter[tuple[str, str]] = Counter()
    for packed, state, notes in tracked:
        if notes.group and state in _OPEN:
            wanted.add(group_keys(layout, notes.group).members + packed)
            there[notes.group, _OPEN[state]] += 1
    surplus, damaged = [], []
    counted: Counter[tuple[str, str]] = Counter()
    span = layout.groups.range()
    for page in pages(tr, span.start, span.stop):
        for (name, kind, *rest), row in own_rows(layout, "groups", page):
            if kind == "member":
                surplus += [] if row.key in wanted else [row.key]
                wanted.discard(row.key)
            elif kind == "record":
                try:
                    named_group(layout, name, row.value)
                except FormatError as error:
                    damaged.append(str(error))
            elif kind == "count" and rest[0] in _OPEN:
                try:
                    counted[name, rest[0]] = decoded(layout, row.key, row.value, signed)
                except FormatError as error:
                    damaged.append(str(error))
    problems = damaged + [f"The member {key!r} of a group has no item in the queue." for key in surplus]
    problems += [f"The member {key!r} of a group is missing." for key in sorted(wanted)]
    for name, state in sorted(there.keys() | counted.keys()):
        if there[name, state] != counted[name, state]:
            problems.append(
                f"The counters say that {counted[name, state]:,} members of the group {name!r} are {state}, but there"
                f" are {there[name, state]:,}."
            )
    return problems
