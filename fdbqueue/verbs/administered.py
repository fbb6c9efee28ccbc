"""The verbs of operators for a whole queue: register, pause, resume and clear it, set a quota, look and check."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from fdbqueue.base.arguments import check_limit, check_text
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.blocking import blocking
from fdbqueue.engine.steps import Steps, rows, value_of
from fdbqueue.engine.transactional import asks_marker
from fdbqueue.engine.verb import verb
from fdbqueue.errors import ChecksBypassed
from fdbqueue.moves.admission import without_quota
from fdbqueue.moves.opening import ItemOpener
from fdbqueue.stored.catalogue import set_about
from fdbqueue.stored.codecs import V
from fdbqueue.stored.counters import Stats, count, read_own_stats
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.looks import check_decodes, made_exclusive, refuse_others_keys, wall_us
from fdbqueue.stored.policies import Backoff, check_policy
from fdbqueue.stored.settings import (
    Pause,
    Quota,
    WhenFull,
    check_renamed,
    heads_of,
    is_quota,
    own_items,
    pack_pause,
    pack_quota,
    read_pause,
    read_terms,
    refuse_renamed,
)
from fdbqueue.verbs.by_position import ByPosition
from fdbqueue.verbs.editing import UNCHANGED, Unchanged
from fdbqueue.writes.appending import clear_keys

if TYPE_CHECKING:  # `inspect` and `check` import these when they are called
    from fdbqueue.reads.check import CheckReport
    from fdbqueue.reads.inspecting import Inspection

T = TypeVar("T")
TEXT_BYTES = 1_000


class Administered(ItemOpener[V], ByPosition[V]):
    """Gives a queue the verbs of its operators."""

    @verb
    async def clear(self, tr: Transaction | Database) -> None:
        """Remove all items and everything else that the queue owns.

        Raises:
            NestedQueue: the name of another queue lies within this one's, so its items would go, too. Or the queue is
                not registered, and its name lies within that of another one. Nothing was changed.

        *Conflicts:* with every transaction that reads the queue, and with the registration of such a name. *Cost:* as
        many reads as the name has elements, and two more, in two round trips; one write. The embedded engine removes
        each key, about a second for a million items, and other commits wait meanwhile.
        """

        await self.read(tr, self._clear)

    @verb
    async def stats(self, tr: Transaction | Database) -> Stats:
        """Return how many items there are, and how many came and went.

        Raises:
            QueueRenamed: the queue has another name now.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read, and one more if nothing was ever enqueued; it does
        not grow with the queue.
        """
        return await self.read(tr, partial(read_own_stats, layout=self.layout))

    @verb
    async def inspect(self, tr: Transaction | Database, *, limit: int = 5) -> Inspection:
        """Return a page about the queue: states, ages, first and last items, who has leases, why items died, sessions.

        Notebooks show it as HTML, and `print` as text. Given a database, it remembers the counters in this process, and
        shows how they changed between its calls of the last ten minutes.

        Args:
            tr: a transaction, or a database.
            limit: how many items to show at each end.

        Raises:
            TypeError, ValueError: the limit is not an integer from 1 on. QueueRenamed: the queue has another name now.

        *Conflicts:* none, it reads by snapshot. *Cost:* up to 57 reads, most of them in parallel, of about 2,500 rows
        in all. If it has sessions, up to 105 more, most of them in parallel. That does not grow with the queue.

        >>> import fdbqueue
        >>> orders = fdbqueue.Queue("orders", codec="str")
        >>> with fdbqueue.open("memory:") as db:
        ...     position = orders.enqueue(db, "teapot")
        ...     orders.inspect(db).head[0].value
        'teapot'
        """
        from fdbqueue.reads.inspecting import inspect_queue

        check_limit(limit, "items to show at each end")
        await check_decodes(tr, self.home)
        return await inspect_queue(tr, self.layout, self.codec, repr(self), limit)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare: keys, envelopes, chunks, counters.

        Raises:
            QueueRenamed: the queue has another name now.

        A queue may be in use meanwhile: a check reads it as it was at one time. Only a queue that takes longer than a
        transaction lives, about five seconds, is read over several times. If such a queue changes meanwhile, what
        looked wrong is in `CheckReport.unsure`, and the counters are not compared.

        *Conflicts:* none, it reads by snapshot. *Cost:* reads the whole queue, a page at a time; a long one for up to
        five seconds more.
        """
        from fdbqueue.reads.check import check_queue, checked

        return blocking(lambda: checked(tr, self.layout, partial(check_queue, layout=self.layout)))

    @verb
    async def register(
        self,
        tr: Transaction | Database,
        *,
        on_codec: Literal["fail", "replace"] = "fail",
        max_attempts: int | Unchanged | None = UNCHANGED,
        backoff: Backoff | Unchanged | None = UNCHANGED,
    ) -> None:
        """Register the queue in the catalogue, with this object's codec, order and policy.

        An enqueue registers a queue by itself. Use this for a queue that an older version of the library has written,
        or to correct a registration. It stays registered since the same time.

        Args:
            tr: a transaction, or a database.
            on_codec: what to do if the queue has items, and is registered with another codec: "fail"; or "replace",
                which corrects a wrong registration. It changes no item.
            max_attempts: the number of failed attempts after which an item becomes a dead letter; by default as it is
                stored. None: the record says nothing of it, and the next object that gives one sets it.
            backoff: the wait of a failed item, in the same way. Of a function of your own only the text is stored. So
                give the function to `Leases` in each process, too.

        All objects of the queue follow what is stored, in every process, within a second.

        Raises:
            TypeError, ValueError: `max_attempts` or `backoff` is none.
            QueueRenamed: the queue has another name now.
            OtherCodec: the queue has items, and is registered with another codec. ValueError: `on_codec` is neither.
                Nothing was changed. NestedQueue: as `enqueue`.

        *Conflicts:* with another call that corrects the registration. To replace a codec, with the first items of the
        queue. *Cost:* two reads, one write; up to six more reads to replace a codec.
        """
        if on_codec not in ("fail", "replace"):
            raise ValueError(f"on_codec is 'fail' or 'replace', not {on_codec!r}.")
        await self.read(tr, partial(check_renamed, layout=self.layout))
        given = {"max_attempts": max_attempts, "backoff": backoff}
        policy: dict[str, Any] = {name: one for name, one in given.items() if not isinstance(one, Unchanged)}
        check_policy(policy.get("max_attempts"), policy.get("backoff"))
        await self.read(tr, partial(set_about, layout=self.layout, replaces=on_codec == "replace", policy=policy))
        self.layout.known.told |= bool(policy)

    @verb
    async def pause(self, tr: Transaction | Database, *, reason: str = "", by: str | None = None) -> None:
        """Pause the queue: calls that take items find none, and those that wait go on waiting, until `resume`.

        Producers go on. Leased items can be acked, extended and given back, and timers fire. Sessions pause, too.

        Within a second after the pause is committed, no process begins another item. Turns of sessions end. Consumers
        end the items in progress, and give back, uncounted and to their places, those that they leased ahead. A
        transaction of another process that takes items and is open at that moment may still commit.

        Args:
            tr: a transaction, or a database.
            reason: why, for people who look at the queue.
            by: who pauses it; host name and process id by default.

        Raises:
            TypeError: an argument is no text. ValueError: it is over 1,000 bytes, or `by` is empty. QueueRenamed: the
                queue has another name now. NestedQueue: the queue is not registered, and its name lies within that of
                another queue, or around it.

        *Conflicts:* with staged dequeues that take items at this moment. *Cost:* two reads, three writes. A queue that
        is not registered: three reads more, and one for each element of its name but the last.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     orders = Queue("orders", codec="str")
        ...     position = orders.enqueue(db, "a cup")
        ...     orders.pause(db, reason="stocktaking", by="Ann")
        ...     print(orders.dequeue(db), orders.paused(db).reason)
        ...     orders.resume(db)
        ...     orders.dequeue(db).value
        None stocktaking
        'a cup'
        """
        _check_text(reason, "reason")
        if by is not None:
            _check_text(by, "by")
            if not by:
                raise ValueError(
                    "by is empty. Give the name of the person or program that pauses the queue, or leave it out."
                )
        who = f"{os.uname().nodename}:{os.getpid()}" if by is None else by

        async def body(tr: Transaction) -> None:
            paused = await value_of(tr.get(self.layout.paused_key))
            if paused.present():
                refuse_renamed(bytes(paused))
            await refuse_others_keys(tr, self.layout)
            write_pause(tr, self.layout, who, reason, wall_us())

        await self.read(tr, body)
        made_exclusive()  # this process looks again before it takes an item

    @verb
    async def resume(self, tr: Transaction | Database) -> None:
        """End a pause, and wake the consumers that wait.

        Raises:
            QueueRenamed: the queue has another name now.

        *Conflicts:* as `pause`. *Cost:* one read, four writes.
        """

        async def body(tr: Transaction) -> None:
            paused = await value_of(tr.get(self.layout.paused_key))
            if paused.present():
                refuse_renamed(bytes(paused))
                end_pause(tr, self.layout)

        await self.read(tr, body)

    @verb
    async def paused(self, tr: Transaction | Database) -> Pause | None:
        """Return who paused the queue, when and why; None if it is not paused.

        *Conflicts:* in a transaction, with `pause` and `resume`. *Cost:* one read.
        """
        return await self.read(tr, partial(read_pause, layout=self.layout))

    @verb
    async def set_quota(
        self,
        tr: Transaction | Database,
        items: int | None,
        *,
        size_bytes: int | None = None,
        when_full: WhenFull = "refuse",
    ) -> None:
        """Limit how many items or bytes the queue may have. None and no `size_bytes` removes the limits.

        It counts items in all states, dead letters included. An enqueue that would exceed it raises `QueueFull`, or
        waits. It may be exceeded by the items of other enqueueing transactions that are open at the same time. Items
        that are there already stay, also if they are more. Items that come back, such as a failed one, are not refused.

        A limit of bytes is about the queue's committed keys and values. It refuses an enqueue if they are as many.
        A cluster estimates the size. The embedded engine reads the queue for it, and a process then relies on the
        result for 20 times as long as that took.

        Args:
            tr: a transaction, or a database.
            items: how many items, at least 1; None: any number.
            size_bytes: about how many bytes, at least 1,000,000; None: any number.
            when_full: "refuse" raises `QueueFull`. "wait" waits until consumers have taken items, if the call is given
                a database. An enqueue in a transaction is always refused.

        Raises:
            TypeError, ValueError: `items` is no integer from 1 on, `size_bytes` none from 1,000,000 on, or `when_full`
                is neither.
            ChecksBypassed: the queue is smart, or has sessions, which have limits of their own.
            QueueRenamed: the queue has another name now. NestedQueue: as `pause`. In all cases nothing was changed.

        *Conflicts:* with the first smart enqueue; not with other enqueues. *Cost:* as `pause`, one write. After that
        each enqueue reads the counters, or the size, too.

        >>> import fdbqueue
        >>> from fdbqueue import Queue
        >>> with fdbqueue.open("memory:") as db:
        ...     orders = Queue("orders", codec="str")
        ...     orders.set_quota(db, 1)
        ...     position = orders.enqueue(db, "a cup")
        ...     try:
        ...         orders.enqueue(db, "a saucer")
        ...     except fdbqueue.QueueFull as error:
        ...         print(error.limit)
        Quota(items=1, when_full='refuse', size_bytes=None)
        """
        quota = None if items is None and size_bytes is None else Quota(items, when_full, size_bytes)
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full is 'refuse' or 'wait', not {when_full!r}.")

        async def body(tr: Transaction) -> None:
            stored = await value_of(tr.get(self.layout.type_key))
            if stored.present():
                refuse_renamed(bytes(stored))
                if not is_quota(bytes(stored)):
                    raise ChecksBypassed(
                        f"The queue {self.layout.describe()} is smart, and has a limit of its own. Nothing was changed."
                        " Give SmartQueue its limit=Limit(...)."
                    )
            if quota is None:
                tr.clear(self.layout.type_key)
                return
            for part in own_items.all().values():
                span = part.records(self.layout).range()
                if await rows(tr, span.start, span.stop, limit=1):
                    raise without_quota(self.layout)
            await refuse_others_keys(tr, self.layout)
            tr.set(self.layout.type_key, pack_quota(quota))

        await self.read(tr, body)

    @verb
    async def quota(self, tr: Transaction | Database) -> Quota | None:
        """Return how many items or bytes the queue may have; None if it has no quota.

        Raises:
            QueueRenamed: the queue has another name now.

        *Conflicts:* in a transaction, with `set_quota`. *Cost:* one read.
        """

        async def body(tr: Transaction) -> Quota | None:
            terms = await read_terms(tr, self.layout)
            terms.check()
            return terms.quota

        return await self.read(tr, body)

    async def _clear(self, tr: Transaction) -> None:
        await refuse_others_keys(tr, self.layout, clears=True)
        clear_keys(tr, self.layout)


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is a text, not {text!r}.")
    check_text(text, name)
    if len(text.encode()) > TEXT_BYTES:
        raise ValueError(f"{name} has at most {TEXT_BYTES:,} bytes, not {len(text.encode()):,}.")


def write_pause(tr: Transaction, layout: Layout, by: str, reason: str, now_us: int) -> None:
    """Pause a queue, and the further heads of its layers. Consumers that wait look again, and learn it."""
    asks_marker(tr)
    for head in heads_of(layout):
        tr.set(head.paused_key, pack_pause(by, reason, now_us))
    span = layout.waiting.range()
    tr.clear_range(span.start, span.stop)


def end_pause(tr: Transaction, layout: Layout) -> None:
    """End a pause, and wake the consumers that wait."""
    for head in heads_of(layout):
        tr.clear(head.paused_key)
        count(tr, head, returned=1)  # waiting consumers watch this counter
