"""A rate limit in the database, which all processes share.

Challenge
    A service allows 100 calls a minute, and any number of processes on any number of machines make them.

Keys
    ``("rate", name)`` behind the queue's own tuple: 8 bytes, little-endian. It is the time, in microseconds, at which
    the bucket is full again. One key is enough: a bucket fills at a known rate, so this time says how full it is now.

    A bucket that is full needs no key. The take that writes a new key clears up to two others that are full again. So
    buckets of many names leave about twice as many keys as those that are not full.

Guarantees
    A take reads and writes the key in one transaction. So all takes of one bucket are serial, and no two get the same
    token. In any time of t seconds at most ``burst + t * count / seconds`` tokens are taken. A take that gets none
    writes nothing.

Limits
    The key is hot: all takes of one bucket conflict, and try again. Take several tokens at once if you need many. Times
    are those of the taker's clock. A process whose clock is s seconds ahead takes the tokens of s seconds early, and
    then the others wait. An unknown outcome of a commit never takes twice.

Source
    The generic cell rate algorithm (GCRA) of the ATM Forum, which is a token bucket in one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue import Queue
from fdbqueue.base.arguments import check_whole
from fdbqueue.base.times import clock_us
from fdbqueue.lowlevel import CODEC_ERRORS, Database, Named, Transaction, positive, rows, value_of, verb

LOOKS = 2
"""How many other buckets are looked at for each new key."""


class TokenBucket(Named):
    """A bucket that fills at a rate, and from which all processes take tokens.

    Args:
        queue: the queue that has the bucket's key.
        name: the bucket's name: a text, a number, bytes, or a tuple of these. Each name is a bucket of its own.
        count: how many tokens are added in `seconds`; at least 1.
        seconds: the time for `count` tokens.
        burst: how many tokens the bucket holds; None: `count`.
        clock: seconds since 1970, as `time.time`.

    >>> import fdbqueue
    >>> from fdbqueue.layers.middleware.token_bucket import TokenBucket
    >>> now = 1_000.0
    >>> bucket = TokenBucket(fdbqueue.Queue("mails"), "smtp", count=2, seconds=60, clock=lambda: now)
    >>> with fdbqueue.open("memory:") as db:
    ...     [bucket.take(db) for _ in range(3)]
    [0.0, 0.0, 30.0]
    """

    def __init__(
        self,
        queue: Queue[Any],
        name: object,
        *,
        count: int,
        seconds: float = 1.0,
        burst: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(queue, Queue):
            raise TypeError(f"A bucket belongs to a Queue, as in TokenBucket(Queue('mails'), …), not to {queue!r}.")
        positive(seconds, "seconds")
        if not callable(clock):
            raise TypeError(f"clock is a function that returns the time, as time.time, not {clock!r}.")
        check_whole(count, "count is how many tokens are added", least=1)
        self.count = count
        self.seconds = seconds
        self.burst = count if burst is None else burst
        check_whole(self.burst, "burst is how many tokens the bucket holds", least=1)
        self.name = name
        self._queue = queue
        self._clock = clock
        self._us_each = seconds * 1e6 / count
        try:
            self._space = queue.layout.space["rate"]
            self._key: bytes = self._space.pack((name,))
        except CODEC_ERRORS as error:
            raise ValueError(f"A bucket can't be named {name!r}: {error}. Use a text, or a hash of it.") from error

    def __repr__(self) -> str:
        return (
            f"TokenBucket({self._queue.layout.describe()}, {self.name!r}, count={self.count}, seconds={self.seconds})"
        )

    @verb
    async def take(self, tr: Transaction | Database, tokens: int = 1) -> float:
        """Take tokens, and return 0.0. If there are too few, take none, and return the seconds to wait.

        Args:
            tr: a transaction, or a database.
            tokens: how many; at most `burst`.

        Raises:
            ValueError: the bucket never holds so many.

        *Conflicts:* with every other take of this bucket that gets tokens. *Cost:* one read, and one write if it gets
        some. If the key is new, one or two range reads, and up to two clears.
        """
        check_whole(tokens, "tokens is how many are taken", least=1)
        if tokens > self.burst:
            raise ValueError(f"{self!r} holds at most {self.burst} tokens, and never {tokens}. Give it a larger burst.")
        return await self._queue.transact(tr, partial(self._take, tokens=tokens))

    async def _take(self, tr: Transaction, tokens: int) -> float:
        stored = await value_of(tr.get(self._key))
        now_us = clock_us(self._clock())
        full_at_us = max(now_us, int.from_bytes(bytes(stored), "little") if stored.present() else 0)
        wait_us = full_at_us + tokens * self._us_each - now_us - self.burst * self._us_each
        if wait_us >= 1:  # less is the rounding of the stored time
            return float(wait_us / 1e6)
        if not stored.present():
            await self._clear_full(tr, now_us)
        tr.set(self._key, round(full_at_us + tokens * self._us_each).to_bytes(8, "little"))
        return 0.0

    async def _clear_full(self, tr: Transaction, now_us: float) -> None:
        """Clear the keys of buckets that are full again: those that follow this one, as if in a circle."""
        span = self._space.range()
        found = await rows(tr.snapshot, self._key + b"\x00", span.stop, limit=LOOKS)
        if len(found) < LOOKS:
            found += await rows(tr.snapshot, span.start, self._key, limit=LOOKS - len(found))
        for row in found:
            if int.from_bytes(row.value, "little") <= now_us:
                tr.add_read_conflict_key(row.key)  # it conflicts with a take of that bucket, and with no other one
                tr.clear(row.key)


class Empty(Exception):
    """One of several buckets has too few tokens.

    Args:
        number: which one.
        seconds: how long it takes until it has one.
    """

    def __init__(self, number: int, seconds: float) -> None:
        super().__init__(f"The bucket of number {number} has no token for {seconds} s.")
        self.number = number
        self.seconds = seconds


async def take_all(db: Database, queue: Queue[Any], buckets: Sequence[TokenBucket]) -> None:
    """Take a token of each bucket of a queue, or none at all.

    Raises:
        Empty: there is none in one of them.
    """

    async def body(tr: Transaction) -> None:
        for number, bucket in enumerate(buckets):
            if (wait := await bucket.take.steps(tr)) > 0:
                raise Empty(number, wait)  # it rolls back what was taken of the others

    await queue.transact(db, body)
