"""What layers do when an item ends, in the transaction that ends it. The table names the library's own layers."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Protocol

import msgspec

from fdbqueue.base.contributions import Contributions
from fdbqueue.base.position import Position
from fdbqueue.engine.api import Transaction
from fdbqueue.engine.keys import Subspace, behind, within
from fdbqueue.engine.steps import rows, value_of
from fdbqueue.errors import CodecError, FormatError, ItemTooLarge
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.counters import as_count, count, signed
from fdbqueue.stored.items import FollowUps, Micros, Notes, Seconds, check_follow_ups
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.positions import pack
from fdbqueue.stored.shapes import Due


class EndPart(Protocol):
    """What a layer does. It only writes blindly: an end reads nothing for it, and conflicts with nothing."""

    def __call__(
        self,
        tr: Transaction,
        layout: Layout,
        packed: bytes,
        notes: Notes,
        how: str,
        *,
        result: bytes = b"",
        error: str = "",
        now_us: int | None = None,
    ) -> None:
        """Do it for one item.

        Args:
            layout: where the outcomes and groups of the item are kept.
            packed: how the item is named there.
            how: "done", "dead", "expired", "deleted" or "cancelled"; "purged" if it ended before, when it died.
            result: its encoded result, if it is done.
            error: why it ends, if it is not.
            now_us: the time in microseconds; None: the wall clock.
        """


end_parts: Contributions[EndPart] = Contributions(
    results="fdbqueue.layers.results.results:end_outcome", groups="fdbqueue.layers.groups.group:end_membership"
)


@cache
def parts_of_ends() -> tuple[EndPart, ...]:
    """Return what to call when an item ends that is tracked."""
    return tuple(end_parts.all().values())


# Outcomes: what became of an item, for a caller that waits for its end, and its follow-ups.
#
# An item that has a completion has a record under ``("completion", index, random)`` from its enqueue on. The
# transaction
# that ends the item writes the outcome there, and a timer that removes it later. So a record never outlives its
# item
# unnoticed: an item that is still in the queue has a pending record, and an ended item has an outcome or no record.
#
# A follow-up is an item that is in its queue already, delayed and *held*. The transaction that ends the item before
# it
# writes a timer that is due at once. This is a blind write: it conflicts with nothing, and a second one changes
# nothing.
# The next consumer of that queue fires the timer, which makes the follow-up available, or removes it.
#
# An item without these pays nothing: its notes, which are read anyway, say that there is nothing to do.

MAX_RESULT_BYTES = 90_000
"""The largest encoded result. It is stored in one value."""
PENDING = "pending"
DONE, DEAD, EXPIRED, DELETED, CANCELLED = "done", "dead", "expired", "deleted", "cancelled"


class OutcomeRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The stored record of an item that has a completion."""

    how: str = msgspec.field(default=PENDING, name="h")
    """"pending", or how the item ended: "done", "dead", "expired", "deleted" or "cancelled"."""
    result: bytes = msgspec.field(default=b"", name="r")
    """The result in MessagePack; b"" for None."""
    error: str = msgspec.field(default="", name="m")
    """The last error of the item."""
    ended_at_us: Micros = msgspec.field(default=0, name="q")
    until_us: Micros = msgspec.field(default=0, name="x")
    """When the record is removed. While it is pending: when the item's life ends, 0 for never."""

    def encode(self) -> bytes:
        """Return the bytes that store it."""
        return _encode(self)

    @staticmethod
    def read(layout: Layout, key: bytes, stored: bytes) -> OutcomeRecord:
        """Return the record that is stored under a key.

        Raises:
            FormatError: this version of the library can't read it.
        """
        return layout.decode(key, stored, _decode)

    @staticmethod
    def begin(tr: Transaction, layout: Layout, packed: bytes, notes: Notes) -> None:
        """Write the pending record of an item that enters the queue, for the first time or again."""
        if notes.keep_s:
            tr.set(layout.completions.key(packed), OutcomeRecord(until_us=notes.ttl_at_us).encode())

    @staticmethod
    async def reopen(tr: Transaction, layout: Layout, packed: bytes, notes: Notes) -> None:
        """Make the record of an item pending again that comes back to the queue after its end."""
        if notes.keep_s:
            key = layout.completions.key(packed)
            stored = await value_of(tr.get(key))
            if stored.present():
                record = OutcomeRecord.read(layout, key, bytes(stored))
                if record.how != PENDING:
                    OutcomeRecord.remove(tr, layout, packed, record.until_us)
            OutcomeRecord.begin(tr, layout, packed, notes)

    @staticmethod
    def remove(tr: Transaction, layout: Layout, packed: bytes, until_us: int) -> None:
        """Remove an item's outcome and its timer. Blind writes."""
        tr.clear(layout.completions.key(packed))
        tr.clear(layout.timer_key(until_us, packed, Due.RESULT))
        count(tr, layout, outcomes=-1)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(OutcomeRecord).decode


def encode_result(result: object) -> bytes:
    """Encode a handler's result.

    Raises:
        CodecError: MessagePack can't hold it.
        ItemTooLarge: it is over `MAX_RESULT_BYTES`.
    """
    if result is None:
        return b""
    try:
        packed = _encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"A result must be what MessagePack can hold: {error}.") from error
    if len(packed) > MAX_RESULT_BYTES:
        raise ItemTooLarge(
            f"A result of {len(packed):,} bytes is over the limit of {MAX_RESULT_BYTES:,}. Store it elsewhere, under"
            " keys of your own or in a file, and return where it is."
        )
    return packed


def pull(tr: Transaction, follow_ups: tuple[tuple[bytes, bytes], ...], kind: str) -> None:
    """Write the timers that release held follow-ups, or drop them, and wake consumers that wait.

    The timers are due at time 0, so that no clock delays them.
    """
    for prefix, packed in follow_ups:
        layout = _layout_of(prefix)
        tr.set(layout.timer_key(0, packed, kind), b"")
        count(tr, layout, returned=1)  # waiting consumers watch this counter


@lru_cache(maxsize=64)
def _layout_of(prefix: bytes) -> Layout:
    return Layout(Subspace(rawPrefix=prefix))


# Groups: which items belong together, what became of them, and which transaction ends the last one.
#
# A group's keys are under ``("group", name)``. Each member that has not ended has a key of its own there, so the
# group
# is done when no such key is left. No counter decides anything: the counters are for people.
#
# The transaction that ends a member must find out whether it was the last one. It reads some of the open members by
# snapshot, and adds a read conflict on one of them, its *witness*. As long as the witness is open, this transaction
# was
# not the last. If the witness ends first, this transaction conflicts, runs again and looks for another one. Of two
# transactions that end the last two members at the same time, one therefore sees that it is the last. Witnesses are
# taken
# at random from the last members by position, which are far from the items at work, unless the group is nearly
# done. So a
# group costs about as many conflicts as it has workers, however many members it has.

WITNESSES = 8
"""From so many open members a transaction chooses its witness."""
SWEEP_AGAIN_US = 100_000
"""When a consumer goes on with a sweep, unless the call that cancelled the group does so itself. Until then consumers
do not see the timer, and do not conflict."""
OPEN = "open"


class GroupRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The stored record of a group."""

    state: str = msgspec.field(default=OPEN, name="s")
    """"open", "done" or "cancelled"."""
    then: FollowUps = msgspec.field(default=(), name="n")
    """Its follow-ups, as in the notes of an item."""
    keep_s: Seconds = msgspec.field(default=0, name="k")
    """How many seconds it is kept after its end."""
    began_at_us: Micros = msgspec.field(default=0, name="b")
    ended_at_us: Micros = msgspec.field(default=0, name="e")
    """When its last member ended; 0: not yet."""

    def encode(self) -> bytes:
        """Return the bytes that store it."""
        return _encode(self)


_decoder = msgspec.msgpack.Decoder(GroupRecord)


def read_group(stored: bytes) -> GroupRecord:
    """Return the group's record in stored bytes.

    Raises:
        FormatError: this version of the library can't read it.
    """
    try:
        group = _decoder.decode(stored)
    except UNREADABLE as error:
        raise FormatError(f"A group's record is damaged, or of a newer version of fdbqueue: {error}.") from error
    check_follow_ups(group.then, "A group's record is damaged")
    return group


class GroupKeys:
    """The keys of one group, and what reads and writes them."""

    def __init__(self, layout: Layout, name: str) -> None:
        space: Subspace = layout.groups[name]
        self._layout = layout
        self._name = name
        self.begin, self.end = within(space.key())
        self.record: bytes = space.pack(("record",))
        self.cursor: bytes = space.pack(("cursor",))
        self.members: bytes = space["member"].key()
        self.holds: Subspace = space["hold"]
        self._counts: Subspace = space["count"]
        self._count_keys: dict[str, bytes] = {}
        self.open = (self.holds.key(), behind(self.members))
        """The begin and end of the holds and, behind them, the members. Nothing else stands between them."""
        self.timer_place = pack(Position(0, name.encode()))
        """Stands for the group in timers, where items have their positions."""

    def decode(self, stored: bytes) -> GroupRecord:
        """Return the group's record in stored bytes.

        Raises:
            FormatError: this version of the library can't read it. The message names the key, the group and a way out.
        """
        remedy = (
            f"It is the record of the group {self._name!r}. With the newest version of fdbqueue, cancel the group:"
            " Group.cancel writes the record again, and its follow-ups stay held."
        )
        return self._layout.decode(self.record, stored, read_group, remedy)

    async def read(self, tr: Transaction) -> GroupRecord | None:
        """Return the group's record, or None.

        A plain read: of a take and a cancel at the same time, one runs again. It is no hot key: the record changes when
        the group is made, cancelled, done or removed.
        """
        value = await value_of(tr.get(self.record))
        return self.decode(bytes(value)) if value.present() else None

    async def is_cancelled(self, tr: Transaction) -> bool:
        """Return whether the group was cancelled.

        *Conflicts:* with a cancel at the same time: of a take and the cancel, one runs again. *Cost:* one read.
        """
        record = await self.read(tr)
        return record is not None and record.state == CANCELLED

    def count_key(self, state: str) -> bytes:
        """Return the key of the counter of the members in a state."""
        key = self._count_keys.get(state)
        if key is None:
            key = self._count_keys[state] = self._counts.pack((state,))
        return key

    def count(self, tr: Transaction, **changes: int) -> None:
        """Add to the counters of the members, by state. Atomic adds never conflict."""
        for state, change in changes.items():
            if change:
                tr.add(self.count_key(state), as_count(change))

    async def read_counts(self, tr: Transaction) -> dict[str, int]:
        """Return the counters of the members, by snapshot."""
        layout, span = self._layout, self._counts.range()
        own = layout.own_rows("groups", await rows(tr.snapshot, span.start, span.stop))
        return {parts[2]: layout.decode(row.key, row.value, signed) for parts, row in own}

    def begin_sweep(self, tr: Transaction, now_us: int, begin: bytes = b"") -> None:
        """Note where the sweep of a cancelled group goes on, and set the timer for it. Blind writes.

        Args:
            begin: the key of the member to go on with; b"": the first one.
        """
        at_us = now_us + SWEEP_AGAIN_US
        tr.set(self.cursor, at_us.to_bytes(8, "big") + (begin or self.members))
        tr.set(self._layout.timer_key(at_us, self.timer_place, Due.SWEEP), b"")

    async def settle(self, tr: Transaction, now_us: int) -> None:
        """End the group if this transaction ended its last member, or released its last hold.

        *Conflicts:* with the end of one other open member. *Cost:* one read; one more read and a few writes if the
        group is done.
        """
        # By snapshot, which includes this transaction's own writes. The conflict is on one witness only, on a
        # member if there is one: a producer may extend its hold often.
        found = await rows(tr.snapshot, *self.open, limit=WITNESSES, reverse=True)
        if found:
            import random  # it takes 3 ms, and few programs have groups

            members = [row.key for row in found if row.key >= self.members]
            tr.add_read_conflict_key(random.choice(members) if members else found[0].key)
            return
        # Nothing is open. Of this and a transaction that adds a member or a hold at the same time, one runs again.
        tr.add_read_conflict_range(*self.open)
        group = await self.read(tr)
        if group is None or group.ended_at_us:
            return
        state = DONE if group.state == OPEN else group.state
        tr.set(self.record, msgspec.structs.replace(group, state=state, ended_at_us=max(1, now_us)).encode())
        pull(tr, group.then, Due.GO if state == DONE else Due.DROP)
        tr.set(self._layout.timer_key(now_us + group.keep_s * 1_000_000, self.timer_place, Due.GROUP), b"")


group_keys = lru_cache(maxsize=256)(GroupKeys)
"""Return the keys of a group of a queue."""
