"""Requests for items, and grants: the ordered set of those who wait.

A request is one process' wish for some items. Its key is the versionstamp of the transaction that registered it, so
that registering is a blind write, which never conflicts, and nobody ever comes to stand in front of one who stands
there already. A grant, under the client's own key, names the leases that somebody took for a request; the request is
gone in the same transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue import FormatError, Position
from fdbqueue.codecs import UNREADABLE
from fdbqueue.engine.api import KeyValue, Transaction
from fdbqueue.engine.keys import strinc
from fdbqueue.engine.steps import Steps, rows
from fdbqueue.layout import Layout

from ..leases._lease import LeaseHandle

REQUEST_SECONDS = 30.0
"""A request lives so long without being renewed, and is renewed at half of it."""
GRANT_SECONDS = 10.0
"""Granted items that nobody collects are anybody's again after so long."""
LONGEST_GRANT_SECONDS = 30.0
"""A lease of up to so long is granted as it is wanted, and needs no collecting; a longer one begins as a short one."""
_SWEEP_LIMIT = 16
_STAMPED = b"\x33"  # type code of a versionstamp in a tuple
_NO_STAMP = b"\xff" * 10


class Wish(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a request asks for."""

    client: bytes
    """Whose it is, and under which key it looks for grants."""
    wanted: int
    """How many items at most."""
    expires_at_us: int
    """Until when, by the requester's clock, unless it is renewed."""
    duration_us: int = 0
    """How long the leases are to be; 0: the items are taken out."""
    consumer: str = ""
    """For whom."""


@dataclass(frozen=True, slots=True)
class Request:
    """A registered wish."""

    key: bytes
    """Its own key, in request order."""
    wish: Wish
    """What is asked for."""


class _Granted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    index: int
    random: bytes
    token: bytes
    rank: int | None = None  # left out where items have none


class _Grant(msgspec.Struct, array_like=True, frozen=True, gc=False):
    expires_at_us: int
    leases: list[_Granted]


_encode = msgspec.msgpack.Encoder().encode
_wish_decoder = msgspec.msgpack.Decoder(Wish)
_grant_decoder = msgspec.msgpack.Decoder(_Grant)


class Requests:
    """The requests of one queue, and their grants."""

    __slots__ = ("_begin", "_end", "_layout", "_passed")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._begin: bytes = layout.requests.key() + _STAMPED
        self._end: bytes = strinc(self._begin)
        self._passed: bytes = layout.requests.key()  # nobody ever writes it

    @property
    def begin(self) -> bytes:
        """Where the first one stands, if there is any."""
        return self._begin

    @property
    def end(self) -> bytes:
        """Behind which none stands."""
        return self._end

    def register(self, tr: Transaction, wish: Wish) -> Any:
        """Write a request behind all others; return the future of the versionstamp with which `key` tells its key."""
        tr.set_versionstamped_key(self.key(_NO_STAMP) + struct.pack("<I", len(self._begin)), _encode(wish))
        return tr.get_versionstamp()

    def key(self, stamp: bytes) -> bytes:
        """Return the key of the request that was registered under a transaction's versionstamp."""
        return self._begin + stamp + b"\x00\x00"

    def put(self, tr: Transaction, key: bytes, wish: Wish) -> None:
        """Renew a request."""
        tr.set(key, _encode(wish))
        tr.add_write_conflict_key(key + b"\x00")

    def first(self, tr: Transaction, *, limit: int) -> Steps[list[Request]]:
        """Read the first requests, in order.

        By snapshot, so that new ones behind them do no harm. Whoever acts on one reads its key with a conflict.
        """
        return self.opened((yield from rows(tr.snapshot, self._begin, self._end, limit=limit)))

    def opened(self, found: Iterable[KeyValue]) -> list[Request]:
        """Return the requests in rows that were read.

        Raises:
            FormatError: one of them can't be read.
        """
        return [Request(row.key, self._wish(row.key, row.value)) for row in found]

    def find(self, tr: Transaction, wish: Wish) -> Steps[Request]:
        """Find a request among all; for one whose registration came through without an answer.

        If it is not there it was granted already, and is returned with a key that no request ever has.
        """
        for request in (yield from self.first(tr, limit=0)):
            if request.wish.client == wish.client:
                return request
        return Request(self.key(_NO_STAMP), wish)

    def fulfill(
        self,
        tr: Transaction,
        request: Request,
        leases: list[LeaseHandle],
        *,
        now_us: int,
        given: int | None = None,
        in_turn: bool = False,
    ) -> None:
        """Let a request be gone, that was given items, and grant it those that it did not take itself.

        Who is given less than it asks for must have seen all there is: it fails if another has gone past it meanwhile.

        Args:
            request: which.
            leases: those to be granted.
            now_us: by which grants end.
            given: how many items it was given in all; None: the leases.
            in_turn: whether these are the ones that fell to it, and nothing else was taken with them.
        """
        whole = (len(leases) if given is None else given) == request.wish.wanted
        self.remove(tr, request.key, served=in_turn and whole)
        if not whole:
            tr.add_read_conflict_key(self._passed)
        if leases:
            handles = [_granted(lease.position, lease.token) for lease in leases]
            tr.set(self.grant_key(request.wish.client), _encode((now_us + int(GRANT_SECONDS * 1e6), handles)))

    def remove(self, tr: Transaction, key: bytes, *, served: bool = False) -> None:
        """Let a request be gone, if nobody else touches it meanwhile; those behind it look again if it was not served.

        *Conflicts:* with whoever serves, withdraws or renews it.
        """
        tr.add_read_conflict_key(key)
        if served:
            tr.clear(key)
        else:
            tr.clear_range(key, key + b"\x00\x00")

    def go_past(self, tr: Transaction, in_front: list[Request]) -> None:
        """Conflict with all that happens to the requests in front but that they are served."""
        for one in in_front:
            tr.add_read_conflict_key(one.key + b"\x00")
        if in_front:
            tr.add_write_conflict_key(self._passed)

    def grant_key(self, client: bytes) -> bytes:
        """Return the key under which a client gets its grants, and which it watches."""
        key: bytes = self._layout.grants.pack((client,))
        return key

    def granted(self, stored: bytes) -> list[LeaseHandle]:
        """Return the leases in a stored grant.

        Raises:
            FormatError: it is none.
        """
        leases = self._grant(stored).leases
        return [LeaseHandle(Position(one.index, one.random, rank=one.rank), one.token) for one in leases]

    def read_all(self, tr: Transaction) -> Steps[tuple[list[Request], list[LeaseHandle]]]:
        """Read all requests, and the leases in all grants.

        Raises:
            FormatError: one of them can't be read.
        """
        requests = yield from self.first(tr, limit=0)
        span = self._layout.grants.range()
        grants = yield from rows(tr.snapshot, span.start, span.stop)
        return requests, [lease for row in grants for lease in self.granted(row.value)]

    def sweep_grants(self, tr: Transaction, client: bytes, now_us: int) -> Steps[None]:
        """Remove some old grants that nobody collected, from a client's own, random, place on.

        By snapshot, and without a conflict: whoever collects a grant so late finds its leases lost anyway.
        """
        found = yield from rows(
            tr.snapshot, self.grant_key(client), self._layout.grants.range().stop, limit=_SWEEP_LIMIT
        )
        stale_us = now_us - int(REQUEST_SECONDS * 1e6)
        for row in found:
            if self._grant(row.value).expires_at_us < stale_us:
                tr.clear(row.key)

    def _grant(self, stored: bytes) -> _Grant:
        try:
            return _grant_decoder.decode(stored)
        except UNREADABLE as error:
            raise FormatError(f"A grant in {self._layout.describe()} can't be read: {error}.") from error

    def _wish(self, key: bytes, stored: bytes) -> Wish:
        try:
            return _wish_decoder.decode(stored)
        except UNREADABLE as error:
            raise FormatError(f"The request {key!r} in {self._layout.describe()} can't be read: {error}.") from error


def _granted(position: Position, token: bytes) -> tuple[Any, ...]:
    handle = (position.index, position.random, token)
    return handle if position.rank is None else (*handle, position.rank)


def granted_us(duration_us: int) -> int:
    """Return how long granted leases live, given how long the leases are to be; 0: the items are to be taken out."""
    return duration_us if 0 < duration_us <= LONGEST_GRANT_SECONDS * 1e6 else int(GRANT_SECONDS * 1e6)
