"""Random transactions against a brute-force oracle that says exactly which commits fail.

As in FoundationDB's own ConflictRange workload, transactions get explicit conflict ranges; the oracle keeps every
committed write range with its place in the order of commits and looks at each of them. A commit that fails without a
reason is as wrong as one that does not fail although it must.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine import KeySelector, Subspace
from tests.helpers.conflicting import conflicts

SLOTS = 4
NAMES = [b"a", b"a\x00", b"b", b"c", b"c\x00", b"c\x00\x00", b"d", b"e" * 600, b"e" * 600 + b"\x00", b"f"]
Range = tuple[bytes, bytes]
Step = tuple[Any, ...]


@dataclass
class Footprint:
    """What one open transaction has read and written, and how many had committed when it began."""

    began: int | None = None
    reads: list[Range] = field(default_factory=list)
    writes: list[Range] = field(default_factory=list)


class Oracle:
    """All write ranges ever committed, in order, one list per commit."""

    def __init__(self) -> None:
        self.committed: list[list[Range]] = []

    def conflicts(self, footprint: Footprint) -> bool:
        if footprint.began is None or not footprint.writes:
            return False
        later = [written for writes in self.committed[footprint.began :] for written in writes]
        return any(_overlap(read, written) for read in footprint.reads for written in later)


def _overlap(one: Range, other: Range) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


class Interleaving:
    """Four open transactions on a real database, and what the oracle knows of them."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self._db = db
        self._prefix = space.key()
        self._oracle = Oracle()
        self._slots = [(db.create_transaction(), Footprint()) for _ in range(SLOTS)]

    def take(self, step: Step) -> None:
        slot, op, *names = step
        tr, footprint = self._slots[slot]
        keys = sorted(self._prefix + name for name in names)
        getattr(self, f"_{op}")(slot, tr, footprint, *keys)

    def _begin(self, tr: Any, footprint: Footprint) -> None:
        if footprint.began is None:
            tr.get_read_version().wait()
            footprint.began = len(self._oracle.committed)

    def _read_range(self, _slot: int, tr: Any, footprint: Footprint, begin: bytes, end: bytes) -> None:
        self._begin(tr, footprint)
        tr.add_read_conflict_range(begin, end)
        footprint.reads.append((begin, end))

    def _read_key(self, _slot: int, tr: Any, footprint: Footprint, key: bytes, _end: bytes) -> None:
        self._begin(tr, footprint)
        tr.add_read_conflict_key(key)
        footprint.reads.append((key, key + b"\0"))

    def _scan(self, _slot: int, tr: Any, footprint: Footprint, begin: bytes, end: bytes) -> None:
        """Read a range that holds nothing, so that all of it was read."""
        self._begin(tr, footprint)
        selectors = KeySelector.first_greater_or_equal(begin), KeySelector.first_greater_or_equal(end)
        assert tr.get_range(*selectors).to_list() == []
        footprint.reads.append((begin, end))

    def _look(self, _slot: int, tr: Any, footprint: Footprint, begin: bytes, end: bytes) -> None:
        """Read through a snapshot, which leaves no mark."""
        self._begin(tr, footprint)
        tr.snapshot.get_range(begin, end).to_list()

    def _write_range(self, _slot: int, tr: Any, footprint: Footprint, begin: bytes, end: bytes) -> None:
        tr.add_write_conflict_range(begin, end)
        if begin < end:
            footprint.writes.append((begin, end))

    def _write_key(self, _slot: int, tr: Any, footprint: Footprint, key: bytes, _end: bytes) -> None:
        tr.add_write_conflict_key(key)
        footprint.writes.append((key, key + b"\0"))

    def _commit(self, slot: int, tr: Any, footprint: Footprint, *_: bytes) -> None:
        expected = self._oracle.conflicts(footprint)
        assert conflicts(tr) is expected, footprint
        if not expected and footprint.writes:
            self._oracle.committed.append(footprint.writes)
        self._slots[slot] = self._db.create_transaction(), Footprint()


steps = st.tuples(
    st.integers(0, SLOTS - 1),
    st.sampled_from(["read_range", "read_key", "scan", "look", "write_range", "write_range", "write_key", "commit"]),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
)


@given(program=st.lists(steps, min_size=4, max_size=60))
def test_commits_fail_exactly_as_the_oracle_predicts(db: Any, space: Subspace, program: list[Step]) -> None:
    interleaving = Interleaving(db, space)
    for step in program:
        interleaving.take(step)
    for slot in range(SLOTS):
        interleaving.take((slot, "commit"))
