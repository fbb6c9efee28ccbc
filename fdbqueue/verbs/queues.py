"""List the queues of a database, find those that are not registered, and open one by its name alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fdbqueue.base.arguments import check_limit
from fdbqueue.base.reprs import MOST_ROWS, Shown, Table
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Elements, behind, is_within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.keys import within as span_within
from fdbqueue.engine.steps import Steps, rows, run, started, value_of
from fdbqueue.engine.transactional import attempts, is_database, only_database
from fdbqueue.engine.verb import verb
from fdbqueue.errors import CodecError, FormatError, UnknownQueue
from fdbqueue.reads.queue_rows import SESSIONS, QueueRows, read_plain_rows, stored_in
from fdbqueue.stored.catalogue import About, nested_told, nested_with, read_about
from fdbqueue.stored.counters import Stats
from fdbqueue.stored.layout import CATALOGUE, Layout, Name, described, name_of, names_above
from fdbqueue.stored.names import name_text
from fdbqueue.stored.settings import Pause, Quota, renamed

if TYPE_CHECKING:
    from fdbqueue.verbs.queue import Queue

T = TypeVar("T")
PAGE_QUEUES = 100
"""How many queues one transaction of a list looks at."""
PAGE_NAMES = 1_000
"""How many names of registered queues one transaction of `find_queues` reads."""
SCAN_ROWS = 100
NEAR = 0.75
"""How alike two names are at least, from 0 to 1, for one to be proposed in place of the other."""
MOST_NEAR = 3
"""How many names are proposed at most."""
_OWN_CODECS = ("json", "msgpack", "str", "tuple", "bytes")
_UNKNOWN = Stats(**dict.fromkeys((field.name for field in fields(Stats)), 0))
_COUNTED: tuple[bytes, ...] = (
    fdb_tuple.pack(("count", "enqueued")),
    fdb_tuple.pack(("line", "count", "enqueued")),  # a queue that only has sessions
    fdb_tuple.pack(("lines", "number")),  # one whose sessions are in shards
)


@dataclass(frozen=True, slots=True, repr=False)
class QueueInfo(Shown):
    """A queue, as it was when it was listed."""

    name: Elements | bytes
    """Its key tuple, as ``("orders",)``; its prefix, if that is no tuple. `text` is the name as a text."""
    codec: str
    """The name of its codec; "" if it is not registered."""
    order: str
    """The name of its order; "" if it is first in, first out, or not registered."""
    policy: str
    """What becomes of its items that fail, as text; "" if nothing is stored, or if it is not registered."""
    path: tuple[str, ...]
    """Its path in the directory layer; empty if it is in none."""
    registered_at: float | None
    """When it registered itself, in seconds by the clock of that process; None: it is not registered."""
    paused: Pause | None
    """Who paused it and why; None if it is not paused."""
    stats: Stats
    """Its plain items by state, and the totals."""
    sessions: Any = None
    """The `SessionStats` of its sessions; None if it never had any."""
    quota: Quota | None = None
    """How many items or bytes it may have; None: it has no quota."""
    problem: str = ""
    """What could not be read of its figures, or which queue's name lies within its own; "" if all is well."""
    added: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What layers tell of it, by their names (`fdbqueue.lowlevel.PagePart`)."""

    @property
    def text(self) -> str:
        """The name as the command line takes it: plain text, or a key tuple as JSON."""
        return name_text(self.name)


class Registered(NamedTuple):
    """A queue as the catalogue has it."""

    prefix: bytes
    record: bytes | None = None
    """Its record; b"": it has none; None: that is not known yet."""

    async def read_record(self, tr: Transaction) -> bytes:
        """Return its record; b"" if it has none. It is read, by snapshot, if it is not known."""
        return await stored_in(tr.snapshot.get(CATALOGUE + self.prefix)) if self.record is None else self.record


class _Listed(list[QueueInfo]):
    """Queues, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        columns = ("queue", "codec", "order", "available", "leased", "delayed", "dead", "paused")
        rows = tuple(
            (
                *(info.text, info.codec or "not registered", info.order),
                *(info.stats.available, info.stats.leased, info.stats.delayed, info.stats.dead),
                info.paused,
            )
            for info in self[:MOST_ROWS]
        )
        return Table("", columns, rows, more=len(self) > MOST_ROWS)._repr_html_()


class _Catalogue:
    """Holds the verbs about all queues of a database."""

    def __repr__(self) -> str:
        return "fdbqueue"

    @verb
    async def queues(
        self,
        tr: Transaction | Database,
        *,
        within: Name | None = None,
        after: Name | None = None,
        limit: int | None = None,
    ) -> list[QueueInfo]:
        """Return the registered queues of a database, in the order of their keys, with their figures.

        A queue registers itself when something is enqueued into it. `find_queues` finds queues that an older version of
        the library has written.

        Args:
            tr: a transaction, or a database. A database uses a transaction for each 100 queues.
            within: only queues in this subspace or directory, or below this name; None: all.
            after: only queues behind this one in the order of keys, to go on with a list; None: from the first.
            limit: most queues to return, at least 1; None: all.

        *Conflicts:* none, it reads by snapshot. *Cost:* one range read for 100 queues, and five reads for each of them,
        in parallel; for 100 queues a few reads look for names that lie within each other.

        >>> import fdbqueue
        >>> with fdbqueue.open("memory:") as db:
        ...     position = fdbqueue.Queue("orders", codec="json").enqueue(db, 1)
        ...     [(info.text, info.codec, info.stats.available) for info in fdbqueue.queues(db)]
        [('orders', 'json', 1)]
        """
        check_limit(limit, "queues to list", optional=True)
        begin, end = catalogue_span(within, after)
        found = _Listed()
        while begin < end and (limit is None or len(found) < limit):
            most = PAGE_QUEUES if limit is None else min(PAGE_QUEUES, limit - len(found))
            body = partial(_page, begin=begin, end=end, limit=most)
            page: list[QueueInfo]
            page, begin = await (attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))
            found += page
        return found

    @verb
    async def open(self, tr: Transaction | Database, name: Name) -> Queue[Any]:
        """Return a registered queue with the codec that it is registered with.

        Args:
            tr: a transaction, or a database.
            name: the queue's name, a key tuple, or a `Subspace`.

        Raises:
            UnknownQueue: no queue of this name is registered. The message proposes the nearest name.
            CodecError: its codec is a program's own, and must be given: Queue(name, codec=…).

        *Conflicts:* in a transaction, with its registration. *Cost:* one read; one more if it is not registered.

        >>> import fdbqueue
        >>> with fdbqueue.open("memory:") as db:
        ...     position = fdbqueue.Queue("orders", codec="json").enqueue(db, {"sku": 7})
        ...     fdbqueue.Queue.open(db, "orders").dequeue(db).value
        {'sku': 7}
        """
        from fdbqueue.verbs.queue import Queue  # it imports this module

        layout = Layout(name)

        async def body(tr: Transaction) -> About | None:
            value = await value_of(tr.get(layout.catalogue_key))
            return read_about(layout, bytes(value))[1] if value.present() else None

        about = await (attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))
        if about is None:
            near = await nearest(tr, layout)
            raise UnknownQueue(f"No queue {layout.describe()} is registered. {near}".rstrip())
        if about.codec not in _OWN_CODECS:
            raise CodecError(
                f"The codec of {layout.describe()} is {about.codec!r}, which is a program's own. Give it:"
                " Queue(name, codec=…)."
            )
        return Queue(name, codec=about.codec)


queues = _Catalogue().queues
open_queue = _Catalogue().open


def catalogue_span(within: Name | None, after: Name | None = None) -> tuple[bytes, bytes]:
    """Return the begin and end of the records of queues below a name and behind another one; None: of all."""
    begin, end = span_within(CATALOGUE + (b"" if within is None else Layout(within).prefix))
    return (begin if after is None else max(begin, CATALOGUE + Layout(after).prefix + b"\x00")), end


async def nearest(tr: Transaction | Database, layout: Layout) -> str:
    """Return a sentence with the queue's new name, or with the nearest registered names; "" if there is none."""

    async def body(tr: Transaction) -> tuple[str, list[KeyValue]]:
        told = await renamed(tr, layout)
        return told, await rows(tr.snapshot, *span_within(CATALOGUE), limit=10_000)

    told, found = await (attempts(cast(Database, tr), body) if is_database(tr) else body(cast(Transaction, tr)))
    if told:
        return told
    near = _nearest(name_of(layout.prefix), [name_of(row.key[len(CATALOGUE) :]) for row in found])
    return f"Did you mean {' or '.join(map(described, near))}?" if near else ""


def _nearest(own: Elements | bytes, names: Iterable[Elements | bytes]) -> list[Elements]:
    """Return the names that are most like `own`, the nearest first.

    They differ in one part only, and little there; or they are inside `own`, or `own` is their end.

    >>> _nearest(("order",), [("Orders",), ("shop", "order"), ("zebra",)]), _nearest(("shop",), [("shop", "orders")])
    ([('shop', 'order'), ('Orders',)], [('shop', 'orders')])
    """
    import difflib  # nobody needs it before a name is mistyped

    alike: list[tuple[float, Elements]] = []
    for name in names:
        if isinstance(own, bytes) or isinstance(name, bytes):
            continue
        if len(name) > len(own):
            if own in (name[: len(own)], name[-len(own) :]):
                alike.append((1.0, name))
        elif len(name) == len(own):
            parts = [(one, other) for one, other in zip(own, name, strict=True) if one != other]
            if len(parts) == 1:
                one, other = (str(part).casefold() for part in parts[0])
                alike.append((difflib.SequenceMatcher(None, one, other).ratio(), name))
    alike.sort(key=lambda found: -found[0])
    return [name for ratio, name in alike if ratio >= NEAR][:MOST_NEAR]


async def is_there(tr: Transaction, layout: Layout) -> bool:
    """Return whether a queue is registered, or has a key of its own. By snapshot.

    Keys of registered queues below this name are not its own. A commit marker is none either: a call that found nothing
    may have left it.
    """
    if (await value_of(tr.snapshot.get(layout.catalogue_key))).present():
        return True
    inside = await rows(tr.snapshot, *span_within(layout.catalogue_key), limit=PAGE_QUEUES)
    if len(inside) == PAGE_QUEUES:
        return False  # a name above many queues is hardly that of one
    others = [row.key[len(CATALOGUE) :] for row in inside]
    begin, end = layout.whole_range()
    for prefix in sorted([layout.markers.key(), *others]):
        if begin < prefix and await rows(tr.snapshot, begin, prefix, limit=1):
            return True
        begin = max(begin, behind(prefix))
    return bool(await rows(tr.snapshot, begin, end, limit=1))


def find_queues(db: Database, *, within: Name | None = None) -> Iterator[QueueInfo]:
    """Yield all queues of a database, registered or not, in the order of their keys. It reads the database's keys.

    Args:
        db: a database.
        within: only queues in this subspace or directory, or below this name; None: all.

    It reads by many transactions. A queue that comes meanwhile may be left out.

    *Conflicts:* none, it reads by snapshot. *Cost:* reads the catalogue, skips the keys of queues, and reads all others
    with their values.
    """
    only_database(db, "find_queues", "In a transaction use queues(tr), for registered queues.")
    prefix = b"" if within is None else Layout(within).prefix
    begin, end = span_within(prefix) if prefix else (b"", CATALOGUE[:1])
    # A queue without keys is met in the catalogue only.
    names = (one.prefix for one in registered(db, catalogue_span(within)))
    ahead = next(names, None)
    tested: set[bytes] = set()
    while begin < end:
        found, info, begin = run(attempts(db, partial(_scan, begin=begin, end=end, tested=tested)))
        bound = begin if info is None else found
        while ahead is not None and ahead < bound:
            yield _described(db, ahead)
            ahead = next(names, None)
        if info is not None:
            if ahead == found:
                ahead = next(names, None)
            yield info
    while ahead is not None:
        yield _described(db, ahead)
        ahead = next(names, None)


def _described(db: Database, prefix: bytes) -> QueueInfo:
    [info] = run(attempts(db, partial(_infos, found=[Registered(prefix)])))
    return info


def registered(
    db: Database, span: tuple[bytes, bytes] | None = None, *, most: int | None = None, timeout_ms: int = 0
) -> Iterator[Registered]:
    """Yield the registered queues of a part of the catalogue, from a transaction for each `PAGE_NAMES` of them.

    Args:
        span: the begin and end of that part; None: all.
        most: how many the caller takes at most; None: all.
        timeout_ms: how long the reads of a transaction may take; 0: as long as the database allows.
    """
    begin, end = span or catalogue_span(None)
    limit = min(PAGE_NAMES, most or PAGE_NAMES)
    while begin < end:
        body = partial(registered_in, begin=begin, end=end, limit=limit)
        page, begin = run(attempts(db, partial(in_time, body=body, timeout_ms=timeout_ms)))
        yield from page


async def registered_in(
    tr: Transaction, begin: bytes, end: bytes, limit: int | None = None
) -> tuple[list[Registered], bytes]:
    """Read some registered queues of a part of the catalogue. Return the key to go on from, too."""
    limit = limit or PAGE_NAMES
    page = await rows(tr.snapshot, begin, end, limit=limit)
    return [Registered(row.key[len(CATALOGUE) :], row.value) for row in page], _behind(page, limit, end)


async def in_time(tr: Transaction, body: Callable[[Transaction], Steps[T]], timeout_ms: int) -> T:
    """Run a body whose reads may take so long; 0: as long as the database allows."""
    if timeout_ms:
        tr.options.set_timeout(timeout_ms)
    return await body(tr)


def _behind(page: list[KeyValue], limit: int, end: bytes) -> bytes:
    """Return the key to go on from behind a page; `end` if it was the last one."""
    return page[-1].key + b"\x00" if len(page) == limit else end


async def _scan(tr: Transaction, begin: bytes, end: bytes, tested: set[bytes]) -> tuple[bytes, QueueInfo | None, bytes]:
    """Look for a queue among the next keys. Return its prefix and description, and the key to go on from."""
    page = await rows(tr.snapshot, begin, end, limit=SCAN_ROWS)
    candidates = list(dict.fromkeys(one for row in page for one in names_above(row.key) if one not in tested))
    reads = [(one, [tr.snapshot.get(one + counted) for counted in _COUNTED]) for one in candidates]
    for one, counts in reads:
        for count in counts:
            if (await value_of(count)).present():
                [info] = await _infos(tr, [Registered(one)])
                return one, info, behind(one)
    tested.update(candidates)
    return b"", None, _behind(page, SCAN_ROWS, end)


async def _page(tr: Transaction, begin: bytes, end: bytes, limit: int) -> tuple[list[QueueInfo], bytes]:
    page, begin = await registered_in(tr, begin, end, limit)
    return await _infos(tr, page), begin


async def _infos(tr: Transaction, found: Sequence[Registered]) -> list[QueueInfo]:
    reading = [started(read_plain_rows(tr, Layout.at(one.prefix))) for one in found]
    return await infos_of(tr, found, reading)


async def infos_of(
    tr: Transaction, found: Sequence[Registered], reading: Iterable[Steps[QueueRows]]
) -> list[QueueInfo]:
    """Describe queues, one behind the other in the catalogue, from rows that are read already or are being read."""
    records = [started(one.read_record(tr)) for one in found]
    nested = await _nested(tr, [one.prefix for one in found])
    return [
        _info(await steps, await record, nested.get(one.prefix))
        for steps, record, one in zip(reading, records, found, strict=True)
    ]


def _info(rows: QueueRows, record: bytes, nested: bytes | None) -> QueueInfo:
    layout, quota, created_us, about = rows.layout, None, 0, About("")
    if record:
        with suppress(FormatError):  # of a newer version, or damaged: the queue is there, and can be registered again
            created_us, about = read_about(layout, record)
    with suppress(FormatError):  # the next enqueue reports it
        quota = rows.quota
    told = [] if nested is None else [nested_told(layout.prefix, nested)]
    told += [] if rows.uncounted is None else [str(rows.uncounted)]
    return QueueInfo(
        name=name_of(layout.prefix),
        codec=about.codec,
        order=about.order,
        policy=about.policy,
        path=about.path,
        registered_at=created_us / 1e6 if created_us else None,
        paused=rows.told_pause,
        stats=_UNKNOWN if rows.counts is None else rows.stats,
        sessions=rows.added.get(SESSIONS),
        quota=quota,
        problem=" ".join(told),
        added=rows.added,
    )


async def _nested(tr: Transaction, found: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return which of some queues, one behind the other in the catalogue, have names within others, or around them."""
    if not found:
        return {}
    ends = [started(nested_with(tr, Layout.at(prefix))) for prefix in {found[0], found[-1]}]
    others: list[bytes] = []
    for steps in ends:
        others += await steps
    nested: dict[bytes, bytes] = {}
    around: list[bytes] = []
    for prefix in sorted({*others, *found}):
        around = [one for one in around if is_within(prefix, one)]
        if around:
            nested[prefix] = around[-1]
            nested.setdefault(around[-1], prefix)
        around.append(prefix)
    return nested
