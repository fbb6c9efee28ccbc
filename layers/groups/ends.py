"""What the end of a group's member sets off. `fdbqueue.moves.ends` calls it."""

from __future__ import annotations

from fdbqueue.lowlevel import Layout, Notes, Transaction
from fdbqueue.moves.ends import group_keys


def end_membership(tr: Transaction, layout: Layout, packed: bytes, notes: Notes, how: str, **told: object) -> None:
    """Note that a member is not open any more. The transaction settles its group afterwards."""
    if notes.group and how != "purged":  # a purged member ended when it died
        tr.clear(group_keys(layout, notes.group).members + packed)
