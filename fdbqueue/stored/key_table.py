"""LEVEL 1: every key that the library writes, in one table.

All keys of a queue are under its subspace, so that clearing the subspace clears the queue. An item's key continues with
an integer there. All other keys continue with a string, which sorts apart from the integers. The high-water mark is
the exception: it sorts behind the items.

An item's position is ``(index, random)``, or ``(rank, index, random)`` in a queue with its own order (`order.py`). The
table shows the first form; the second may replace it. A packed position shows which form it has, so that only an
enqueue needs to know the order. (docs/adr/0060)

The table of keys is the class `KeyTable` itself: one row for each attribute, and `OTHERS` for the keys that a layer
makes by itself. A row names the parts of a key behind the queue's, the stored value, and its writer. The items' own row
is ``(index, random)``, the item envelope (`items.py`), written by an enqueue.

An operation log has its own subspace, apart from its queue: ``(log, versionstamp)`` (`layers/oplog`).

The catalogue has one key for each queue, outside all queues: `CATALOGUE`, and then the queue's prefix (`catalogue.py`).
It begins with a byte that begins no tuple and no directory. So do the commit markers of `transactional` functions:
`TRANSACTIONS`, client and slot (`engine/transactional.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from fdbqueue.engine.keys import Elements, Subspace, is_within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.stored.positions import AFTER_INTEGERS, FIRST_INTEGER, Place, is_packed
from fdbqueue.stored.shapes import Shape

T = TypeVar("T")

_TRUE = b"\x27"  # type code of True


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of keys."""

    parts: Elements
    """What follows the queue's part in these keys."""
    rest: str
    """What follows these parts: names of parts in `shapes.py`."""
    value: str
    """What is stored there."""
    by: str
    """Who writes it."""
    make: Callable[[bytes], Any] = bytes
    """Makes the attribute of the keys' prefix."""
    packed: bytes = field(init=False)
    """The parts, packed."""
    shape: Shape = field(init=False)
    """Reads what follows these parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "packed", fdb_tuple.pack(self.parts))
        object.__setattr__(self, "shape", Shape(self.rest))


def _place(parts: Elements, rest: str, value: str, by: str) -> Place:
    return cast(Place, Row(parts, rest, value, by, Place))


def _space(parts: Elements, rest: str, value: str, by: str) -> Subspace:
    return cast(Subspace, Row(parts, rest, value, by, partial(Subspace, ())))


def _key(parts: Elements, rest: str, value: str, by: str) -> bytes:
    return cast(bytes, Row(parts, rest, value, by))


class KeyTable:
    """The keys of one queue: an attribute for each row, which is made when it is first asked for."""

    prefix: bytes
    """The queue's part of its keys."""

    leased = _place(("lease",), "index, random", "the envelope of an item that is leased", "layers/leases")
    delayed = _place(
        ("delay",),
        "index, random",
        "the envelope of an item that waits for its time or for another item",
        "layers/leases",
    )
    dead = _place(("dead",), "index, random", "the envelope of a dead letter", "layers/leases")
    claims = _space(
        ("claim",), "stream, batch, index, random", "the envelope of an item in a stream's batch", "layers/streams"
    )
    timers = _space(
        ("timer",), "at_us, index, random, kind", "empty; the end of its lease, delay, life or outcome", "layers"
    )
    groups = _space(("group",), 'group, "record"', "a group's record", "ends.py")
    completions = _place(("completion",), "index, random", "what became of the item, for its completion", "ends.py")
    chunks = _space(("chunk",), "index, random, n", "the n-th piece of a payload over 90,000 bytes", "enqueue")
    # It sorts behind the items, so that one read of the last key shows whether there is a mark.
    high_water_mark_key = _key(
        (True,), "", "the high-water mark: indices up to it are not given again; and the queue's order", "layers"
    )
    level_counts = _space(
        ("level",), "rank", "8 bytes as a count: available items of a rank below 256", "all that move items"
    )
    counts = _space(
        ("count",), "counter", "8 bytes, little-endian, by atomic adds", "everything that changes an item's state"
    )
    requests = _space(
        ("request",), "versionstamp", "how many items a process waits for, and until when", "layers/staged"
    )
    grants = _space(("grant",), "client", "the leases that other processes took for a request", "layers/staged")
    # It sorts behind the high-water mark. An enqueue reads both together. A call that needs no mark does not read it.
    subscribed_key = _key(
        (True, "subscribed"), "", "there are subscriptions: empty, or the name of the sole one", "layers/subscriptions"
    )
    # It sorts behind both, where an older version's read of the last key does not meet it.
    type_key = _key((True, "type"), "", '"smart", a quota, or the mark of a rename', "settings.py")
    subscriptions = _space(("subscription",), "subscription", "its selector, credit and owner", "layers/subscriptions")
    pointers = _space(
        ("pointer",), "subscription or dispatcher", "the spans that it has yet to look at", "layers/subscriptions"
    )
    held = _space(
        ("held",), "subscription, index, random", "bytes of an item that its consumers have", "layers/subscriptions"
    )
    returned = _space(
        ("returned",),
        "subscription",
        "counts the transactions in which items left its consumers",
        "layers/subscriptions",
    )
    arrivals = _space(("arrival",), "versionstamp, first, last", "empty; items became available there", "moves.py")
    arriving = _key(("arriving",), "index, random", "never written: conflict ranges only", "moves.py")
    waiting = _space(
        ("waiting",), "versionstamp", "a consumer of a subscription waits, until when", "layers/subscriptions"
    )
    served_key = _key(("served",), "", "the subscription that got the last immediate delivery", "layers/subscriptions")
    trimmed_key = _key(
        ("trimmed",), "", "the version up to which arrivals may be missing, by byte_max", "layers/subscriptions"
    )
    trimming_key = _key(
        ("trimming",), "", "8 bytes: the last time that a process looked for old arrivals", "layers/subscriptions"
    )
    markers = _space(
        ("once",), "client, slot", "commit marker of that slot's last transaction", "self-committing calls"
    )
    smart = _space(
        ("smart",), "type, key, index, random", "empty; an item of this type and relation key is there", "layers/smart"
    )
    deadlines = _space(
        ("deadline",),
        "stage, at_us, index, random",
        'empty; when it should be gone; a stage is "near" or "missed"',
        "layers/smart",
    )
    missed = _space(
        ("missed",), "until_us, at_us, index, random", "empty; a missed deadline while its handler runs", "layers/smart"
    )
    alarm_key = _key(
        ("alarm",), "", "8 bytes, by atomic adds: changes with each deadline that is set; watched", "layers/smart"
    )
    recipients_key = _key(("recipients",), "", "names and numbers of the recipients", "layers/smart")
    copies = _space(
        ("copy",), "number, index, random", "empty; an item that the recipient has still to confirm", "layers/smart"
    )
    unsent = _space(
        ("unsent",),
        "number, index, random",
        'an item that the recipient has still to fetch; "again" after a reset',
        "layers/smart",
    )
    fetched = _space(
        ("fetched",),
        "number",
        'copies that the recipient fetched, not confirmed: one position, or "several"',
        "layers/smart",
    )
    resent_key = _key(
        ("resent",), "", "8 bytes, by atomic adds: changes when copies are to be fetched again; watched", "layers/smart"
    )
    blobs = _space(("blob",), "id, n", "the n-th piece of an item's blob", "layers/blobs")
    uploads = _space(
        ("upload", "open"), "id", "empty; a blob is being written, and its item is not enqueued yet", "layers/blobs"
    )
    uploads_until = _space(
        ("upload", "until"),
        "id",
        "8 bytes, little-endian: until when nothing may sweep it, in microseconds",
        "layers/blobs",
    )
    streams = _space(("stream",), "stream", "how far the stream is, and who reads it", "layers/streams")
    claimed_chunks = _space(
        ("claimed chunks",), "stream, batch, index, random", "empty; the item of a batch is in chunks", "layers/streams"
    )
    claimed_tracked = _space(
        ("claimed tracked",),
        "stream, batch, index, random",
        "notes of an item whose end the ack tells somebody",
        "layers/streams",
    )
    sinks = _space(
        ("sink",), "stream", "the last batch of a stream into the queue, and the one that is decided", "Spark's sink"
    )
    jobs = _space(
        ("job",), "job", "a bulk job's record: what it is and, once it is committed, its report", "Spark's sink"
    )
    imports = _space(("import",), "name", "how far an import or a copy into the queue is", "fdbqueue.transfer")
    # Between the requests and the items: a staged dequeue that expects no other process sees it there.
    paused_key = _key(("stopped",), "", "who paused the queue, when and why; or the mark of a rename", "settings.py")
    agents = _space(("agent",), "agent", "the lease that an agent's lock has, and when it was to end", "agent servers")


TABLE = {name: row for name, row in vars(KeyTable).items() if isinstance(row, Row)}
"""The rows of the table, by attribute."""
OTHERS = (
    Row(("timer",), 'at_us, 0, client, "grant"', "empty; until then the client takes a grant", "layers/leases"),
    Row(("timer",), "at_us, 0, group, kind of a group", "empty; when a group's hold or time ends", "ends.py"),
    Row(("group",), 'group, "cursor"', "where the sweep of a cancelled group goes on", "ends.py"),
    Row(("group",), 'group, "member", index, random', "empty; a member that has not ended", "ends.py"),
    Row(("group",), 'group, "hold", id', "8 bytes: until when it holds the group open", "ends.py"),
    Row(("group",), 'group, "count", state of a member', "8 bytes, by atomic adds: its members in a state", "ends.py"),
    Row(("session",), "session", "its record: where its pointer is, whether it is paused, …", "layers/sessions"),
    Row(("items",), "session, generation, key of a queue", "a session's items, a level for a rank", "layers/sessions"),
    Row(("line",), "key of a queue", "the line of ready sessions, whose items are pointers", "layers/sessions"),
    Row(("lines",), "shard, key of a queue", "the line's former shards, as the line", "versions up to 0.2.0"),
    Row(("lines", "number"), "", "how many shards there were; 255: they are joined", "layers/sessions"),
    Row(
        ("slot",),
        "session, generation, 8 bytes",
        "where a slot of a session is in the line, and which item it holds",
        "layers/sessions",
    ),
    Row(("gate", "limit"), "gate", "a limit that sessions share, and how many slots are taken", "layers/sessions"),
    Row(("gate", "surplus"), "gate", "8 bytes: how many slots are too many", "layers/sessions"),
    Row(("gate", "waiting"), "gate", "8 bytes, by atomic adds: the pointers that wait there", "layers/sessions"),
    Row(("gate", "line"), "gate, index, random", "a pointer that waits at the gate", "layers/sessions"),
    Row(("state",), "", "the codec of the states", "layers/sessions"),
    Row(("state",), "session", "its state", "layers/sessions"),
    Row(("summed",), "name, shard", "8 bytes, by atomic adds: a total of all sessions", "layers/sessions"),
    Row(("stream",), 'stream, "batch", batch', "what a batch has, until it is acked", "layers/streams"),
    Row(("stream",), 'stream, "seen"', "8 bytes: when its reader was last seen", "layers/streams"),
    Row(("sink",), "stream, query, batch, token, part, n", "rows that wait for their batch's commit", "Spark's sink"),
    Row(("sink",), 'stream, query, batch, "log", "owner", partition', "the attempt that may write", "Spark's sink"),
    Row(("sink",), 'stream, query, batch, "log", "rows", partition', "counts rows and transactions", "Spark's sink"),
    Row(
        ("sink",), 'stream, query, batch, "log", "mark", partition, n', "which rows a transaction wrote", "Spark's sink"
    ),
    Row(("job",), 'job, "owner", partition', "the attempt that may write", "Spark's sink"),
    Row(("job",), 'job, "rows", partition', "counts rows and transactions", "Spark's sink"),
    Row(("job",), 'job, "mark", partition, n', "which rows a transaction wrote", "Spark's sink"),
    Row(("job",), 'job, "held", submission, token, type, number, n', "rows that are stored aside", "Spark's sink"),
    Row(("schedule",), "schedule", "JSON: when a task is enqueued, its next and its last tick", "layers/schedules"),
    Row(
        ("rate",),
        "bucket",
        "8 bytes: when a token bucket is full again, in microseconds",
        "layers/middleware/token_bucket.py",
    ),
)
"""The rows of keys that have no attribute, since a layer makes them."""


def _first_element(tail: bytes) -> bytes:
    """Return the packed element that a key begins with: True, or a text without a NUL."""
    return tail[:1] if tail[:1] == _TRUE else tail[: tail.find(0) + 1]


@dataclass(frozen=True, slots=True)
class Family:
    """All keys with the same first parts."""

    packed: bytes
    """These parts, packed."""
    shapes: tuple[Shape, ...]
    """What may follow."""

    def parts(self, tail: bytes) -> Elements | None:
        """Return what follows the first parts in a key; None if it is foreign."""
        for shape in self.shapes:
            parts = shape.parts(tail)
            if parts is not None and (not shape.is_nested or is_own(parts[-1])):
                return parts
        return None


def _families() -> dict[str, Family]:
    by_parts: dict[Elements, list[Shape]] = {}
    for row in (*TABLE.values(), *OTHERS):
        by_parts.setdefault(row.parts, []).append(row.shape)
    made = {parts: Family(fdb_tuple.pack(parts), tuple(shapes)) for parts, shapes in by_parts.items()}
    return {"/".join(map(str, parts)): one for parts, one in made.items()} | {
        name: made[row.parts] for name, row in TABLE.items()
    }


FAMILIES = _families()
"""The families of keys, by their attributes, and by their first parts."""
_BY_BEGIN: dict[bytes, list[Family]] = {}
"""The families, by the packed element that their keys begin with."""
for _family in {family.packed: family for family in FAMILIES.values()}.values():
    _BY_BEGIN.setdefault(_first_element(_family.packed), []).append(_family)


def is_own(tail: bytes) -> bool:
    """Return whether the table has a key. Any other key below a queue's name is foreign.

    Args:
        tail: what follows the queue's prefix in the key.

    >>> from fdbqueue import Position
    >>> from fdbqueue.lowlevel import fdb_tuple, pack
    >>> is_own(pack(Position(7, b"random"))), is_own(fdb_tuple.pack(("count", "dead"))), is_own(b"\\x02count")
    (True, True, False)
    """
    if FIRST_INTEGER <= tail[:1] < AFTER_INTEGERS:
        return is_packed(tail)
    return any(
        is_within(tail, family.packed) and family.parts(tail[len(family.packed) :]) is not None
        for family in _BY_BEGIN.get(_first_element(tail), ())
    )
