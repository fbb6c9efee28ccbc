"""The state after the commits of one version, readable while a caller may ask for that version."""

from __future__ import annotations

from fdbqueue.engine.embedded.store.snapshot import Snapshot


class Committed:
    """A snapshot that the commits of its version hold in common; it closes when the last of them is freed."""

    __slots__ = ("__weakref__", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __del__(self) -> None:
        self.snapshot.drop()
