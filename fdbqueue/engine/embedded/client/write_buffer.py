"""The uncommitted writes of a transaction: its read-your-writes map.

Every key is in exactly one state. A range read iterates over the map as *segments* of these states:

- *unmodified*: the snapshot has the value.
- *cleared*: a range without values.
- *written*: one key with its operations. An *independent* write is known without the snapshot. A *dependent* write
  starts with an atomic operation on a value that only the snapshot has, so reading it adds a read conflict. Reading
  an independent write or a cleared key adds none.

A key may also be *unreadable* (1036), because its value or its existence depends on a versionstamp.

A plain ``set`` costs one dictionary store. The keys are sorted when a range read first needs their order.
The rules for folding operations follow FoundationDB's client (``WriteMap`` in its sources). A program therefore reads
its own atomic operations as on a cluster.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from fdbqueue.engine.embedded.store.commit.atomics import (
    CLEAR_RANGE,
    INDEPENDENT,
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    VERSIONSTAMPED,
    Mutation,
    Point,
    Stack,
    emit,
)
from fdbqueue.engine.embedded.store.commit.request import PutRows

# A set of keys, stored as sorted, disjoint, half-open intervals that never touch.

Range = tuple[bytes, bytes]


class Intervals:
    """A set of keys with operations on ranges.

    >>> keys = Intervals([(b"a", b"c"), (b"c", b"d")])
    >>> keys.remove(b"b", b"b\\x00")
    >>> list(keys)
    [(b'a', b'b'), (b'b\\x00', b'd')]
    >>> b"b" in keys, keys.meets(b"b", b"c"), list(keys.clip(b"", b"b"))
    (False, True, [(b'a', b'b')])

    *Cost:* a search is logarithmic in the number of intervals. A change moves the intervals behind it.
    """

    __slots__ = ("begins", "ends")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.begins: list[bytes] = []
        self.ends: list[bytes] = []
        if ranges:
            for begin, end in ranges:
                self.add(begin, end)

    def __bool__(self) -> bool:
        return bool(self.begins)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.begins, self.ends, strict=True)

    def __repr__(self) -> str:
        return f"Intervals({list(self)!r})"

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.begins, key) - 1
        return at >= 0 and key < self.ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add every key of ``[begin, end)``."""
        if begin >= end:
            return
        begins, ends = self.begins, self.ends
        if not ends or begin > ends[-1]:
            begins.append(begin)
            ends.append(end)
            return
        first = bisect_left(ends, begin)  # the first interval that reaches `begin`
        last = bisect_right(begins, end)  # the first interval that starts behind `end`
        if first < last:
            begin = min(begin, begins[first])
            end = max(end, ends[last - 1])
        begins[first:last] = [begin]
        ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove every key of ``[begin, end)``."""
        begins, ends = self.begins, self.ends
        first = bisect_right(ends, begin)
        last = bisect_left(begins, end)
        if first >= last or begin >= end:
            return
        kept = [
            part
            for part in (
                (begins[first], min(begin, ends[first])),
                (max(end, begins[last - 1]), ends[last - 1]),
            )
            if part[0] < part[1]
        ]
        begins[first:last] = [part[0] for part in kept]
        ends[first:last] = [part[1] for part in kept]

    def meets(self, begin: bytes, end: bytes) -> bool:
        """Return whether any key of ``[begin, end)`` is in the set."""
        at = bisect_right(self.ends, begin)
        return at < len(self.begins) and self.begins[at] < end

    def end_of(self, key: bytes) -> bytes:
        """Return the end of the interval that holds `key`, or `key` if none does."""
        at = bisect_right(self.begins, key) - 1
        return self.ends[at] if at >= 0 and key < self.ends[at] else key

    def begin_of(self, key: bytes) -> bytes:
        """Return the begin of the interval that holds the keys right before `key`, or `key` if none does."""
        at = bisect_left(self.begins, key) - 1
        return self.begins[at] if at >= 0 and key <= self.ends[at] else key

    def clip(self, begin: bytes, end: bytes) -> Iterator[Range]:
        """Yield the set's intervals inside ``[begin, end)``, cut at its ends."""
        at = bisect_right(self.ends, begin)
        while at < len(self.begins) and self.begins[at] < end:
            yield max(begin, self.begins[at]), min(end, self.ends[at])
            at += 1

    def gaps(self, begin: bytes, end: bytes) -> Iterator[Range]:
        """Yield the parts of ``[begin, end)`` that are not in the set."""
        for low, high in self.clip(begin, end):
            if begin < low:
                yield begin, low
            begin = high
        if begin < end:
            yield begin, end


ABSENT: Final = object()
_FEW: Final = 32
MANY: Final = 16
"""The number of points from which the commit gets plain sets as rows. Fewer are fast enough one by one."""


_NONE: Final = Intervals()


class WriteBuffer:
    """The uncommitted writes of one transaction."""

    # Class attributes hold empty values that never change: creating a map must be cheap, as each transaction has one.
    clears: Intervals = _NONE
    unreadable: Intervals = _NONE
    conflicts: Intervals = _NONE
    """Write conflict ranges, in addition to the keys in `points` that are not in `quiet`."""
    dead: Intervals = _NONE
    """Ranges without rows, own or in the snapshot: a read has found this. Keys that were set since are still in them
    (`dead_end`), so that a set stays cheap, and reads skip only up to the next such key."""
    edges: list[bytes]
    """Begins and ends of the ranges of `add_conflict`. FoundationDB's client counts by them."""
    quiet: set[bytes]
    stamped: list[Range]
    """Ranges that may get versionstamped keys."""
    early: list[Mutation]
    """Mutations that the commit applies before all others: see `make_unreadable`."""
    edges, quiet, stamped, early = [], set(), [], []
    hushed: bool
    """Whether any write has no write conflict."""
    empty: bool
    plain: bool
    """Whether all writes are sets and clears of keys with write conflicts. A set is then one store into `points`."""
    ranged: bool
    """Whether there is more than single keys with write conflicts: cleared ranges, unreadable ones, quiet keys."""

    def __init__(self) -> None:
        self.points: dict[bytes, Point] = {}
        self._keys: list[bytes] = []
        self.empty = self.plain = True
        self.ranged = self.hushed = False

    def _prepare(self) -> None:
        """Create the collections that start as shared empty ones of the class."""
        self.ranged = True
        self.clears, self.conflicts = Intervals(), Intervals()
        self.edges, self.quiet, self.stamped, self.early = [], set(), [], []

    # -- lookups -------------------------------------------------------------------------------------------------

    def ordered(self) -> list[bytes]:
        """Return the written keys in order. The list is the map's own."""
        known, points = self._keys, self.points
        if not known:
            known += points
            known.sort()
        elif len(known) != len(points):
            # A dictionary keeps the order of insertion. The copy is atomic: another thread may be writing.
            before, count = len(known), len(points)
            new = list(islice(reversed(points), count - before))
            if len(points) != count:  # so the last ones may not be all
                new = list(points)[before:]
            if len(new) <= _FEW < len(known):
                for key in new:
                    insort(known, key)
            else:
                known += new
                known.sort()
        return known

    def touches(self, begin: bytes, end: bytes) -> bool:
        """Return whether any key of ``[begin, end)`` is written, cleared or unreadable."""
        if self.points:
            keys = self.ordered()
            at = bisect_left(keys, begin)
            if at < len(keys) and keys[at] < end:
                return True
        return self.ranged and (self.clears.meets(begin, end) or self.unreadable.meets(begin, end) or bool(self.edges))

    def count(self, begin: bytes, end: bytes) -> int:
        """Return the number of written keys in ``[begin, end)``."""
        keys = self.ordered()
        return bisect_left(keys, end) - bisect_left(keys, begin)

    def undetermined(self, begin: bytes, end: bytes) -> Iterator[Range]:
        """Yield the parts of ``[begin, end)`` whose contents depend on the snapshot."""
        keys, points = self.ordered(), self.points
        at = begin
        own = keys[bisect_left(keys, begin) : bisect_left(keys, end)]
        for key in own:
            yield from self._uncleared(at, key)
            after = key + b"\0"
            point = points[key]
            if type(point) is Stack and point.dependent:
                yield key, after
            at = after
        yield from self._uncleared(at, end)

    def _uncleared(self, begin: bytes, end: bytes) -> Iterator[Range]:
        if begin >= end:
            return
        for cleared, until in self.clears.clip(begin, end):
            if begin < cleared:
                yield from self._split(begin, cleared)
            begin = until
        if begin < end:
            yield from self._split(begin, end)

    def _split(self, begin: bytes, end: bytes) -> Iterator[Range]:
        edges = self.edges
        if not edges and not self.unreadable:
            yield begin, end
            return
        inside = {cut for cut in chain(edges, self.unreadable.begins, self.unreadable.ends) if begin < cut < end}
        for cut in sorted(inside):
            yield begin, cut
            begin = cut
        yield begin, end

    # -- changes -------------------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes, conflict: bool) -> None:
        """Set `key`. With `conflict`, readers of the key conflict with this transaction."""
        if self.plain and conflict:
            self.points[key] = value
            self.empty = False
        elif conflict and not self.unreadable.begins and type(self.points.get(key)) is not Stack:
            self.quiet.discard(key)
            self.points[key] = value  # the buffer is not `plain`, so it is not empty
        else:
            self.mutate(SET, key, value, conflict)

    def mutate(self, op: int, key: bytes, param: bytes, conflict: bool) -> None:
        """Apply operation number `op` to `key`. A versionstamped key still has its placeholder."""
        points = self.points
        if not self.ranged:
            if conflict and op not in VERSIONSTAMPED and key not in points:
                points[key] = param if op == SET else Stack([(op, param)])
                self.empty = self.plain = False
                return
            self._prepare()
        point = points.get(key, ABSENT)
        if conflict:
            self.quiet.discard(key)
        else:
            self._hush(key, point)
        self.empty = self.plain = False
        was_unreadable = self.is_unreadable(key)
        unreadable = was_unreadable or op in VERSIONSTAMPED
        independent = op in INDEPENDENT
        if isinstance(point, Stack):
            if not was_unreadable and op in (SET, SET_VERSIONSTAMPED_VALUE):
                points[key] = param if op == SET else Stack([(op, param)], True)
                return
            point.unreadable = unreadable
            if unreadable:
                point.ops.append((op, param))
            else:
                point.fold(op, param)
            return
        if type(point) is bytes and not independent:
            stack = Stack([(SET, point)])
            stack.fold(op, param)
            points[key] = stack
        elif not independent and (point is None or (point is ABSENT and key in self.clears)):
            stack = Stack([(SET, None)], unreadable)
            stack.fold(op, param)
            points[key] = stack
        elif type(point) is bytes and op == SET_VERSIONSTAMPED_KEY:
            points[key] = Stack([(SET, point), (op, param)], True)
        elif op == SET and not unreadable:
            points[key] = param
        else:
            points[key] = Stack([(op, param)], unreadable)

    def clear(self, key: bytes, conflict: bool) -> None:
        """Clear one key."""
        if not self.ranged and not conflict:
            self._prepare()
        if self.dead:
            self.revive(key)
        if conflict:
            if self.quiet:
                self.quiet.discard(key)
        else:
            self._hush(key, self.points.get(key, ABSENT))
            self.plain = False
        self.points[key] = None
        self.empty = False

    def clear_range(self, begin: bytes, end: bytes, conflict: bool) -> None:
        """Clear ``[begin, end)``."""
        if not self.ranged:
            self._prepare()
        self.empty = False
        gone = self._take(begin, end) if self.points else []
        if self.edges:
            self._forget_edges(begin, end)
        if conflict:
            self.conflicts.add(begin, end)
        else:
            self.hushed = True
            self._keep_conflicts(gone)
        self.quiet.difference_update(gone)
        self.clears.add(begin, end)
        if self.unreadable.begins:
            self.unreadable.remove(begin, end)

    def make_unreadable(self, begin: bytes, end: bytes, readable: bool = False) -> None:
        """Record that the commit writes a versionstamped key somewhere in ``[begin, end)``.

        Earlier writes in the range are applied before that key, and can't be read any more. With `readable`, the
        range stays readable.
        """
        if not self.ranged:
            self._prepare()
        self.stamped.append((begin, end))
        if readable:
            return
        self.plain = False
        if self.dead:
            self.dead.remove(begin, end)
        for at, until in self.clears.clip(begin, end):
            self.early.append((CLEAR_RANGE, at, until))
        gone = self._take(begin, end, self.early)
        if not self.unreadable:
            self.unreadable = Intervals()
        self._forget_edges(begin, end)
        self._keep_conflicts(gone)
        self.quiet.difference_update(gone)
        self.clears.remove(begin, end)
        self.unreadable.add(begin, end)

    def add_conflict(self, begin: bytes, end: bytes) -> None:
        """Add a write conflict on ``[begin, end)`` without a write."""
        if not self.ranged:
            self._prepare()
        for edge in (begin, end):
            if edge not in self.conflicts:
                insort(self.edges, edge)
        self.conflicts.add(begin, end)
        self.empty = False

    def write_early(self, op: int, key: bytes, param: bytes, conflict: bool) -> None:
        """Add a mutation that no read of the transaction sees."""
        if not self.ranged:
            self._prepare()
        self.early.append((op, key, param))
        if conflict:
            self.conflicts.add(key, param if op == CLEAR_RANGE else key + b"\0")
        else:
            self.hushed = True
        self.empty = False

    def found_nothing(self, begin: bytes, end: bytes) -> None:
        """Record that a read found no row in ``[begin, end)``. A later write there ends this."""
        if begin < end:
            if not self.dead:
                self.dead = Intervals()
            self.dead.add(begin, end)

    def dead_end(self, key: bytes) -> bytes:
        """Return the end of the keys from `key` on that are known to be missing, or `key` if it may exist."""
        end, points = self.dead.end_of(key), self.points
        if key < end and points:
            keys = self.ordered()
            for at in range(bisect_left(keys, key), bisect_left(keys, end)):
                if points[keys[at]] is not None:
                    return keys[at]
        return end

    def dead_begin(self, key: bytes) -> bytes:
        """Return the begin of the keys right before `key` that are known to be missing, or `key` if there are none."""
        begin, points = self.dead.begin_of(key), self.points
        if begin < key and points:
            keys = self.ordered()
            for at in range(bisect_left(keys, key) - 1, bisect_left(keys, begin) - 1, -1):
                if points[keys[at]] is not None:
                    return keys[at] + b"\0"
        return begin

    def revive(self, key: bytes) -> None:
        """Take a key that was set out of `dead`, before it is cleared. The next read asks for it again."""
        if self.points.get(key) is not None and key in self.dead:
            self.dead.remove(key, key + b"\0")

    def _hush(self, key: bytes, point: Point | object) -> None:
        """Record a write of `key` without a conflict. A conflict from an earlier write, in `point`, stays."""
        self.hushed = True
        if point is ABSENT:
            self.quiet.add(key)

    def _forget_edges(self, begin: bytes, end: bytes) -> None:
        edges = self.edges
        if edges:
            del edges[bisect_left(edges, begin) : bisect_left(edges, end)]

    def _keep_conflicts(self, gone: list[bytes]) -> None:
        """Keep the conflicts of written keys that are removed from the map."""
        for key in gone:
            if key not in self.quiet:
                self.conflicts.add(key, key + b"\0")

    def _take(self, begin: bytes, end: bytes, mutations: list[Mutation] | None = None) -> list[bytes]:
        """Remove the written keys of a range and return them. Append their mutations to `mutations`."""
        points = self.points
        if not points:
            return []
        keys = self.ordered()
        first, last = bisect_left(keys, begin), bisect_left(keys, end)
        gone = keys[first:last]
        revives = bool(self.dead.begins)
        for key in gone:
            if revives:
                self.revive(key)
            point = points.pop(key)
            if mutations is not None:
                emit(key, point, mutations)
        del keys[first:last]
        return gone

    def is_unreadable(self, key: bytes) -> bool:
        """Return whether the state of `key` depends on a versionstamp."""
        point = self.points.get(key, ABSENT)
        if point is ABSENT:
            return bool(self.unreadable.begins) and key in self.unreadable
        return type(point) is Stack and point.unreadable

    # -- the commit ----------------------------------------------------------------------------------------------

    def mutations(self) -> list[Mutation]:
        """Return the mutations that the commit applies, in order."""
        points = self.points
        out = self._ranges_first() if self.ranged else []
        for key in self.ordered():
            point = points[key]
            if type(point) is bytes:
                out.append((SET, key, point))
            elif point is None:
                out.append((CLEAR_RANGE, key, key + b"\0"))
            elif isinstance(point, Stack) and len(point.ops) == 1 and (param := point.ops[0][1]) is not None:
                out.append((point.ops[0][0], key, param))
            else:
                emit(key, point, out)
        return out

    def _ranges_first(self) -> list[Mutation]:
        if not self.ranged:
            return []
        return [*self.early, *((CLEAR_RANGE, begin, end) for begin, end in self.clears)]

    def in_rows(self) -> tuple[list[Mutation], PutRows | None]:
        """Return the `mutations`, with the plain sets as separate rows if there are many.

        The rows may be applied last. Their keys have no other operations, except those that precede all keys. And no
        versionstamped key can equal one of them, because a set in an unreadable range is never plain.
        """
        if len(self.points) < MANY or self.hushed:
            return self.mutations(), None
        points = self.points.copy()  # an atomic copy, as in `ordered`
        keys = sorted(points)
        others = [key for key, point in points.items() if type(point) is not bytes]
        mutations = self._ranges_first()
        for key in sorted(others):
            emit(key, points[key], mutations)
            del keys[bisect_left(keys, key)]
        return mutations, PutRows(keys, points) if keys else None

    def conflict_keys(self) -> list[bytes]:
        """Return the single keys with write conflicts. `conflicts` has the ranges."""
        keys = self._keys
        if len(keys) != len(self.points):
            keys = self.ordered()
        return [key for key in keys if key not in self.quiet] if self.ranged and self.quiet else keys

    def conflict_ranges(self, mutations: list[Mutation]) -> list[Range]:
        """Return the write conflict ranges, and as (end, begin) the writes that only concern watches."""
        ranges = list(self.conflicts)
        if self.hushed:
            for op, key, param in mutations:
                if op != SET_VERSIONSTAMPED_KEY:
                    ranges.append((param if op == CLEAR_RANGE else key + b"\0", key))
        return ranges
