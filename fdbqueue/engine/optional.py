"""What only some engines have: members, turns, many rows at once, versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fdbqueue.engine.api import Database, Transaction

# Members: the processes that use a database. The embedded engine knows which of them are alive.
#
# A database or transaction with members has an attribute ``members``. A process can store its id beside what it
# wants of
# others, and others see at once if it has ended. It can also set a mark, which outlives it and costs no commit. A
# cluster
# has no members: there a process is known by what it commits. (docs/adr/0122)


class ProcessesOf(Protocol):
    """The processes that use a database."""

    def own_id(self) -> bytes:
        """Return the id of this process; b"" if it has none."""

    def is_dead(self, process: bytes) -> bool:
        """Return whether it is certain that the process with an id has ended."""

    def mark(self, mark: bytes) -> bool:
        """Keep a mark of this process, without a commit. Return False if that is impossible."""

    def has_mark(self, process: bytes, mark: bytes) -> bool:
        """Return whether a process, alive or dead, has set a mark lately."""


class _NoMembers:
    def own_id(self) -> bytes:
        return b""

    def is_dead(self, process: bytes) -> bool:
        return False

    def mark(self, mark: bytes) -> bool:
        return False

    def has_mark(self, process: bytes, mark: bytes) -> bool:
        return False


_NO_MEMBERS = _NoMembers()


def members_of(db: Database | Transaction) -> ProcessesOf:
    """Return the processes that use a database, as far as the engine knows them: on a cluster it knows none."""
    members: ProcessesOf | None = getattr(db, "members", None)
    return _NO_MEMBERS if members is None else members


# Turns: transactions that take items from the head of a queue, one process after the other.
#
# Of several transactions that take the same item, one commits. On a cluster the layers arrange for that. The
# embedded
# engine knows all processes that use its folder. There a process waits for its turn before the first read of such a
# transaction, and no other process begins one while it has the turn. (docs/adr/0018)
#
# A database or transaction with turns has a method ``next_turn``. It returns None if the process has the turn, and
# the
# future of its next turn otherwise. A turn is a hint: conflicts are checked at the commit, with or without it. So
# the
# process may wait during its turn, and nothing must give the turn back.


def no_turn() -> None:
    """Return None, for engines without turns: ``getattr(db, "next_turn", no_turn)()``."""


def has_turns(db: Database | Transaction) -> bool:
    """Return whether `db` has turns. Then it has no round trips, and it is useless to save reads."""
    return hasattr(db, "next_turn")


def shares_turns(db: Database | Transaction) -> bool:
    """Return whether another process took a turn lately."""
    return bool(getattr(db, "shares_turns", False))


# Set many keys in one call, if the engine supports that.


def set_rows(tr: Transaction, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Set each of `keys` to the value at the same index, like one call of ``tr.set`` for each.

    *Conflicts:* like `set`. *Cost:* one write per key; on the embedded engine a few steps of Python for all of them.
    """
    # Look up the method on the type. A wrapper around another transaction passes on all methods that it does not
    # define; without `set_rows` on its own type, it still sees each `set`.
    at_a_stroke = getattr(type(tr), "set_rows", None)
    if at_a_stroke is not None:
        at_a_stroke(tr, keys, values)
        return
    if type(tr).__module__ == "fdb.impl":
        # The binding's own `set`, without its steps of Python for other kinds of keys: they take a sixth of a write.
        binding: Any = tr
        put, handle = binding.capi.fdb_transaction_set, binding.tpointer
        for key, value in zip(keys, values, strict=True):
            put(handle, key, len(key), value, len(value))
        return
    write = tr.set
    for key, value in zip(keys, values, strict=True):
        write(key, value)


# Versions of transactions that read nothing, without the cost of a view that nobody reads.
#
# The embedded engine keeps the state of a version readable if a program asks for that version. That takes a view of
# the
# database, which keeps its pages from being reused. These functions avoid it.


def conflict_since(tr: Transaction, version: int) -> None:
    """Make `tr` conflict with what was committed after `version`. It must not read."""
    begin = getattr(tr, "conflict_since", tr.set_read_version)
    begin(version)


def committed_version(tr: Transaction) -> int:
    """Return the version of a commit, to be given to `conflict_since` and not to be read at."""
    version: int = getattr(tr, "committed_version", tr.get_committed_version)()
    return version
