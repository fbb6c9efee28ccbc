"""The promise of blobs: an item is there with all of its data, or not at all, and nothing is left of an upload."""

from __future__ import annotations

import zlib
from collections import Counter

from fdbqueue import Position
from fdbqueue.layers.oplog._records import digest
from fdbqueue.stored.items import CHUNK_BYTES, NO_NOTES, Blob, envelope, with_blob, with_notes
from tests.chaos.blobhands import data_of, item_of
from tests.chaos.claims import Claims
from tests.chaos.history import OK, REFUSED
from tests.chaos.invariant import Invariant
from tests.chaos.kinds import Kind
from tests.chaos.motions import now_us
from tests.chaos.replay import Replay, Step
from tests.chaos.rules import Rules

ENDS = frozenset({"upload", "upload in mine"})
"""Calls that end their uploads."""


class WholeOrNotAtAll(Invariant):
    name, says = "blobs", "an item is there with all of its data or not at all; only ended uploads are swept"
    kinds = (Kind.blobs,)

    def __init__(self, claims: Claims, rules: Rules) -> None:
        super().__init__(claims, rules)
        self._uploads: dict[bytes, tuple[str, str]] = {}
        """By the blob's id, the call that began its upload."""
        self._until_us: dict[bytes, int] = {}
        self._swept: set[bytes] = set()
        self._pieces: dict[bytes, tuple[bytes, list[bytes]]] = {}
        """By the item's content: its blob's id, and the digests of its pieces."""
        self._content: dict[bytes, bytes] = {}
        """By the blob's id, the content of its item."""
        self._standing: Counter[bytes] = Counter()
        self._came: Counter[tuple[str, str]] = Counter()
        self._latest_us: Counter[str] = Counter()
        """The latest time of each process so far: its clock may jump back during a call."""

    def see(self, step: Step, replay: Replay) -> None:
        record = step.record
        self._latest_us[record.by] = max(self._latest_us[record.by], now_us(record))
        touched = self._follow_uploads(step, replay)
        for position, before, after in step.moves:
            if before is None and after is not None and after.content not in self._pieces:
                self._enters(step, position, after.content, touched)
        for _, before, after in step.moves:
            for one, change in ((before, -1), (after, 1)):
                if one is not None:
                    self._standing[one.content] += change
                    touched.add(self._pieces.get(one.content, (b"", []))[0])
        for blob in touched - {b""}:
            self._fits(step, blob, replay)
        if replay.counters["blobs"] != replay.sizes.total():
            self.broken(f"{replay.counters['blobs']} blobs are counted, and {replay.sizes.total()} are there", record)

    def _follow_uploads(self, step: Step, replay: Replay) -> set[bytes]:
        """Follow the uploads that a record begins, renews, ends or sweeps; return the blobs that it touches."""
        layout, record = replay.layout, step.record
        touched: set[bytes] = set()
        ended: set[bytes] = set()
        renewed: dict[bytes, int] = {}
        for change in record.changes:
            whole = layout.prefix + change.key
            if layout.blobs.contains(whole):
                touched.add(layout.blobs.unpack(whole)[0])
            elif layout.uploads.contains(whole):
                [blob] = layout.uploads.unpack(whole)
                touched.add(blob)
                if change.operation == "set":
                    self._uploads.setdefault(blob, (record.by, record.call))
                    self._swept.discard(blob)  # the begin of an upload is repeated if its outcome is unknown
                else:
                    ended.add(blob)
            elif layout.uploads_until.contains(whole) and change.operation == "set":
                renewed[layout.uploads_until.unpack(whole)[0]] = int.from_bytes(change.notes, "little")
        for blob in ended:
            if self._uploads.get(blob) != (record.by, record.call):
                self.tally["uploads swept"] += 1
                self._swept.add(blob)
                if self._until_us.get(blob, 0) > self._latest_us[record.by]:
                    self.broken(f"the upload {blob.hex()} was swept before its lease ended", record)
        for blob, until_us in renewed.items():
            if blob in self._swept:
                self.broken(f"the upload {blob.hex()} went on after it was swept", record)
            self._until_us[blob] = until_us
        return touched

    def _enters(self, step: Step, position: Position, content: bytes, touched: set[bytes]) -> None:
        """An item enters: it is the one that its call uploaded."""
        record = step.record
        told = self.claims.calls.get((record.by, record.call))
        if told is None or told.verb not in ENDS:
            self.broken(f"{position} came, and nobody ended its upload", record)
            return
        self._came[record.by, record.call] += 1
        name, size = told.asked["blob"], told.asked["size_bytes"]
        self.tally["items that came"] += 1
        if not size:
            self._pieces[content] = (b"", [])
            return
        if len(touched) != 1:
            self.broken(f"{position} came, and {len(touched)} blobs changed", record)
            return
        [blob] = touched
        if blob in self._swept:
            self.broken(f"{position} came, and its upload was swept", record)
        data = data_of(name, size)
        stored = with_blob(envelope(item_of(name, size), None), Blob(blob, size, zlib.crc32(data), is_value=False))
        if digest(with_notes(stored, NO_NOTES)) != content:
            self.broken(f"{position} came with another content than was uploaded", record)
        self._pieces[content] = (blob, [digest(data[at : at + CHUNK_BYTES]) for at in range(0, size, CHUNK_BYTES)])
        self._content[blob] = content

    def _fits(self, step: Step, blob: bytes, replay: Replay) -> None:
        """A blob has an item or an upload, not both; with an item it has all of its pieces."""
        layout, record = replay.layout, step.record
        content = self._content.get(blob, b"")
        found = [replay.values[key] for key in replay.under(layout.part_of(layout.blobs[blob]))]
        is_open = layout.uploads.pack((blob,))[len(layout.prefix) :] in replay.values
        if self._standing[content]:
            self.tally["times that an item had all of its data"] += 1
            if found != self._pieces[content][1]:
                self.broken(f"an item is there with {len(found)} pieces of {len(self._pieces[content][1])}", record)
            if is_open:
                self.broken(f"an item is there, and its upload {blob.hex()} has not ended", record)
        elif found and not is_open:
            self.broken(f"{len(found)} pieces of {blob.hex()} are there without an item and an upload", record)

    def end(self, replay: Replay) -> None:
        layout = replay.layout
        for space in (layout.blobs, layout.uploads, layout.uploads_until):
            if left := replay.under(layout.part_of(space)):
                self.broken(f"{len(left)} keys are left, such as {left[0]!r}")
        for call, told in self.claims.calls.items():
            if told.verb == "read":
                self.tally["data that were read"] += told.outcome == OK
                if told.answer.get("whole") is False:
                    self.broken(f"{call} read other data of {told.asked['of']} than were uploaded")
            if told.verb in ENDS:
                times = self._came[call]
                if times > 1 or (told.outcome == OK and not times) or (told.outcome == REFUSED and times):
                    self.broken(f"{call} enqueued {times} items, and was told {told.outcome}")
                self.tally["uploads refused, since they were swept"] += told.outcome == REFUSED
