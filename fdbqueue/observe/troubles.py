"""`fdbqueue.troubles` lists the troubles of all queues of a database. `listed` lists the queues with theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar, cast

from fdbqueue.base.times import not_negative
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.steps import Steps, finished, run
from fdbqueue.engine.transactional import attempts, is_database
from fdbqueue.engine.verb import verb
from fdbqueue.errors import UnknownQueue
from fdbqueue.observe.figures import ANY, TOGETHER, figures_in
from fdbqueue.observe.judging import Limits
from fdbqueue.reads.queue_rows import SESSIONS, adding
from fdbqueue.reads.trouble import Trouble, Troubles, worst_first
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.verbs.queues import (
    QueueInfo,
    Registered,
    catalogue_span,
    infos_of,
    is_there,
    nearest,
    registered,
    registered_in,
)

T = TypeVar("T")


class _Looks:
    """Holds the verb."""

    def __repr__(self) -> str:
        return "fdbqueue"

    @verb
    async def troubles(
        self,
        tr: Transaction | Database,
        queue: Name | None = None,
        *,
        within: Name | None = None,
        max_age: float | None = None,
        max_skew: float = ANY.skew_s,
    ) -> Troubles:
        """Return the troubles of the registered queues of a database, the worst first.

        `fdbqueue troubles` and `health`, the web page, `Queue.inspect` and the metrics show the same list. A queue has
        one trouble of each kind at most. `Trouble.command` is what to do next.

        Args:
            tr: a transaction, or a database. A database uses a transaction for each 100 queues.
            queue: only this queue; None: all.
            within: only queues in this subspace or directory, or below this name; None: all.
            max_age: the age in seconds of a first item that is too old; None: any age is well.
            max_skew: how many seconds a stored time may be ahead of this clock.

        Raises:
            UnknownQueue: `queue` is not there. The message proposes the nearest name.
            TypeError: both `queue` and `within` are given. TypeError, ValueError: an argument is of a wrong kind.

        *Conflicts:* none, it reads by snapshot. *Cost:* one range read for 1,000 queues, and seven reads for each queue
        with items, each with a limit. Layers add some (`fdbqueue/observe/reading.py`). The reads of 100 queues are
        under way together. Of 10,000 queues in memory it took 3 s of processor time. No read grows with the number of
        items or sessions. So it finds blocked and paused sessions only among the first 100 by their names; among the
        first 1,000 if any session has dead letters.

        >>> import fdbqueue
        >>> from fdbqueue.layers import Leases
        >>> with fdbqueue.open("memory:") as db:
        ...     mails = Leases(fdbqueue.Queue("mails", codec="json"), max_attempts=1)
        ...     position = mails.enqueue(db, {"to": "Ann"})
        ...     lost = mails.nack(db, mails.lease(db), error="no such box")
        ...     for trouble in fdbqueue.troubles(db):
        ...         print(trouble.severity, trouble.sentence, trouble.command, sep=" | ")
        warning | mails: 1 dead letter: no such box. | fdbqueue dead mails --by-error
        """
        if max_age is not None:
            not_negative(max_age, "max_age")
        not_negative(max_skew, "max_skew")
        limits = Limits(age_s=max_age, skew_s=max_skew)
        if queue is not None:
            if within is not None:
                raise TypeError("Give a queue or within, and not both.")
            layout = Layout(queue)
            found = await _read(tr, partial(_one_that_is_there, layout=layout, limits=limits))
            if found is None:
                near = await nearest(tr, layout)
                raise UnknownQueue(f"No queue {layout.describe()} is registered. {near}".rstrip())
            return worst_first(found)
        begin, end = catalogue_span(within)
        every: list[Trouble] = []
        while begin < end:
            page, begin = await _read(tr, partial(registered_in, begin=begin, end=end))
            for at in range(0, len(page), TOGETHER):
                every += await _read(tr, partial(_of_these, chosen=page[at : at + TOGETHER], limits=limits))
        return worst_first(every)


troubles = _Looks().troubles


async def troubles_of(tr: Transaction, layout: Layout, *, limits: Limits = ANY) -> Troubles:
    """Return the troubles of one queue, registered or not, in a transaction."""
    return worst_first(await _of_these(tr, [Registered(layout.prefix)], limits))


class Listed(NamedTuple):
    """A queue in a list."""

    info: QueueInfo
    troubles: Troubles


def listed(
    db: Database, *, within: Name | None = None, after: Name | None = None, limit: int | None = None
) -> Iterator[Listed]:
    """Yield the registered queues as `fdbqueue.queues` lists them, with their troubles, from one read of each.

    *Conflicts:* none, it reads by snapshot. *Cost:* that of `fdbqueue.troubles`.
    """
    yield from listed_these(db, islice(registered(db, catalogue_span(within, after), most=limit), limit))


def listed_these(db: Database, chosen: Iterable[Registered]) -> Iterator[Listed]:
    """Yield some queues, registered or not, with their troubles, from a transaction for each 100."""
    left = iter(chosen)
    while some := list(islice(left, TOGETHER)):
        yield from run(attempts(db, partial(_listed_in, chosen=some)))


async def _listed_in(tr: Transaction, chosen: Sequence[Registered]) -> list[Listed]:
    found = await figures_in(tr, chosen, time.time())
    for one in found:
        await one.rows.add(adding(tr, one.rows.layout, but=SESSIONS))
    infos = await infos_of(tr, chosen, [finished(one.rows) for one in found])
    return [Listed(info, worst_first(one.troubles)) for info, one in zip(infos, found, strict=True)]


async def _one_that_is_there(tr: Transaction, layout: Layout, limits: Limits) -> Troubles | None:
    return await troubles_of(tr, layout, limits=limits) if await is_there(tr, layout) else None


async def _of_these(tr: Transaction, chosen: Sequence[Registered], limits: Limits) -> list[Trouble]:
    found = await figures_in(tr, chosen, time.time(), limits=limits)
    return [trouble for one in found for trouble in one.troubles]


async def _read(tr: Transaction | Database, body: Callable[[Transaction], Steps[T]]) -> T:
    return await (attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))
