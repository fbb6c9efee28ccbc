"""List the queues of a database, find those that are not registered, and open one by its name alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fdbqueue.base.arguments import check_limit
from fdbqueue.base.reprs import MOST_ROWS, Shown, Table
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Subspace, behind, is_within
from fdbqueue.engine.keys import tuple as fdb_tuple
from fdbqueue.engine.keys import within as span_within
from fdbqueue.engine.steps import rows, run, started, value_of
from fdbqueue.engine.transactional import attempts, is_database, only_database
from fdbqueue.engine.verb import verb
from fdbqueue.errors import CodecError, FormatError, UnknownQueue
from fdbqueue.moves.pausing import Pause, read_pause
from fdbqueue.moves.quotas import Quota, read_quota
from fdbqueue.reads.registry import page_parts
from fdbqueue.stored.catalogue import About, nested_told, nested_with, read_about
from fdbqueue.stored.counters import Stats, read_stats
from fdbqueue.stored.layout import CATALOGUE, Layout, Name, described, name_of, names_above
from fdbqueue.stored.names import name_text
from fdbqueue.stored.rename_marks import renamed

if TYPE_CHECKING:
    from fdbqueue.verbs.queue import Queue

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

    name: tuple[Any, ...] | bytes
    """Its key tuple, as ``("orders",)``; its prefix, if that is no tuple. `text` is the name as a text."""
    codec: str
    """The name of its codec; "" if it is not registered."""
    order: str
    """The name of its order; "" if it is first in, first out, or not registered."""
    policy: str
    """Its leases with their policy, as text; "" if they have none, or if it is not registered."""
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
        prefix = b"" if within is None else _space_of(within).key()
        begin, end = span_within(CATALOGUE + prefix)
        if after is not None:
            begin = max(begin, CATALOGUE + _space_of(after).key() + b"\x00")
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


def _nearest(own: tuple[Any, ...] | bytes, names: Iterable[tuple[Any, ...] | bytes]) -> list[tuple[Any, ...]]:
    """Return the names that are most like `own`, the nearest first.

    They differ in one part only, and little there; or they are inside `own`, or `own` is their end.

    >>> _nearest(("order",), [("Orders",), ("shop", "order"), ("zebra",)]), _nearest(("shop",), [("shop", "orders")])
    ([('shop', 'order'), ('Orders',)], [('shop', 'orders')])
    """
    import difflib  # nobody needs it before a name is mistyped

    alike: list[tuple[float, tuple[Any, ...]]] = []
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
    prefix = b"" if within is None else _space_of(within).key()
    begin, end = span_within(prefix) if prefix else (b"", CATALOGUE[:1])
    # A queue without keys is met in the catalogue only.
    registered = _registered(db, prefix)
    ahead = next(registered, None)
    tested: set[bytes] = set()
    while begin < end:
        found, info, begin = run(attempts(db, partial(_scan, begin=begin, end=end, tested=tested)))
        bound = begin if info is None else found
        while ahead is not None and ahead < bound:
            yield _described(db, ahead)
            ahead = next(registered, None)
        if info is not None:
            if ahead == found:
                ahead = next(registered, None)
            yield info
    while ahead is not None:
        yield _described(db, ahead)
        ahead = next(registered, None)


def _described(db: Database, prefix: bytes) -> QueueInfo:
    [info] = run(attempts(db, partial(_infos, found=[(prefix, None)])))
    return info


def _registered(db: Database, prefix: bytes) -> Iterator[bytes]:
    """Yield the prefixes of the registered queues, from a transaction for each `PAGE_NAMES` of them."""
    begin, end = span_within(CATALOGUE + prefix)
    while begin < end:
        names, begin = run(attempts(db, partial(_names, begin=begin, end=end)))
        yield from names


async def _names(tr: Transaction, begin: bytes, end: bytes) -> tuple[list[bytes], bytes]:
    page = await rows(tr.snapshot, begin, end, limit=PAGE_NAMES)
    return [row.key[len(CATALOGUE) :] for row in page], _behind(page, PAGE_NAMES, end)


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
                [info] = await _infos(tr, [(one, None)])
                return one, info, behind(one)
    tested.update(candidates)
    return b"", None, _behind(page, SCAN_ROWS, end)


async def _page(tr: Transaction, begin: bytes, end: bytes, limit: int) -> tuple[list[QueueInfo], bytes]:
    page = await rows(tr.snapshot, begin, end, limit=limit)
    infos = await _infos(tr, [(row.key[len(CATALOGUE) :], row.value) for row in page])
    return infos, _behind(page, limit, end)


async def _infos(tr: Transaction, found: Iterable[tuple[bytes, bytes | None]]) -> list[QueueInfo]:
    """Describe queues, from their prefixes and their records; None: read the record."""
    reads = []
    parts = page_parts.all()
    for prefix, stored in found:
        layout = Layout.at(prefix)
        record = started(_record(tr, layout, stored))
        more = started(_paused(tr, layout)), started(_quota(tr, layout))
        adding = {name: started(part.stats(tr, layout)) for name, part in parts.items() if part.stats is not None}
        reads.append((layout, record, started(read_stats(tr, layout)), *more, adding))
    nested = await _nested(tr, [prefix for prefix, _ in found])
    infos = []
    for layout, record, counting, pausing, limiting, adding in reads:
        created_us, about = await record
        stats, added, problem = _UNKNOWN, dict[str, Any](), ""
        try:
            stats = await counting
            for name, reading in adding.items():
                added[name] = await reading
        except FormatError as error:
            problem = str(error)
        if other := nested.get(layout.prefix):
            problem = f"{nested_told(layout.prefix, other)} {problem}".rstrip()
        paused = await pausing
        quota = await limiting
        created = created_us / 1e6 if created_us else None
        told = (about.codec, about.order, about.policy, about.path)
        infos.append(
            QueueInfo(
                name_of(layout.prefix), *told, created, paused, stats, added.get("sessions"), quota, problem, added
            )
        )
    return infos


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


async def _record(tr: Transaction, layout: Layout, stored: bytes | None) -> tuple[int, About]:
    if stored is None:
        value = await value_of(tr.snapshot.get(layout.catalogue_key))
        stored = bytes(value) if value.present() else b""
    try:
        return read_about(layout, stored) if stored else (0, About(""))
    except FormatError:
        return 0, About("")  # of a newer version, or damaged: the queue is there, and can be registered again


async def _paused(tr: Transaction, layout: Layout) -> Pause | None:
    try:
        return await read_pause(tr.snapshot, layout)
    except FormatError as error:
        return Pause("", str(error), 0.0)


async def _quota(tr: Transaction, layout: Layout) -> Quota | None:
    try:
        return await read_quota(tr.snapshot, layout)
    except FormatError:
        return None  # the next enqueue reports it


def _space_of(name: Name) -> Subspace:
    return Layout(name).space
