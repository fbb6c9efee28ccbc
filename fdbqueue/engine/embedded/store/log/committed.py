"""The state that commits of one version left, readable for as long as somebody may ask for that version."""

from __future__ import annotations

from fdbqueue.engine.embedded.store.snapshot import Snapshot


class Committed:
    """A view that those hold whose commits led to it, and that goes with the last of them."""

    __slots__ = ("__weakref__", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __del__(self) -> None:
        self.snapshot.close()
