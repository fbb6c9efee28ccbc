"""What a run writes beside its queue: how far it is, and what each process did.

A consumer adds what it took to its tally in the transaction that takes it out. Both take effect or neither does,
whatever kills the process and whenever; that is all there is to being exact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from fdbqueue import Queue, transactional
from fdbqueue.cli.demo.flights import DIGEST_BITS, Flights
from fdbqueue.engine import Subspace, Transaction

QUEUE = "fdbqueue-demo"
LOADER = "loader"
_space = Subspace(("fdbqueue-demo-results",))
_INPUT = _space.pack(("input",))
_LOADED = _space.pack(("loaded",))
_NEXT_ROW = _space.pack(("next row",))
_CHECKED = _space.pack(("checked",))
_tallies = _space["tally"]


@dataclass(frozen=True, slots=True)
class Tally:
    """What one process did, or several together."""

    items: int = 0
    digest: int = 0
    transactions: int = 0
    conflicts: int = 0
    retries: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.items + other.items,
            (self.digest + other.digest) % 2**DIGEST_BITS,
            self.transactions + other.transactions,
            self.conflicts + other.conflicts,
            self.retries + other.retries,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage of this run did."""

    name: str
    items: int
    seconds: float
    transactions: int
    conflicts: int
    retries: int
    restarts: int
    """How often a process was killed and started again."""


def the_queue() -> Queue:
    """Return the queue that the flights go through."""
    return Queue(QUEUE, codec="json")


@transactional
def begin(tr: Any, flights: Flights, loader: str, fresh: bool) -> str | None:
    """Begin a run, or take up one that did not finish; return the loader of the one taken up."""
    began = bytes(tr[_INPUT]) if tr[_INPUT].present() else b""
    job, _, its_loader = began.decode().partition(" ")
    if job == flights.job and not tr[_CHECKED].present() and not fresh:
        return its_loader
    the_queue().clear(tr)
    span = _space.range()
    tr.clear_range(span.start, span.stop)
    tr[_INPUT] = f"{flights.job} {loader}".encode()
    return None


def add(tr: Transaction, who: str, tally: Tally) -> None:
    """Add to a process' tally.

    By atomic addition, without a read: processes do not conflict over their tallies, and a transaction that is
    repeated after an unknown outcome adds exactly what that attempt took.
    """
    for field in fields(Tally):
        value: int = getattr(tally, field.name)
        if value:
            tr.add(_tallies.pack((who, field.name)), value.to_bytes(DIGEST_BITS // 8, "little"))


@transactional
def tallies(tr: Any) -> dict[str, Tally]:
    """Return every process' tally."""
    numbers: dict[str, dict[str, int]] = {}
    span = _tallies.range()
    for row in tr.get_range(span.start, span.stop):
        who, name = _tallies.unpack(row.key)
        numbers.setdefault(who, {})[name] = int.from_bytes(row.value, "little")
    return {who: Tally(**its) for who, its in numbers.items()}


@transactional
def next_row(tr: Any) -> int:
    """Return how many rows the plain loader has enqueued; a read that conflicts with another plain loader."""
    value = tr[_NEXT_ROW]
    return int.from_bytes(bytes(value), "little") if value.present() else 0


def set_next_row(tr: Transaction, row: int) -> None:
    tr.set(_NEXT_ROW, row.to_bytes(8, "little"))


@transactional
def set_loaded(tr: Any) -> None:
    """Say that everything is in."""
    tr[_LOADED] = b""


@transactional
def is_loaded(tr: Any) -> bool:
    """Say whether everything is in."""
    found: bool = tr[_LOADED].present()
    return found


@transactional
def set_checked(tr: Any) -> None:
    """Say that the run is done, so that the next one begins anew."""
    tr[_CHECKED] = b""
