"""`SmartQueue`: the verbs of a queue whose items decide about incoming items, its stats and its check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import asdict

from fdbqueue import CheckFailed, CheckReport, FormatError, Queue
from fdbqueue.engine.blocking import blocking
from fdbqueue.engine.keys import is_within
from fdbqueue.lowlevel import (
    CheckPart,
    Database,
    Editing,
    ItemCheck,
    KeyValue,
    Layout,
    Named,
    Notes,
    Shown,
    Steps,
    Subspace,
    Transaction,
    check_values,
    pages,
    parse,
    rows,
    verb,
    within,
)
from fdbqueue.stored.codecs import reason_of
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.places import CLAIMED

from ..common.composing import QueueWithLeases, TakenFromFront, leases_of
from ..common.levels import with_priority
from ..leases import Leases, LeaseStats
from ..leases.done import sessions_of
from ..leases.reports import check_leases
from ._resend import Resend
from .admitting import Admitting, EnqueueTerms, SmartBatches, SmartEditing, enqueue_terms
from .capacity import check_waiting, until_room
from .check_runner import CheckRunner, CheckTerms, Incoming
from .copies import Copies, said
from .messages import NEW, Functions, Messages, failed
from .scanning import SmartIndex, position_of
from .types import Decision, Limit, Message, Outcome

# Checks a smart queue's index against a rescan of its items, and counts the items.

# Checks that the dependent keys of items are those that their notes name. This needs no message types.

MESSAGES = "messages of a smart queue"


class DependentKeysCheck(ItemCheck):
    """Compares the dependent keys of a queue's items with those that their notes name.

    `SmartQueue.check` also checks that an item's index entry has the right type and key.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._layout = layout
        self._named: set[bytes] = set()

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the keys that an item's notes name."""
        if notes is not None and state not in ("dead", CLAIMED):
            self._named.update(self._layout.dependent_keys(notes.beside, packed))

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        layout, named = self._layout, self._named
        entries = set(keys_of(self._tr, layout.smart))
        begin: bytes = layout.smart.key()
        missing = sorted(key for key in named - entries if is_within(key, begin))
        problems = [f"The smart index has no {_told(layout, key)}, which its item's notes name." for key in missing]
        problems += surplus(layout, "smart index", sorted(entries), named)
        return [*problems, *self._surplus_of_others()]

    def _surplus_of_others(self) -> list[str]:
        """Return a sentence for each deadline and copy that no item's notes name."""
        layout = self._layout
        spaces = (("deadline", layout.deadlines), ("copy", layout.copies), ("unsent", layout.unsent))
        return [told for name, space in spaces for told in surplus(layout, name, keys_of(self._tr, space), self._named)]


def surplus(layout: Layout, name: str, keys: Iterable[bytes], named: set[bytes]) -> list[str]:
    """Return a sentence for each key of one kind that no item's notes name."""
    return [f"The key {_told(layout, key)} of a {name} belongs to no item." for key in keys if key not in named]


def keys_of(tr: Transaction | Database, space: Subspace) -> Iterator[bytes]:
    """Yield the keys of a subspace, a page at a time."""
    for page in pages(tr, *within(space.key())):
        for row in page:
            yield row.key


def _told(layout: Layout, key: bytes) -> str:
    return str(name_of(key[len(layout.prefix) :]))  # its bytes, if another program wrote it


def _part(tr: Transaction | Database, queue: Queue) -> DependentKeysCheck:
    return DependentKeysCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("dependent keys",), leaves_out=((MESSAGES, lambda layout: layout.smart),))
"""What smart queues add to `fdbqueue.check`."""


COUNTED = 1_000


@dataclass(frozen=True, slots=True, repr=False)
class RecipientStats(Shown):
    """The items that one recipient has yet to handle, each counted up to 1,000."""

    unsent: int
    """Items that it must fetch."""
    unconfirmed: int
    """Items that it must confirm, fetched or not."""


@dataclass(frozen=True, slots=True, repr=False)
class SmartStats(Shown):
    """The contents of a smart queue."""

    items: LeaseStats
    """Items by state."""
    types: dict[str, int]
    """Items of each type without dead letters, counted up to 1,000."""
    recipients: dict[str, RecipientStats]
    """Recipients by name."""


async def read_smart_stats(
    tr: Transaction, layout: Layout, index: SmartIndex, messages: Messages, items: LeaseStats
) -> SmartStats:
    """Count the items, by snapshot reads."""
    types = {}
    for name in messages.types:
        span = index.span(name)
        types[name] = len(await rows(tr.snapshot, span.begin, span.end, limit=COUNTED))
    recipients = {}
    registry = await Copies(layout).registry(tr)
    for name, number in registry.numbers.items():
        counts = []
        for space in (layout.unsent, layout.copies):
            copies = within(space[number].key())
            counts.append(len(await rows(tr.snapshot, *copies, limit=COUNTED)))
        recipients[name] = RecipientStats(*counts)
    return SmartStats(items, types, recipients)


class IndexCheck(DependentKeysCheck):
    """Compares the index and the other dependent keys of items with the items' messages.

    Args:
        tr: a transaction, or a database.
        layout: the layout of the queue, or of a session.
        messages: the types of the messages.
    """

    def __init__(self, tr: Transaction | Database, layout: Layout, messages: Messages) -> None:
        super().__init__(tr, layout)
        self._index = SmartIndex(layout)
        self._messages = messages
        self._functions = Functions(messages.types.values())
        self._problems: list[str] = []
        self._wanted: set[bytes] = set()

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note the index entry that an item should have, and the keys that its notes name."""
        super().see(packed, state, row, notes)
        if notes is None or state in ("dead", CLAIMED):
            return
        problem, entry = self._entry_of(packed, row)
        if entry:
            self._wanted.add(entry)
        if problem or entry not in self._layout.dependent_keys(notes.beside, packed):
            told = problem or "has notes that do not name its index entry"
            self._problems.append(f"The item {position_of(self._layout, packed)} {told}.")

    def problems(self) -> list[str]:
        """Return one sentence for each inconsistency."""
        layout, wanted = self._layout, self._wanted
        found = set(keys_of(self._tr, layout.smart))
        problems = [f"The item {self._told(key)} is missing in the index." for key in sorted(wanted - found)]
        problems += [f"The index has an entry of {self._told(key)}, which is no such item's." for key in found - wanted]
        return [*self._problems, *problems, *self._surplus_of_others()]

    def _entry_of(self, packed: bytes, row: KeyValue) -> tuple[str, bytes]:
        """Return the problem of an item, and the index key that it should have by its own message."""
        layout, messages = self._layout, self._messages
        try:
            opened = parse(row.value)
            payload = opened.payload
            if opened.chunked is not None:
                begin, end = layout.chunk_range_of(packed)
                payload = b"".join(chunk.value for page in pages(self._tr, begin, end) for chunk in page)
        except FormatError as error:
            return f"can't be read as a message: {error}", b""
        try:
            message = messages.decode(payload)
        except Exception as error:  # noqa: BLE001 - the class of a message may be code that is not ours
            return f"can't be read as a message: {reason_of(error)}", b""
        own = messages.type_of(message)
        try:
            key = self._functions.key(own, message, whose="that item")
        except CheckFailed as error:
            return f"can't be given its entry in the index. {str(error).rstrip('.')}", b""
        return "", layout.prefix + self._index.part(own.name, key) + packed

    def _told(self, key: bytes) -> str:
        return f"{position_of(self._layout, self._index.packed(key))} of type {self._index.type_of(key)!r}"


MAX_SCAN_ITEMS = 10_000
MAX_SCAN_BYTES = 20_000_000
CHECK_SECONDS = 1.0


class SmartQueue(Named, TakenFromFront):
    """A queue whose items decide about incoming items.

    As everywhere, a verb takes a transaction or a database. In a transaction it commits nothing. Given a database, it
    commits exactly once. Every verb has an awaitable form, ``await smart.enqueue.aio(db, message)``.

    Args:
        queue: a queue whose codec is a `Messages`, its `Leases`, or a layer that has leases, such as a `PriorityQueue`.
        limit: how many items there may be in all.
        max_items: how many queued items an incoming item may be compared with.
        max_bytes: how large these items may be together.
        check_seconds: how long the checks of up to 1,000 items may take together.
        debug: run each check twice, and refuse a check whose two answers differ.

    >>> import fdbqueue
    >>> from dataclasses import dataclass
    >>> from fdbqueue.layers import OWN_KEY, Decision, Messages, MessageType, SmartQueue
    >>> @dataclass
    ... class Progress:
    ...     file: str
    ...     percent: int
    ...     def check(self, new):
    ...         self.percent = new.percent
    ...         return Decision.ignore
    >>> messages = Messages(MessageType("progress", Progress, key=lambda progress: progress.file, sees=OWN_KEY))
    >>> display = SmartQueue(fdbqueue.Queue("display", codec=messages))
    >>> with fdbqueue.open("memory:") as db:
    ...     for message in Progress("a", 10), Progress("b", 5), Progress("a", 20):
    ...         print(display.enqueue(db, message).decision)
    ...     print(*(item.value for item in display.dequeue_many(db)))
    queue
    queue
    ignore
    Progress(file='a', percent=20) Progress(file='b', percent=5)
    """

    def __init__(
        self,
        queue: Queue | Leases | QueueWithLeases,
        *,
        limit: Limit | None = None,
        max_items: int = MAX_SCAN_ITEMS,
        max_bytes: int = MAX_SCAN_BYTES,
        check_seconds: float = CHECK_SECONDS,
        debug: bool = False,
    ) -> None:
        if isinstance(queue, SmartQueue):
            raise TypeError(f"{queue!r} is a SmartQueue already, with its own limits: use it, or give its `leases`.")
        if (sessions := sessions_of(queue)) is not None:
            raise TypeError(
                f"SmartQueue takes a Queue or its Leases, not {queue!r}. For checks within a session take"
                f" SmartSessions(sessions). {sessions.taken_by}"
            )
        self.leases = leases_of(queue, "SmartQueue")
        self.queue = self.leases.queue
        if not isinstance(self.queue.codec, Messages):
            raise TypeError(f"A smart queue's codec is a Messages, not {self.queue.codec.name!r}: Queue(…, codec=…).")
        self.messages = self.queue.codec
        terms = CheckTerms(limit, max_items, max_bytes, check_seconds, debug)
        self.resend = Resend(self.leases)
        """The recipients that fetch copies and confirm them."""
        self._check_runner = CheckRunner(self.queue, self.messages, terms)
        self._admitting = Admitting(self.queue, self.leases, self._check_runner)
        self.queue.layout.known.made.is_smart = True

    def __reduce__(self) -> tuple[partial[SmartQueue], tuple[Leases]]:
        return partial(SmartQueue, **asdict(self._check_runner.terms)), (self.leases,)

    def __repr__(self) -> str:
        return f"SmartQueue({self.queue.layout.describe()}, {self.messages!r})"

    @verb
    async def enqueue(
        self,
        tr: Transaction | Database,
        value: Message,
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """Compare a message with the queued items that its type sees, and append it unless one decides otherwise.

        Args:
            tr: a transaction to enqueue in, or a database.
            value: a message of a registered type.
            priority: as `PriorityQueue.enqueue`, for a queue with levels; stored as the header "priority".
            delay: seconds until it becomes available, if it is appended.
            at: the same as a time of the clock.
            ttl: seconds after which it is removed, unless its type's `expires` is sooner.
            headers: a small mapping stored beside it.
            timeout: seconds to wait for room if a limit says "wait"; None: no limit. It needs a database.

        If a queued item changes to its values, these terms are dropped. The item keeps its own headers, rank, place and
        delay. An item that answers ``Replace(message, terms="incoming")`` gets these terms.

        Raises:
            CodecError, ItemTooLarge: the message does not fit. CheckFailed: a check, or a function of a message type,
            is at fault. QueueFull: a limit is reached. ScanTooLarge: it must see too many items; the error says which
            index would help. ValueError: the queue has no such priority, or the message is a confirmation that does not
            say what it confirms (`fdbqueue.layers.smart`). ChecksBypassed: the first smart enqueue, of a queue that
            has plain items. In all cases nothing was written.

        *Conflicts:* with incoming items that it must be compared with, and with every change of an item that was asked.
        Also with items that enter or leave within its limits; with nothing else. *Cost:* two rounds of parallel reads,
        for the keys of the items that it sees, and then for these; one if there are none. A plain enqueue's writes, and
        one for the index.
        """
        check_waiting(tr, timeout)
        headers = with_priority(self.queue, headers, priority)
        terms = enqueue_terms(self.leases.now_us(), delay, at, ttl, headers)
        new = self._incoming(value)
        return await self._enqueue(tr, new, terms, timeout)

    @verb
    async def enqueue_many(
        self,
        tr: Transaction | Database,
        values: Iterable[Message],
        *,
        priority: int | None = None,
        delay: float | None = None,
        at: float | None = None,
        ttl: float | None = None,
        headers: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Enqueue messages in order, all with the same terms; each is also compared with those before it.

        Given a transaction, it enqueues all of them in it. Given a database, it uses transactions of up to 100
        messages, each exactly once.

        Args, errors and *Conflicts:* as `enqueue`, for each message. Given a transaction, a failing message fails the
        call, and those before it are written: roll it back. *Cost:* as `enqueue`, once for each transaction: what the
        messages will see is read together, and each sees what those before it have done. A cluster is asked again for
        each message that confirms a copy, sees more than 1,000 items, meets large ones, or finds no room and drops
        others.

        Raises:
            BulkInterrupted: given a database, a message failed after others were enqueued.
            TypeError: `values` is one str, bytes or mapping; no key was touched.
        """
        check_waiting(tr, timeout)
        headers = with_priority(self.queue, headers, priority)
        terms = enqueue_terms(self.leases.now_us(), delay, at, ttl, headers)
        check_values(values)
        alone = partial(self._enqueue, tr, terms=terms, timeout=timeout)
        admit = partial(self._admit, terms=terms)
        batches = SmartBatches(self.queue, self._incoming, admit, self._admitting.read_ahead, alone)
        return await batches.enqueue(tr, values)

    @verb
    async def stats(self, tr: Transaction | Database) -> SmartStats:
        """Return the number of items in each state, of each type, and for each recipient.

        *Conflicts:* none, it uses snapshot reads. *Cost:* a few reads, and up to 1,000 keys per type and recipient.
        """
        items = await self.leases.stats.steps(tr)
        body = partial(
            read_smart_stats, layout=self.queue.layout, index=self._admitting.index, messages=self.messages, items=items
        )
        return await self.queue.read(tr, body)

    @verb
    def check(self, tr: Transaction | Database) -> Steps[CheckReport]:
        """Read everything that the queue owns and compare: do what `Leases.check` does, and rescan for the index.

        *Conflicts:* none, it uses snapshot reads. *Cost:* reads the whole queue once, a page at a time; memory for the
        dependent keys of items.
        """
        layout = self.leases.layout
        return blocking(lambda: check_leases(tr, layout, lambda tr: IndexCheck(tr, layout, self.messages)))

    def editing(self) -> Editing[Message]:
        """Return the changes of items by their positions; for layers."""
        now_us = self.leases.now_us
        return SmartEditing(self.queue, now_us, self._admitting)

    def _incoming(self, message: Message) -> Incoming:
        return self._check_runner.incoming(message, self.leases.now_us())

    def _enqueue(
        self, tr: Transaction | Database, new: Incoming, terms: EnqueueTerms, timeout: float | None
    ) -> Steps[Outcome]:
        admit, wait = partial(self._admit, new=new, terms=terms), partial(self._admitting.capacity.wait, new=new)
        return until_room(self.queue, tr, admit, wait, timeout, "SmartQueue.enqueue")

    async def _admit(self, tr: Transaction, new: Incoming, terms: EnqueueTerms) -> Outcome:
        if new.type.confirms is not None:
            return await self._confirm(tr, new)
        return await self._admitting.admit(tr, new, terms, self.leases.now_us())

    async def _confirm(self, tr: Transaction, new: Incoming) -> Outcome:
        """Confirm a copy: its item decides "ignore and delete", and no other item is asked."""
        what = self._check_runner.functions.confirms(new.type, new.message)
        try:
            recipient, named = said(what)
        except (TypeError, ValueError) as error:
            raise failed(new.type.name, "confirms", str(error).rstrip("."), NEW) from error
        by, gone = await self.resend.confirm_in(tr, recipient=recipient, named=named)
        decision = Decision.ignore if by is None else Decision.ignore_and_delete
        deleted = (by,) if by is not None and gone else ()
        return Outcome(decision, by, None, None, deleted, (), False, int(by is not None), int(by is not None), 0)
