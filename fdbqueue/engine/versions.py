"""Versions of transactions that read nothing, without the cost of a view that nobody reads.

The embedded engine keeps the state of a version readable if a program asks for that version. That takes a view of the
database, which keeps its pages from being reused. These functions avoid it.
"""

from __future__ import annotations

from fdbqueue.engine.api import Transaction


def conflict_since(tr: Transaction, version: int) -> None:
    """Make `tr` conflict with what was committed after `version`. It must not read."""
    begin = getattr(tr, "conflict_since", tr.set_read_version)
    begin(version)


def committed_version(tr: Transaction) -> int:
    """Return the version of a commit, to be given to `conflict_since` and not to be read at."""
    version: int = getattr(tr, "committed_version", tr.get_committed_version)()
    return version
