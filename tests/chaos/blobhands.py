"""Processes of a round with blobs: they upload, read, sweep, and are interrupted at every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from fdbqueue import FormatError, Queue
from fdbqueue.layers.blobs import Blobs, BlobWriter
from fdbqueue.layers.leases import Lease, Leases
from fdbqueue.layers.oplog._oplog import calling
from tests.chaos.consumers import Taker
from tests.chaos.hand import Hand, Tools
from tests.chaos.history import OK, History
from tests.chaos.keepers import Keeper

UPLOAD_LEASES_S = (0.1, 0.1, 700.0)
"""Of uploads: over at the next pause, or longer than two clocks differ."""
SIZES = (0, 4_000, 990_000, 990_001, 1_100_000, 2_500_000, 3_100_000)
"""Up to 990,000 bytes need one transaction."""
PARTS = (90_000, 600_000, 3_000_000)
"""How many bytes one write has."""


def data_of(name: str, size: int) -> bytes:
    """Return the data that are uploaded under a name."""
    word = f"{name}|".encode()
    return (word * (size // len(word) + 1))[:size]


def item_of(name: str, size: int) -> bytes:
    """Return the value of the item that has these data."""
    return f"{name} {size}".encode()


def is_whole(item: bytes, data: bytes) -> bool:
    """Say whether these are the data of an item of that value."""
    name, _, size = item.decode().rpartition(" ")
    return data == data_of(name, int(size))


class Uploader(Hand):
    """Uploads blobs: to the end, in a transaction of its own, or not to the end."""

    VERBS: ClassVar[dict[str, int]] = {"upload": 8, "upload in mine": 3, "give up": 1, "leave": 2, "rest": 4}

    def upload(self) -> None:
        terms = self.dice.choice([{}, {}, {"delay": 0.3}, {"ttl": 5.0}])
        self._upload("upload", lambda out: out.commit(), **terms)

    def upload_in_mine(self) -> None:
        """End the upload beside a write of one's own, in one transaction that is tried once."""

        def end(out: BlobWriter) -> None:
            tr = self.db.create_transaction()
            tr.add(self.tools.own["uploads"], (1).to_bytes(8, "little"))
            out.commit(tr)
            tr.commit().wait()

        self._upload("upload in mine", end)

    def give_up(self) -> None:
        self._upload("give up", lambda out: out.abort())

    def leave(self) -> None:
        """Write the data, and never end the upload."""
        self._upload("leave", lambda out: None)

    def rest(self) -> None:
        time.sleep(self.dice.uniform(0, 0.3))

    def _upload(self, verb: str, end: Callable[[BlobWriter], Any], **terms: Any) -> None:
        name, size = self.name(), self.dice.choice(SIZES)
        blobs = Blobs(self.leases, lease=self.dice.choice(UPLOAD_LEASES_S), clock=self.tools.clock)

        def act() -> None:
            out, data, at = blobs.write(self.db, item_of(name, size), **terms), data_of(name, size), 0
            while at < size:
                at += out.write(data[at : at + self.dice.choice(PARTS)])
                if self.dice.random() < 0.1:
                    self.pause()
            end(out)

        self.call(verb, {"blob": name, "size_bytes": size}, act)


class Reader(Taker):
    """Leases items, reads their data, and ends the leases in all ways."""

    VERBS: ClassVar[dict[str, int]] = {
        "lease": 6,
        "lease many": 3,
        "staged lease": 4,
        "read": 12,
        "ack": 4,
        "ack newest": 4,
        "ack many": 3,
        "staged ack": 3,
        "ack in my transaction": 2,
        "nack": 3,
        "nack later": 1,
        "snooze": 1,
        "extend": 2,
    }

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self._blobs = Blobs(self.leases, clock=tools.clock)

    def read(self) -> None:
        lease = self._one()
        if lease is not None:
            self.call("read", {"of": lease.position.text}, lambda: read_whole(self.db, self._blobs, lease))


class BlobKeeper(Keeper):
    """Does what keepers do, and sweeps."""

    VERBS: ClassVar[dict[str, int]] = {**Keeper.VERBS, "sweep": 30}

    def sweep(self) -> None:
        blobs = Blobs(self.leases, clock=self.tools.clock)
        self.call("sweep", {}, lambda: {"count": blobs.sweep(self.db).swept})


def read_whole(db: Any, blobs: Blobs, lease: Lease) -> dict[str, Any]:
    """Read the data of an item, and tell whether they are all there."""
    try:
        with blobs.read(db, lease) as data:
            return {"whole": is_whole(lease.value, data.read())}
    except FormatError as error:
        return {"whole": False, "why": str(error)}


def drain_blobs(db: Any, leases: Leases, taken: list[Lease], history: History) -> None:
    """Read the data of items that the drain has taken."""
    for lease in taken:
        number = history.begin("read", {"of": lease.position.text})
        history.end(number, OK, read_whole(db, Blobs(leases), lease))


def sweep_all(db: Any, queue: Queue, history: History, clock: Callable[[], float]) -> None:
    """Remove what interrupted uploads left, as a process whose clock says that their leases are over."""
    number = history.begin("sweep", {})
    with calling(f"sweep#{number}"):
        Blobs(queue, clock=clock).sweep(db)
    history.end(number, OK, {})
