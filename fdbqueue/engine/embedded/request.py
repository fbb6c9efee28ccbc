"""A commit on its way: what the transaction above hands in, and what it gets back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fdbqueue.engine.embedded.commitlog import Range

Mutation = tuple[int, bytes, bytes]


@dataclass(slots=True, eq=False)
class CommitRequest:
    """What a transaction wants committed, and, once it is `done`, what became of it."""

    snapshot_version: int | None = None
    """Read version; None for a transaction that read nothing, which can't conflict."""
    read_ranges: list[Range] = field(default_factory=list)
    """Half-open ranges that must not have been written since the read version."""
    write_ranges: list[Range] = field(default_factory=list)
    """Half-open ranges that later commits' reads conflict with."""
    mutations: list[Mutation] = field(default_factory=list)
    """(FoundationDB's mutation type, key or begin, parameter or end), in the order of their taking effect."""
    report_conflicts: bool = False
    """Fill `conflicting` when the commit fails with 1020."""
    read_keys: list[bytes] = field(default_factory=list)
    """Single keys that were read: shorter for ``(key, key + b"\\0")`` in `read_ranges`."""
    write_keys: list[bytes] = field(default_factory=list)
    """Single keys that are written: shorter for ``(key, key + b"\\0")`` in `write_ranges`."""
    opened_at: float | None = None
    """When the snapshot was taken (`Snapshot.opened_at`); a commit more than 5 s later fails with 1007."""

    done: bool = False
    version: int = -1
    """Committed version."""
    batch: int = 0
    """Number within the version; both make the versionstamp."""
    error: int | None = None
    """FoundationDB's code, None for a commit that took effect."""
    failure: Exception | None = None
    """What the disk said, for a commit that surely had no effect; `Store.wait` raises it."""
    conflicting: list[Range] = field(default_factory=list)
    """The part of what was read that others wrote."""

    stamped: list[bytes] = field(default_factory=list)
    """Keys that the commit made from versionstamps; they count as written."""
    gate: threading.Lock | None = None
    callbacks: list[Callable[[CommitRequest], None]] = field(default_factory=list)

    def settled(self) -> bool:
        """Say whether the request is `done`, which another thread may have made it."""
        return self.done

    def finish(self) -> None:
        """Let go whoever waits."""
        self.done = True
        if self.gate is not None:
            _open(self.gate)

    def call_back(self) -> None:
        """Call each callback that nobody has called yet."""
        while self.callbacks:
            try:
                callback = self.callbacks.pop()
            except IndexError:
                return
            callback(self)

    def wake(self) -> bool:
        """Wake the thread that sleeps over this request, to lead; say whether there was one."""
        if self.gate is None:
            return False
        _open(self.gate)
        return True


def _open(gate: threading.Lock) -> None:
    try:
        gate.release()
    except RuntimeError:
        return  # it is open already


class Faults(Protocol):
    """Failures that tests put into commits, one request at a time."""

    def before_commit(self, request: CommitRequest) -> int | None:
        """Return a code to fail with, without effect."""

    def after_commit(self, request: CommitRequest) -> int | None:
        """Return a code to report although the commit took effect."""
