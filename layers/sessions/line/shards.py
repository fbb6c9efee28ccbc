"""Shards: several lines of ready sessions for one queue, each with keys of its own.

A session's pointers are in the shard that a hash of its name gives. A pointer's position ends with its shard's number,
so that every process finds the pointer, also one that has not learned of a new number of shards yet. The first shard is
the line of a queue without shards. Outcomes, groups and waiting workers stay there.

The number of shards is stored with the queue. It can grow, and never shrinks: no worker looks at further shards.
"""

from __future__ import annotations

import random
import time
import zlib
from itertools import count as counting

from fdbqueue import FormatError, Position
from fdbqueue.lowlevel import Layout, Notes, Subspace, Transaction, count, rows, started, value_of
from fdbqueue.stored.layout import RANDOM_BYTES
from fdbqueue.stored.own_values import decoded

from ...leases.timers import due_timers
from ...leases.transitions import Transitions
from ..session.records import PartOfQueue, part_of

MAX_SHARDS = 64
LOOK_SECONDS = 1.0
"""How often a worker looks whether there are more shards."""
KNOWN_SECONDS = 60.0
"""How often a producer does."""
_IN_FIRST = -9
"""The size of a position in the first shard less its first byte, if its random part has no zero byte."""


def shard_of(packed: bytes) -> int:
    """Return the shard of a pointer, by its packed position."""
    if len(packed) - packed[0] == _IN_FIRST:
        return 0
    part = packed[packed[0] - 0x12 : -1].replace(b"\x00\xff", b"\x00")
    return part[-1] if len(part) == RANDOM_BYTES + 1 else 0


def shard_at(position: Position) -> int:
    """Return the shard of a pointer, by its position."""
    return position.random[-1] if len(position.random) == RANDOM_BYTES + 1 else 0


def check_shards(given: object) -> None:
    """Raise an error if this is no number of shards."""
    if type(given) is not int:
        raise TypeError(f"shards is over how many lines ready sessions are spread, a whole number, not {given!r}.")
    if not 1 <= given <= MAX_SHARDS:
        raise ValueError(f"shards is over how many lines ready sessions are spread, 1 to {MAX_SHARDS}, not {given}.")


class Shards:
    """The shards of the line of one queue's sessions.

    Args:
        space: the subspace of all shards but the first.
        first: the layout of the first one.
        queue: the queue's name, for messages.
        wanted: the number of shards that the caller gave; None: as many as are stored.
    """

    def __init__(self, space: Subspace, first: PartOfQueue, queue: str, wanted: int | None) -> None:
        self.number = 1
        """How many shards there are, as far as this object knows. New pointers go to these."""
        self._number_key: bytes = space.pack(("number",))
        self._space = space
        self._first = first
        self._queue = queue
        self._layouts = {0: first}
        self._wanted = wanted
        self._agreed = False
        """Whether the stored number was the wanted one, or this object has made it larger. It may grow."""
        self.looked = float("-inf")
        """When this object last looked, by `time.monotonic`."""
        self._registering: Transaction | None = None
        """The transaction that has written the number. It is known only when it is committed."""
        self._turns = counting(random.randrange(MAX_SHARDS))

    def layout(self, shard: int) -> Layout:
        """Return the keys of a shard."""
        known = self._layouts.get(shard)
        if known is None:
            known = part_of(self._first.home, self._space[shard].key())
            known.paused_key = self._first.paused_key  # one pause is for all
            self._layouts[shard] = known
        return known

    def layouts(self) -> list[Layout]:
        """Return the keys of all shards."""
        return [self.layout(shard) for shard in range(self.number)]

    def at(self, packed: bytes) -> Layout:
        """Return the keys of a pointer's shard, by its packed position."""
        if len(packed) - packed[0] == _IN_FIRST:
            return self._first
        return self.layout(shard_of(packed))

    def of(self, name: bytes) -> int:
        """Return the shard of new pointers of a session, by its packed name."""
        return zlib.crc32(name) % self.number

    def order(self) -> list[int]:
        """Return all shards, in the order of the next look for a ready session. Each look begins with another one."""
        begin = next(self._turns) % self.number
        return [*range(begin, self.number), *range(begin)]

    def is_known(self) -> bool:
        """Return whether a producer need not learn the number again."""
        return time.monotonic() - self.looked < KNOWN_SECONDS

    async def any_ready(self, tr: Transaction, now_us: int) -> bool:
        """Return whether another shard than the first has a ready session or a due timer, by snapshot.

        *Cost:* two reads for each shard, all in parallel.
        """
        looks = []
        for layout in self.layouts()[1:]:
            looks.append(started(due_timers(tr, layout, now_us, limit=1)))
            looks.append(started(rows(tr.snapshot, layout.begin, layout.end, limit=1)))
        found = False
        for look in looks:
            found = bool(await look) or found
        return found

    async def learn(self, tr: Transaction, *, seconds: float = LOOK_SECONDS, registers: bool = False) -> None:
        """Learn how many shards there are, if this object has not looked within so many seconds.

        Args:
            registers: whether to store the wanted number if none is stored. It holds when it is committed. Until then
                this object uses the first shard alone.

        Raises:
            ValueError: another number than the wanted one is stored.

        *Conflicts:* with a transaction that stores a number, if this one does. *Cost:* one read.
        """
        if time.monotonic() - self.looked < seconds:
            return
        stored = await value_of(tr.snapshot.get(self._number_key))
        if stored.present():
            number = decoded(self._first, self._number_key, bytes(stored), _number)
            if self._wanted not in (None, number) and not self._agreed:
                raise ValueError(
                    f"The sessions of {self._queue} have {number} shards, not {self._wanted}. Give"
                    f" shards={number}, or leave it out. The verb set_shards makes them more."
                )
            if tr is not self._registering:  # it may see what it has written itself
                self._agreed, self._registering = True, None
                self.number, self.looked = number, time.monotonic()
        elif max(self._wanted or 1, self.number) == 1:
            self.looked = time.monotonic()
        elif registers:
            tr.add_read_conflict_key(self._number_key)
            self._write(tr, max(self._wanted or 1, self.number))

    async def grow(self, tr: Transaction, number: int) -> None:
        """Store a larger number of shards.

        Raises:
            ValueError: there are more.
        """
        stored = await value_of(tr.get(self._number_key))
        present = decoded(self._first, self._number_key, bytes(stored), _number) if stored.present() else 1
        if number < present:
            raise ValueError(
                f"There are {present} shards, and {number} are fewer. The number can't shrink: workers would not find"
                " the sessions in the other shards. Use another queue, and drain this one."
            )
        self._agreed = True
        if number > present:
            self._write(tr, number)

    def clear(self, tr: Transaction) -> None:
        """Clear all shards but the first. Their number stays."""
        begin: bytes = self._space.key()
        tr.clear_range(begin + b"\x14", begin + b"\x1d")

    def _write(self, tr: Transaction, number: int) -> None:
        tr.set(self._number_key, number.to_bytes(8, "little"))
        count(tr, self._first, returned=1)  # waiting workers watch this counter, and learn the number
        self._registering, self.looked = tr, float("-inf")


class PointerMoves(Transitions):
    """The moves of pointers in one transaction, each in its own shard. Made by `Line.moves`."""

    shards: Shards
    first: dict[str, int]
    """The changes of counters of the first shard. `_tally` is that of the last pointer's shard."""
    others: dict[int, Transitions]
    """The moves in other shards."""
    last: dict[int, int]
    """The index of the last pointer that was appended to each shard. One transaction reads it once."""

    def _other(self, packed: bytes) -> Transitions | None:
        """Return the moves in the shard of a pointer; None if that is the first one."""
        shard = shard_of(packed)
        if not shard:
            return None
        moves = self.others.get(shard)
        if moves is None:
            moves = self.others[shard] = Transitions(self._tr, self.shards.layout(shard), self._now_us)
        self.any, self._tally = True, moves._tally
        return moves

    def leave_available(self, packed: bytes, notes: Notes, *, cleared: bool = False) -> None:
        """As `Moves.leave_available`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.leave_available(packed, notes, cleared=cleared)
        else:
            self._tally = self.first
            super().leave_available(packed, notes, cleared=cleared)

    def leave_leased(self, packed: bytes, notes: Notes) -> None:
        """As `Moves.leave_leased`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.leave_leased(packed, notes)
        else:
            self._tally = self.first
            super().leave_leased(packed, notes)

    def leave_dead(self, packed: bytes) -> None:
        """As `Moves.leave_dead`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.leave_dead(packed)
        else:
            self._tally = self.first
            super().leave_dead(packed)

    def leave_delayed(self, packed: bytes, notes: Notes) -> None:
        """As `Moves.leave_delayed`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.leave_delayed(packed, notes)
        else:
            self._tally = self.first
            super().leave_delayed(packed, notes)

    def enter_available(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """As `Moves.enter_available`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.enter_available(packed, stored, notes)
        else:
            self._tally = self.first
            super().enter_available(packed, stored, notes)

    def enter_new(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """As `Moves.enter_new`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.enter_new(packed, stored, notes)
        else:
            self._tally = self.first
            super().enter_new(packed, stored, notes)

    def enter_leased(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """As `Moves.enter_leased`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.enter_leased(packed, stored, notes)
        else:
            self._tally = self.first
            super().enter_leased(packed, stored, notes)

    def enter_delayed(self, packed: bytes, stored: bytes, notes: Notes) -> None:
        """As `Moves.enter_delayed`."""
        if len(packed) - packed[0] != _IN_FIRST and (other := self._other(packed)):
            other.enter_delayed(packed, stored, notes)
        else:
            self._tally = self.first
            super().enter_delayed(packed, stored, notes)

    def put_aside(self, packed: bytes, stored: bytes) -> None:
        """Add a pointer that has left its place to the dead letters of its shard. No item has died."""
        self._tr.set(self.shards.at(packed).dead.key(packed), stored)
        self.tally("dead", 1)

    def finish(self) -> None:
        """Write the counters of all shards that were touched."""
        self._tally = self.first
        super().finish()
        for moves in self.others.values():
            moves.finish()


def _number(stored: bytes) -> int:
    number = int.from_bytes(stored, "little")
    if not 1 <= number <= MAX_SHARDS:
        raise FormatError(
            f"The number of shards can't be read: {number}. A newer version wrote it: update it here.", newer=True
        )
    return number
