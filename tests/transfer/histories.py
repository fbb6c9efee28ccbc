"""Random histories of queues, and what a transfer must keep of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.layers import Leases
from fdbqueue.layers.priority import Levels
from fdbqueue.layers.streams import Stream, Terms

START = 1_700_000_000.0
VALUES = st.binary(max_size=20) | st.sampled_from([b"x" * 200_000, b'{"a": 1}', b'"\n"', b"caf\xc3\xa9", b"[1,\n2]"])
HEADERS = st.none() | st.dictionaries(
    st.sampled_from(["priority", "color", "é"]), st.integers(0, 2) | st.just(1), min_size=1, max_size=2
)
TERMS = st.fixed_dictionaries(
    {
        "delay": st.sampled_from([None, 0, 5.5, 1e6]),
        "ttl": st.sampled_from([None, 1e7]),
        "headers": HEADERS | st.just({"n": b"\x00", "f": 1.5}),
    }
)
STEPS = st.one_of(
    st.tuples(st.just("enqueue"), VALUES, TERMS),
    st.tuples(st.just("plain"), VALUES),
    st.tuples(st.just("lease"), st.integers(1, 3)),
    st.tuples(st.just("nack"), st.sampled_from([None, "no such user"]), st.sampled_from([None, 60.0])),
    st.tuples(st.just("claim"), st.integers(1, 2)),
    st.tuples(st.just("dequeue")),
    st.tuples(st.just("later"), st.sampled_from([1.0, 100.0])),
)
HISTORIES = st.lists(STEPS, max_size=25)


def queue_of(name: Any, *, ordered: bool = False) -> Queue[bytes]:
    """Return the queue of a history; an ordered one has levels by the header "priority"."""
    return Queue(name, order=Levels(3) if ordered else None)


def live(db: Any, queue: Queue[bytes], history: list[tuple[Any, ...]]) -> None:
    """Do what a history says."""
    now = [START]
    leases = Leases(queue, max_attempts=2, clock=lambda: now[0])
    held: list[Any] = []
    for what, *given in history:
        if what == "enqueue":
            leases.enqueue(db, given[0], **given[1])
        elif what == "plain":
            queue.enqueue(db, given[0])
        elif what == "lease":
            held += leases.lease_many(db, limit=given[0], duration=50)
        elif what == "nack" and held:
            leases.nack(db, held.pop(), error=given[0], delay=given[1])
        elif what == "claim":
            _claim(db, queue, given[0])
        elif what == "dequeue":
            queue.dequeue(db)
        elif what == "later":
            now[0] += given[0]
            held = [] if given[0] > 50 else held
        held = [lease for lease in held if lease.expires_at > now[0]]


def _claim(db: Any, queue: Queue[bytes], items: int) -> None:
    stream = Stream(queue, "s", clock=lambda: START)
    batch = (stream.record(db) or _Nothing).acked + 1
    stream.claim(db, Terms(epoch="e", batch=batch, run="", items=items, size_bytes=10_000_000))


class _Nothing:
    acked = 0


def kept(db: Any, queue: Queue[bytes], *, positions: bool = True) -> list[dict[str, Any]]:
    """Return what a transfer keeps of the items: everything, but items that somebody has become available."""
    rows: list[dict[str, Any]] = queue.to_arrow(db).to_pylist()
    for row in rows:
        if row["state"] in ("leased", "claimed"):
            row["state"] = "available"
        row["lease_expires_at"] = None
        if row["consumer"] == "s":
            row["consumer"] = None
        if not positions:
            row["position"] = row["index"] = None
    return rows
