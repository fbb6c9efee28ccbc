"""Store requests for items, and grants of leases.

A request is one process's wish for some items. Its key is the versionstamp of the transaction that registered it. So
the registration is a blind write, which never conflicts, and requests stay in commit order. A grant, under the client's
own key, names the leases that another process took for a request. The same transaction removes the request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
from msgspec import structs

from fdbqueue import FormatError, Position, Queue
from fdbqueue.engine.keys import stamped
from fdbqueue.engine.optional import members_of
from fdbqueue.lowlevel import (
    UNREADABLE,
    CheckPart,
    Database,
    FDBError,
    Future,
    ItemCheck,
    KeyValue,
    Layout,
    Subspace,
    Transaction,
    pack,
    rows,
    value_of,
)
from fdbqueue.reads.check import read_in
from fdbqueue.stored.settings import RenamePart
from fdbqueue.stored.shapes import Due

from ..leases import LeaseHandle
from ..leases.holding import held_by
from ..leases.timers import Firing, Reads, Timer, TimerKind
from ..leases.transitions import uncounted

# Grants: leases that one process took for another one, which waits for items.
#
# A grant's key names the leases. The client, the process that waits, takes them and removes the key. It may remove the
# key later, with its next commit, if the engine keeps marks: it sets a mark instead, before it hands out the leases.
# The timer of the grant says until when it must have taken them. A transaction that fires due timers puts leases back
# whose grant is still there and not marked, each in its own place. Their attempts do not count. It also asks all
# waiting processes again: some of them may have ended, too. (docs/adr/0122)

TAKE_SECONDS = 0.75
"""A client takes a grant within so many seconds."""
ASKED_AT_ONCE = 100
"""Most waiting processes that one transaction asks again."""
UNMARKED: set[bytes] = set()
"""The clients of this process that took grants without a mark, and have not committed since."""


class _Granted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    index: int
    random: bytes
    token: bytes
    rank: int | None = None  # left out if items have none


class Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stored grant. Older versions store and read the first two fields."""

    expires_at_us: int
    """When an older version may remove it."""
    granted: list[_Granted]
    """The leases."""
    take_until_us: int = 0
    """When its timer fires; 0: it has none. Then its leases just expire."""
    ends_at_us: int = 0
    """When the leases end if the client does nothing."""
    process: bytes = b""
    """The id of the client's process; b"": unknown."""
    again: bool = False
    """Whether an item was leased before. Then a commit takes the grant, so that each further attempt counts."""

    @property
    def leases(self) -> list[LeaseHandle]:
        """The handles of the leases."""
        return [LeaseHandle(Position(one.index, one.random, rank=one.rank), one.token) for one in self.granted]


_decoder = msgspec.msgpack.Decoder(Grant)


def stored_grant(leases: list[LeaseHandle], *terms: object, expires_at_us: int) -> bytes:
    """Return the bytes of a grant; `terms` are the fields that older versions do not have."""
    return msgspec.msgpack.encode((expires_at_us, [_granted(lease.position, lease.token) for lease in leases], *terms))


def read_grant(layout: Layout, key: bytes, stored: bytes) -> Grant:
    """Return the grant that is stored under a key.

    Raises:
        FormatError: the bytes are not a grant.
    """
    return layout.decode(key, stored, _decoder.decode, what="grant")


async def _fire_grant(firing: Firing, timer: Timer, reads: Reads) -> None:
    """Fire the timer of a grant. If its client has not taken it, put its leases back, and count no attempt.

    *Conflicts:* with the client that takes the grant, and with all that changes one of its leases. *Cost:* a read, and
    one for each lease.
    """
    tr, layout, moves = firing.tr, firing.layout, firing.moves
    client = timer.position.random
    requests = Requests(layout)
    grant_key = requests.grant_key(client)
    value = await value_of(tr.get(grant_key))  # a plain read: the client that takes it clears it
    try:
        grant = requests.granted(client, bytes(value)) if value.present() else None
    except FormatError:
        return  # left to the newer version that wrote it
    firing.clear(timer)
    if grant is None or grant.take_until_us != timer.at_us:
        return
    if client in UNMARKED:
        return  # this process took it, and is about to commit that
    tr.clear(grant_key)
    if members_of(tr).has_mark(grant.process, client):
        return
    asked = returned = any(one.kind == Due.GRANT for one in firing.reclaimed)
    for lease in grant.leases:
        try:
            [held] = await held_by(tr, layout, [lease])
        except FormatError:
            continue  # the lease just expires
        # Another end than the granted one: the client has extended the lease, so it has the item.
        if held is None or held[2].expires_at_us != grant.ends_at_us:
            continue
        packed, stored, notes = held
        moves.leave_leased(packed, notes)
        before = uncounted(notes)
        fate = moves.put_back(packed, stored, before, now_us=firing.now_us, delay_us=0)
        firing.seen.add(packed)
        firing.tell(Due.GRANT, lease.position, packed, stored, before, fate)
        returned = firing.stale = True
    if returned and not asked:
        await _ask_again(tr, layout, firing.now_us)


async def any_untaken(tr: Transaction, layout: Layout) -> bool:
    """Return whether a lease was granted to a process that has perhaps ended: it may come back any moment.

    By snapshot. *Cost:* one range read.
    """
    span = layout.grants.range()
    for row in await rows(tr.snapshot, span.start, span.stop, limit=ASKED_AT_ONCE):
        parts = layout.parts("grants", row.key)
        if parts is None:
            continue
        client: bytes = parts[0]
        try:
            grant = read_grant(layout, row.key, row.value)
        except FormatError:
            continue  # a newer version wrote it
        untaken = grant.granted and grant.take_until_us and client not in UNMARKED
        if untaken and not members_of(tr).has_mark(grant.process, client):
            return True
    return False


async def _ask_again(tr: Transaction, layout: Layout, now_us: int) -> None:
    """Remove the requests of waiting processes, and wake these processes: those that are alive register again.

    A transaction that finds a grant untaken does this. Its client has probably ended, and so may have others that wait.
    Without this, the next of them would be granted the item that came back, while a live process takes a later one.

    *Conflicts:* with the owners of these requests, and with processes that fulfill them. *Cost:* two reads, and four
    writes for each request.
    """
    requests, waiting = Requests(layout), Requests(layout, "waiting")
    for line in (requests, waiting):
        # By snapshot: a request that is registered at the same time is younger than the grant.
        for row in await rows(tr.snapshot, line.begin, line.end, limit=ASKED_AT_ONCE):
            try:
                wish = _wish_decoder.decode(row.value)
            except UNREADABLE:
                continue
            if wish.process is None:
                continue  # a version that knows no timers of grants wrote it: it waits for its items
            line.remove(tr, row.key)
            if line is requests:  # the client of the other one watches the key that is gone
                # A grant of nothing wakes the client, and removes itself as any grant does.
                line.grant(tr, wish, [], now_us=now_us)


def _granted(position: Position, token: bytes) -> tuple[object, ...]:
    handle = (position.index, position.random, token)
    return handle if position.rank is None else (*handle, position.rank)


KINDS = {Due.GRANT: TimerKind(_fire_grant)}
"""The kinds of timers of this layer."""


REQUEST_SECONDS = 30.0
"""Seconds that a request lives without a renewal, if the engine knows whether its process is alive. It is renewed at
half of them."""
UNSEEN_SECONDS = 5.0
"""The same on a cluster, which does not know it."""
GRANT_SECONDS = 10.0
"""The shortest lease that is granted to a process that has to collect it."""
LONGEST_GRANT_SECONDS = 30.0
"""A lease of up to this many seconds is granted for its full duration, and needs no collecting. A longer one is granted
for a short time first."""
_SWEEP_LIMIT = 16
_NO_STAMP = b"\xff" * 10


class Wish(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The terms of a request."""

    client: bytes
    """The client's id, which is also in the key of its grants."""
    wanted: int
    """Most items that it wants."""
    expires_at_us: int
    """When it expires, by the requester's clock, unless it is renewed."""
    duration_us: int = 0
    """The duration of the leases; 0: the items are taken out."""
    consumer: str = ""
    """The consumer's name."""
    process: bytes | None = None
    """The id of its process; b"": the engine knows none. None: an older version wants it, which knows no timer of a
    grant."""

    @property
    def lives_seconds(self) -> float:
        """How many seconds it lives without a renewal."""
        return UNSEEN_SECONDS if self.process == b"" else REQUEST_SECONDS


@dataclass(frozen=True, slots=True)
class Request:
    """A registered wish."""

    key: bytes
    """Its key; keys sort in request order."""
    wish: Wish
    """Its terms."""

    def seconds_until_renewal(self, now_us: int) -> float:
        """Return in how many seconds its owner renews it; less than 0: the time has come."""
        return (self.wish.expires_at_us - now_us) / 1e6 - self.wish.lives_seconds / 2

    def is_dead(self, tr: Transaction, now_us: int) -> bool:
        """Return whether its process has ended, or has not renewed it in time."""
        return self.wish.expires_at_us <= now_us or members_of(tr).is_dead(self.wish.process or b"")


def wished(
    tr: Transaction, client: bytes, wanted: int, *, now_us: int, duration_us: int = 0, consumer: str = ""
) -> Wish:
    """Return the terms of a request of this process, valid from now on."""
    wish = Wish(client, wanted, 0, duration_us, consumer, members_of(tr).own_id())
    return structs.replace(wish, expires_at_us=now_us + int(wish.lives_seconds * 1e6))


_encode = msgspec.msgpack.Encoder().encode
_wish_decoder = msgspec.msgpack.Decoder(Wish)


class Requests:
    """The requests of one queue, in one of its two lines, and their grants.

    Args:
        layout: the queue's layout.
        line: "requests": those that want the first items; "waiting": those of subscriptions.
    """

    __slots__ = ("_layout", "_passed", "begin", "end")

    def __init__(self, layout: Layout, line: Literal["requests", "waiting"] = "requests") -> None:
        space: Subspace = layout.requests if line == "requests" else layout.waiting
        self._layout = layout
        self.begin, self.end = stamped(space.key())
        """The range of the requests."""
        self._passed: bytes = space.key()  # never written, only used for conflicts

    def register(self, tr: Transaction, wish: Wish) -> Future[bytes]:
        """Write a request behind all others. Return the future of its versionstamp; `key` turns that into its key."""
        tr.set_versionstamped_key(self.key(_NO_STAMP) + struct.pack("<I", len(self.begin)), _encode(wish))
        stamp: Future[bytes] = tr.get_versionstamp()
        return stamp

    def key(self, stamp: bytes) -> bytes:
        """Return the key of the request that was registered at a versionstamp."""
        return self.begin + stamp + b"\x00\x00"

    def put(self, tr: Transaction, key: bytes, wish: Wish) -> None:
        """Renew a request."""
        tr.set(key, _encode(wish))
        tr.add_write_conflict_key(key + b"\x00")

    async def first(self, tr: Transaction, *, limit: int) -> list[Request]:
        """Read the first requests, in order.

        By snapshot, so that new requests behind them cause no conflict. A caller that acts on a request adds its key to
        the read conflict ranges.
        """
        return self.opened(await rows(tr.snapshot, self.begin, self.end, limit=limit))

    def opened(self, found: Iterable[KeyValue]) -> list[Request]:
        """Return the requests in rows that were read.

        Raises:
            FormatError: a request can't be read.
        """
        return [Request(row.key, self.wish_in(row.key, row.value)) for row in found]

    async def find(self, tr: Transaction, wish: Wish) -> Request:
        """Return the registered request with the client id of `wish`, after a registration with an unknown result.

        If there is none, it was granted already. Then the returned request has a key that is never stored.
        """
        for request in await self.first(tr, limit=0):
            if request.wish.client == wish.client:
                return request
        return Request(self.key(_NO_STAMP), wish)

    async def registered(self, queue: Queue, db: Database, stamp: Future[bytes], wish: Wish) -> Request:
        """Return the request that a transaction has registered, given what `register` returned."""
        try:
            return Request(self.key(bytes(await value_of(stamp))), wish)
        except FDBError:
            # Registration ended in commit_unknown_result, so its versionstamp is lost. Find the request by its client
            # id.
            return await queue.read(db, partial(self.find, wish=wish))

    def fulfill(
        self,
        tr: Transaction,
        request: Request,
        leases: list[LeaseHandle],
        *,
        now_us: int,
        given: int,
        again: bool = False,
        in_turn: bool = False,
    ) -> None:
        """Remove a request that got items, and grant it the leases that it did not take itself.

        A transaction that gives a request fewer items than it wants must have seen all items. It conflicts if another
        transaction goes past the request meanwhile.

        Args:
            request: the request.
            leases: the leases to grant.
            now_us: the time from which grants last.
            given: the number of items that the request got in all.
            again: whether one of the items was leased before.
            in_turn: whether these are the items assigned to it, and nothing else was taken with them.
        """
        whole = given == request.wish.wanted
        self.remove(tr, request.key, served=in_turn and whole)
        if not whole:
            tr.add_read_conflict_key(self._passed)
        if leases:
            self.grant(tr, request.wish, leases, now_us=now_us, again=again)

    def grant(
        self, tr: Transaction, wish: Wish, leases: list[LeaseHandle], *, now_us: int, again: bool = False
    ) -> None:
        """Write a grant of leases for a request, and its timer."""
        client, process = wish.client, wish.process
        expires_at_us = now_us + int(GRANT_SECONDS * 1e6)
        if process is None:
            tr.set(self.grant_key(client), stored_grant(leases, expires_at_us=expires_at_us))
            return
        ends_at_us = now_us + granted_us(wish.duration_us)
        take_until_us = min(now_us + int(TAKE_SECONDS * 1e6), ends_at_us - 1)
        terms = (take_until_us, ends_at_us, process, again)
        tr.set(self.grant_key(client), stored_grant(leases, *terms, expires_at_us=expires_at_us))
        tr.set(self._timer(client, take_until_us), b"")

    def remove(self, tr: Transaction, key: bytes, *, served: bool = False) -> None:
        """Remove a request. Unless it was `served`, also make the requests behind it look again.

        *Conflicts:* with a process that fulfills, withdraws or renews it.
        """
        tr.add_read_conflict_key(key)
        if served:
            tr.clear(key)
        else:
            tr.clear_range(key, key + b"\x00\x00")

    def go_past(self, tr: Transaction, in_front: list[Request]) -> None:
        """Conflict with every change to the requests in front, except that they are served in turn."""
        for one in in_front:
            tr.add_read_conflict_key(one.key + b"\x00")
        if in_front:
            tr.add_write_conflict_key(self._passed)

    def grant_key(self, client: bytes) -> bytes:
        """Return the key of a client's grants, which the client watches."""
        key: bytes = self._layout.grants.pack((client,))
        return key

    def granted(self, client: bytes, stored: bytes) -> Grant:
        """Return the stored grant of a client.

        Raises:
            FormatError: the bytes are not a grant.
        """
        return read_grant(self._layout, self.grant_key(client), stored)

    def taken_keys(self, client: bytes, grant: Grant) -> list[bytes]:
        """Return the keys that a client removes when it takes a grant."""
        keys = [self.grant_key(client)]
        if grant.take_until_us:
            keys.append(self._timer(client, grant.take_until_us))
        return keys

    def _timer(self, client: bytes, take_until_us: int) -> bytes:
        return self._layout.timer_key(take_until_us, pack(Position(0, client)), Due.GRANT)

    async def read_all(self, tr: Transaction) -> tuple[list[Request], list[LeaseHandle]]:
        """Return all requests, and the leases in all grants.

        Raises:
            FormatError: a request or grant can't be read.
        """
        requests = await self.first(tr, limit=0)
        span = self._layout.grants.range()
        grants = await rows(tr.snapshot, span.start, span.stop)
        return requests, [lease for row in grants for lease in read_grant(self._layout, row.key, row.value).leases]

    async def sweep_grants(self, tr: Transaction, client: bytes, now_us: int) -> None:
        """Remove some old grants that were not collected, beginning at a client's own, random, place.

        By snapshot, and without a conflict: a client that collects a grant so late finds its leases lost anyway.
        """
        found = await rows(tr.snapshot, self.grant_key(client), self._layout.grants.range().stop, limit=_SWEEP_LIMIT)
        stale_us = now_us - int(REQUEST_SECONDS * 1e6)
        for row in found:
            if read_grant(self._layout, row.key, row.value).expires_at_us < stale_us:
                tr.clear(row.key)

    def wish_in(self, key: bytes, stored: bytes) -> Wish:
        return self._layout.decode(key, stored, _wish_decoder.decode, what="request")


def granted_us(duration_us: int) -> int:
    """Return the duration of granted leases for a wanted duration; 0: the items are to be taken out."""
    return duration_us if 0 < duration_us <= LONGEST_GRANT_SECONDS * 1e6 else int(GRANT_SECONDS * 1e6)


# Check that the requests and grants of waiting processes can be read.


class RequestCheck(ItemCheck):
    """Reads all requests and grants. *Cost:* two reads."""

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._requests = Requests(layout)

    def problems(self) -> list[str]:
        """Return what can't be read."""
        try:
            read_in(self._tr, self._requests.read_all)
        except FormatError as error:
            return [str(error)]
        return []


def _part(tr: Transaction | Database, queue: Queue) -> RequestCheck:
    return RequestCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("requests", "grants"))
"""What staged queues add to `fdbqueue.check`."""


RENAME_PART = RenamePart(waits=(lambda layout: layout.requests, lambda layout: layout.grants))
"""What a rename knows of processes that wait for items."""
