"""The results of a run, beside its queue: its progress, and a tally of each process.

A consumer adds its items to its tally in the transaction that takes them out. Both take effect or neither does,
whenever the process is killed. Exactness needs no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from examples.demo.flights import DIGEST_BITS, Flights
from fdbqueue import Queue, transactional
from fdbqueue.engine import Subspace, Transaction

LOADER = "loader"


@dataclass(frozen=True, slots=True)
class Tally:
    """The tally of one process, or of several together."""

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


class Results:
    """A run's queue, and the keys beside it.

    Args:
        name: the queue's name; the results are under the same name with ``-results`` appended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = Queue(name, codec="json")
        self._space = Subspace((f"{name}-results",))
        self._input = self._space.pack(("input",))
        self._loaded = self._space.pack(("loaded",))
        self._next_row = self._space.pack(("next row",))
        self._checked = self._space.pack(("checked",))
        self._tallies = self._space["tally"]

    @transactional
    def begin(self, tr: Any, flights: Flights, loader: str, fresh: bool) -> str | None:
        """Begin a run, or continue one that did not finish. Return the loader of the continued run."""
        began = tr[self._input]
        job, _, its_loader = (bytes(began) if began.present() else b"").decode().partition(" ")
        if job == flights.job and not tr[self._checked].present() and not fresh:
            return its_loader
        self.queue.clear(tr)
        span = self._space.range()
        tr.clear_range(span.start, span.stop)
        tr[self._input] = f"{flights.job} {loader}".encode()
        return None

    def add(self, tr: Transaction, who: str, tally: Tally) -> None:
        """Add to a process's tally.

        It uses atomic additions without a read, so processes do not conflict over their tallies. After an unknown
        outcome, a repeated transaction adds exactly the items that its last attempt took.
        """
        for field in fields(Tally):
            value: int = getattr(tally, field.name)
            if value:
                tr.add(self._tallies.pack((who, field.name)), value.to_bytes(DIGEST_BITS // 8, "little"))

    @transactional
    def tallies(self, tr: Any) -> dict[str, Tally]:
        """Return every process's tally."""
        numbers: dict[str, dict[str, int]] = {}
        span = self._tallies.range()
        for row in tr.get_range(span.start, span.stop):
            who, name = self._tallies.unpack(row.key)
            numbers.setdefault(who, {})[name] = int.from_bytes(row.value, "little")
        return {who: Tally(**its) for who, its in numbers.items()}

    @transactional
    def next_row(self, tr: Any) -> int:
        """Return how many rows the plain loader has enqueued. The read conflicts with another plain loader."""
        value = tr[self._next_row]
        return int.from_bytes(bytes(value), "little") if value.present() else 0

    def set_next_row(self, tr: Transaction, row: int) -> None:
        tr.set(self._next_row, row.to_bytes(8, "little"))

    @transactional
    def set_loaded(self, tr: Any, tally: Tally | None = None) -> None:
        """Record that all flights are in. Add the tally of a loader that kept none while it ran."""
        if tr[self._loaded].present():
            return  # after an unknown outcome this call may run again although it had taken effect
        tr[self._loaded] = b""
        self.add(tr, LOADER, tally or Tally())

    @transactional
    def is_loaded(self, tr: Any) -> bool:
        """Return whether all flights are in."""
        found: bool = tr[self._loaded].present()
        return found

    @transactional
    def set_checked(self, tr: Any) -> None:
        """Record that the run is done, so that the next run begins from the start."""
        tr[self._checked] = b""
