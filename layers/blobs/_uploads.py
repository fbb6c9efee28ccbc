"""Uploads under way: their leases, and the sweep of those that were interrupted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdbqueue import FDBError, UploadLost
from fdbqueue.engine.errors import predicates
from fdbqueue.lowlevel import Database, Layout, Shown, Transaction, rows, value_of
from fdbqueue.stored.items import BLOB_ID_BYTES
from fdbqueue.stored.own_rows import own_rows

LEASE_SECONDS = 600.0
SWEEP_LIMIT = 16
"""The most uploads that a new upload looks at."""
PAGE_UPLOADS = 100


@dataclass(frozen=True, slots=True, repr=False)
class SweepReport(Shown):
    """The result of a sweep."""

    swept: int
    """Interrupted uploads that were removed."""
    live: int
    """Uploads that were left, since their leases have not ended."""


class Upload:
    """One upload's keys.

    Args:
        lease_us: how long the upload is safe from sweeps after each of its transactions.
        now_us: the clock, in microseconds.
    """

    __slots__ = ("_end", "_layout", "_lease_us", "id", "key", "now_us", "renew_at_us", "until_key")

    def __init__(self, layout: Layout, lease_us: int, now_us: Callable[[], int]) -> None:
        self.id = os.urandom(BLOB_ID_BYTES)
        self.key: bytes = layout.uploads.pack((self.id,))
        self.until_key: bytes = layout.uploads_until.pack((self.id,))
        self.renew_at_us = 0
        """When the lease should be renewed, even without data."""
        self._layout = layout
        self._lease_us = lease_us
        self.now_us = now_us

    async def begin(self, tr: Transaction, pieces: Sequence[bytes]) -> None:
        """Write the upload's keys and the first pieces. A repetition writes the same.

        *Conflicts:* with `give_up`, which comes first if this call was cancelled while its commit was under way.
        """
        await value_of(tr.get(self.key))
        tr.set(self.key, b"")
        self._write(tr, 0, pieces)

    async def put(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        """Write pieces from the `number`-th on, and renew the lease. A repetition writes the same.

        Raises:
            UploadLost: the upload was swept, or given up.

        *Conflicts:* with a sweep of this upload, and with its end. Not with other transactions of the same upload.
        """
        await self.check(tr)
        self._write(tr, number, pieces)

    async def check(self, tr: Transaction) -> None:
        """Depend on the upload being under way.

        Raises:
            UploadLost: it is not.
        """
        if not (await value_of(tr.get(self.key))).present():
            raise UploadLost(
                f"The upload of a blob to {self._layout.describe()} is gone: the queue was cleared, or nothing was"
                f" written for longer than its lease of {self._lease_us / 1e6:g} seconds. Write the whole blob again."
                " If the source is slow, call `extend`, or give Blobs a longer lease."
            )

    def end(self, tr: Transaction, *, keep: bool) -> None:
        """Remove the upload's keys; unless `keep`, also what it wrote. The transaction has called `check`."""
        tr.clear(self.key)
        tr.clear(self.until_key)
        if not keep:
            tr.clear_range(*self._layout.blob_range(self.id))

    async def give_up(self, tr: Transaction) -> None:
        """Remove all that the upload wrote, unless it has ended."""
        if (await value_of(tr.get(self.key))).present():
            self.end(tr, keep=False)
        else:
            tr.clear(self.key)  # a cancelled `begin`, whose commit is still under way, conflicts with this write

    def write_pieces(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        """Write pieces from the `number`-th on."""
        for at, piece in enumerate(pieces, number):
            tr.set(self._layout.blob_key(self.id, at), piece)

    def _write(self, tr: Transaction, number: int, pieces: Sequence[bytes]) -> None:
        now_us = self.now_us()
        self.renew_at_us = now_us + self._lease_us // 3
        tr.set(self.until_key, (now_us + self._lease_us).to_bytes(8, "little"))
        self.write_pieces(tr, number, pieces)

    @property
    def is_due(self) -> bool:
        """Whether the lease should be renewed now."""
        return self.now_us() >= self.renew_at_us


async def sweep(
    tr: Transaction, layout: Layout, now_us: int, *, begin: bytes, end: bytes, limit: int
) -> tuple[SweepReport, bytes]:
    """Remove up to `limit` uploads whose leases have ended. Return the report, and the key from which to go on.

    It reads leases by snapshot, so that it does not conflict with uploads that it leaves alone.

    *Conflicts:* with transactions of uploads that it removes: an upload that renews its lease meanwhile stays.
    """
    found = await rows(tr.snapshot, begin, end, limit=limit)
    swept = 0
    for (id,), row in own_rows(layout, "uploads_until", found):
        if int.from_bytes(row.value, "little") > now_us:
            continue
        key = layout.uploads.pack((id,))
        tr.add_read_conflict_key(row.key)
        tr.clear(row.key)
        tr.clear(key)
        tr.clear_range(*layout.blob_range(id))
        swept += 1
    return SweepReport(swept, len(found) - swept), found[-1].key + b"\x00" if len(found) == limit else end


async def sweep_some(db: Database, layout: Layout, now_us: int, begin: bytes) -> None:
    """Remove some interrupted uploads, beginning at a random one. An error of the database ends it without harm."""
    span = layout.uploads_until.range()
    tr = db.create_transaction()
    try:
        report, _ = await sweep(tr, layout, now_us, begin=begin, end=span.stop, limit=SWEEP_LIMIT)
        swept = report.swept
        looked = report.swept + report.live
        if looked < SWEEP_LIMIT:
            report, _ = await sweep(tr, layout, now_us, begin=span.start, end=begin, limit=SWEEP_LIMIT - looked)
            swept += report.swept
        if swept:
            await value_of(tr.commit())
    except FDBError as error:
        if not predicates.retryable(error):
            raise
