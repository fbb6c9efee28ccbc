"""Members: the processes that use a database. The embedded engine knows which of them are alive.

A database or transaction with members has an attribute ``members``. A process can store its id beside what it wants of
others, and others see at once if it has ended. It can also set a mark, which outlives it and costs no commit. A cluster
has no members: there a process is known by what it commits. (docs/adr/0122)
"""

from __future__ import annotations

from typing import Any


def own_process(db: Any) -> bytes:
    """Return the id of this process; b"" if the engine has no members."""
    members = getattr(db, "members", None)
    return b"" if members is None else members.own_id()


def process_is_dead(db: Any, process: bytes) -> bool:
    """Return whether it is certain that the process with an id has ended."""
    members = getattr(db, "members", None) if process else None
    return members is not None and members.is_dead(process)


def set_mark(db: Any, mark: bytes) -> bool:
    """Keep a mark of this process, without a commit. Return False if the engine has no members, or it is impossible."""
    members = getattr(db, "members", None)
    return members is not None and members.mark(mark)


def has_mark(db: Any, process: bytes, mark: bytes) -> bool:
    """Return whether a process, alive or dead, has set a mark lately."""
    members = getattr(db, "members", None) if process else None
    return members is not None and members.has_mark(process, mark)
