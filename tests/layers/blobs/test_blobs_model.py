"""Uploads, sweeps and everything that moves or removes an item, against a plain model."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fdbqueue import LeaseLost, Position, Queue, UploadLost
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, BlobWriter, Lease, Leases
from tests.helpers.blobs import BATCH_BYTES, data_of, kept_keys, small_pieces
from tests.helpers.clock import Clock

pytestmark = pytest.mark.slow

LEASE_S = 60.0


class Machine(RuleBasedStateMachine):
    """Two users of one queue: the model has each item's data, and each upload's data and last write."""

    db: Any
    space: Subspace
    uploads: Bundle[BlobWriter] = Bundle("uploads")
    held: Bundle[Lease] = Bundle("held")

    @initialize()
    def begin(self) -> None:
        self.clock = Clock()
        self.leases = Leases(Queue(self.space[secrets.token_hex(4)]), clock=self.clock, max_attempts=2)
        self.blobs = Blobs(self.leases, clock=self.clock, lease=LEASE_S)
        self.items: dict[Position, bytes] = {}
        self.written: dict[BlobWriter, bytes] = {}
        self.written_at: dict[BlobWriter, float] = {}
        self.swept: set[BlobWriter] = set()
        self.seed = 0

    @rule(target=uploads)
    def start(self) -> BlobWriter:
        out = self.blobs.write(self.db)
        self.written[out] = b""
        return out

    @rule(out=uploads, size=st.integers(0, 3 * BATCH_BYTES))
    def write(self, out: BlobWriter, size: int) -> None:
        if out.closed or out not in self.written:
            return
        self.seed += 1
        data = data_of(size, self.seed)
        grows = len(self.written[out]) + size > BATCH_BYTES
        try:
            out.write(data)
        except UploadLost:
            assert out in self.swept
            del self.written[out]
            return
        if grows:
            self._sweep_others(out)
            self.written_at[out] = self.clock.now
        self.written[out] += data

    @rule(out=consumes(uploads))
    def commit(self, out: BlobWriter) -> None:
        if out not in self.written:
            return
        data = self.written.pop(out)
        try:
            position = out.commit()
        except UploadLost:
            assert out in self.swept
            return
        assert out not in self.swept
        assert position is not None
        self.items[position] = data

    @rule(out=consumes(uploads))
    def abort(self, out: BlobWriter) -> None:
        self.written.pop(out, None)
        out.abort()

    @rule(seconds=st.sampled_from([1.0, 40.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def sweep(self) -> None:
        self.blobs.sweep(self.db)
        self._sweep_others(None)

    @rule(target=held, duration=st.sampled_from([10.0, 1_000.0]))
    def lease(self, duration: float) -> Any:
        return self.leases.lease(self.db, duration=duration)

    @rule(lease=held, size=st.integers(1, 100))
    def read(self, lease: Lease | None, size: int) -> None:
        if lease is None:
            return
        try:
            with self.blobs.read(self.db, lease) as data:
                found = b"".join(iter(lambda: data.read(size), b""))
        except LeaseLost:
            return
        assert found == self.items[lease.position]

    @rule(lease=held)
    def ack(self, lease: Lease | None) -> None:
        if lease is not None and self._lives(lease):
            self.leases.ack(self.db, lease)
            del self.items[lease.position]

    @rule(lease=held)
    def nack(self, lease: Lease | None) -> None:
        if lease is not None and self._lives(lease):
            self.leases.nack(self.db, lease)

    @rule(tail=st.booleans())
    def redrive(self, tail: bool) -> None:
        moving = [dead.position for dead in self.leases.dead.browse(self.db)]
        self.leases.dead.redrive(self.db, to="tail" if tail else "place")
        if tail and moving:
            last = [item.position for item in self.leases.queue.browse(self.db)][-len(moving) :]
            moved = [self.items.pop(position) for position in moving]
            self.items.update(zip(last, moved, strict=True))

    @rule()
    def purge(self) -> None:
        for dead in [*self.leases.dead.browse(self.db)]:
            del self.items[dead.position]
        self.leases.dead.purge(self.db)

    @invariant()
    def every_item_has_its_data_and_nothing_else_is_there(self) -> None:
        report = self.blobs.check(self.db)
        assert report.ok, report.problems
        assert report.items == len(self.items)
        for position, data in self.items.items():
            assert self.blobs.read(self.db, position).read() == data
        if not self.items and not self.written:
            self.blobs.sweep(self.db)

    def teardown(self) -> None:
        if hasattr(self, "leases"):
            self.clock.now += 20 * LEASE_S  # over the longest lease
            self.blobs.sweep(self.db)
            for lease in self.leases.lease_many(self.db):
                self.leases.ack(self.db, lease)
            self.leases.dead.purge(self.db)
            assert kept_keys(self.db, self.leases.queue) == []

    def _sweep_others(self, own: BlobWriter | None) -> None:
        """Note which uploads a sweep may have removed: one that begins another upload sweeps too."""
        overdue = {out for out, at in self.written_at.items() if at + LEASE_S <= self.clock.now}
        self.swept |= overdue - {own}

    def _lives(self, lease: Lease) -> bool:
        return any(
            found.position == lease.position and found.attempt == lease.attempt
            for found in self.leases.browse(self.db, state="leased")
        )


@pytest.mark.engines("memory", "cluster")
def test_blobs_do_as_a_plain_model(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)

    class Here(Machine):
        pass

    Here.db, Here.space = db, space
    run_state_machine_as_test(Here, settings=settings(stateful_step_count=25))
