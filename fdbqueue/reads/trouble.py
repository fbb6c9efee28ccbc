"""A trouble of a queue, as every view shows it. `fdbqueue/observe/judging.py` finds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fdbqueue.base.position import Position
from fdbqueue.base.reprs import MOST_ROWS, Shown, Table, counted, utc

Severity: TypeAlias = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note")
"""From the worst to the least. A problem needs somebody now: calls fail, or items wait in vain. A warning wants
a look today. A note tells of a pause, or of something that ends soon."""

KINDS: dict[str, str] = {
    "unreadable": "its first item, a counter or another record can't be read",
    "newer_format": "a newer version of fdbqueue wrote it",
    "clock_ahead": "a time stored in it is ahead of this clock",
    "blocked_session": "a session is blocked by a dead letter",
    "full_quota": "its quota is used up",
    "expired_leases": "leases have expired and were not ended",
    "stopped_schedule": "a schedule's tick is over, and no worker enqueued it",
    "name_within": "its name is within the name of another queue",
    "old_item": "its first item is older than you allow",
    "dead_letters": "it has dead letters",
    "session_dead_letters": "its sessions have dead letters",
    "no_consumer": "it has items and no consumer",
    "overdue_timers": "delays or lives have ended, and no consumer has looked since",
    "many_attempts": "an item has failed often",
    "long_wait": "a session waits for long",
    "foreign_key": "a key in it is not the library's",
    "rename_under_way": "a rename has not ended",
    "paused_queue": "it is paused",
    "paused_session": "a session of it is paused",
    "suspended_subscription": "a subscription of it is suspended",
    "slow_commit": "a commit takes long; of the whole database, and only `health` measures it",
}
"""The kinds of troubles, in the order in which troubles of one severity are shown, and what each means."""
_ORDER = {kind: at for at, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True, repr=False)
class Trouble(Shown):
    """Something about a queue that a person should know. A queue has one of each kind at most."""

    kind: str
    """One of the kinds of `fdbqueue/reads/trouble.py`, such as "dead_letters"."""
    severity: Severity
    """"problem": it needs somebody now; "warning": it wants a look; "note": an operator has set it so."""
    queue: str
    """The queue's name as the command line takes it; "": it is the whole database's."""
    text: str
    """What is wrong, in a sentence without the queue's name."""
    many: int = 1
    """How many items, leases, timers, sessions, … it concerns: those that a bounded look has found."""
    since: float | None = None
    """Since when, in seconds since 1970, as far as the stored times tell; None: no time is stored."""
    command: str = ""
    """The next command in a shell."""
    method: str = ""
    """The same in Python."""
    session: Any = None
    """The session's name, or that of the first of several."""
    subscription: str = ""
    """The subscription's name, or that of the first of several."""
    schedule: str = ""
    """The schedule's name, or that of the first of several."""
    position: Position | None = None
    """The item, if it is one."""

    @property
    def sentence(self) -> str:
        """The trouble in a sentence, with the name of its queue.

        >>> from fdbqueue.reads.trouble import Trouble
        >>> Trouble("dead_letters", "warning", "orders", "2 dead letters.").sentence
        'orders: 2 dead letters.'
        """
        return f"{self.queue}: {self.text}" if self.queue else self.text

    @property
    def told_since(self) -> str:
        """Since when, as a sentence behind the text; "" if that is not known."""
        return "" if self.since is None else f" Since {utc(self.since)} UTC."

    def record(self) -> dict[str, Any]:
        """Return the trouble as a JSON object has it, without what it does not have."""
        named = {"session": self.session, "subscription": self.subscription, "schedule": self.schedule}
        position = None if self.position is None else self.position.text
        own = {"kind": self.kind, "severity": self.severity, "queue": self.queue, "text": self.text, "many": self.many}
        more = {"since": self.since, **named, "position": position, "command": self.command, "method": self.method}
        return {**own, **{name: value for name, value in more.items() if value not in (None, "")}}

    @property
    def needs_you(self) -> bool:
        """Whether somebody should do something: it is more than a note."""
        return self.severity != "note"


class Troubles(list[Trouble]):
    """Troubles, the worst first. A notebook shows them as a table."""

    @property
    def heading(self) -> str:
        """The number of those that need somebody, in words.

        >>> from fdbqueue.reads.trouble import Troubles
        >>> Troubles().heading
        'Nothing needs you'
        """
        number = sum(one.needs_you for one in self)
        return f"{counted(number, 'thing needs', 'things need')} you" if number else "Nothing needs you"

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None without a trouble."""
        return self[0].severity if self else None

    def text(self) -> str:
        """Return them as lines, each with its next command below it, and without the names of their queues."""
        return "\n".join(
            f"{one.severity}: {one.text}{one.told_since}" + (f"\n    {one.command}" if one.command else "")
            for one in self
        )

    def table(self) -> Table:
        """Return them as a table."""
        rows = tuple((one.severity, one.kind, one.queue, one.text, one.since, one.command) for one in self[:MOST_ROWS])
        columns = ("severity", "kind", "queue", "trouble", "since_at", "command")
        return Table(self.heading, columns, rows, more=len(self) > MOST_ROWS)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def worst_first(found: Iterable[Trouble]) -> Troubles:
    """Return troubles by severity, then by kind, then by queue as they came."""
    return Troubles(sorted(found, key=lambda one: (SEVERITIES.index(one.severity), _ORDER[one.kind])))


def rank_of(found: Iterable[Trouble]) -> tuple[int, ...]:
    """Return what queues are sorted by, so that the one with the worst troubles comes first.

    >>> from fdbqueue.reads.trouble import rank_of
    >>> rank_of([])
    (0, 0, 0)
    """
    numbers = Counter(one.severity for one in found)
    return tuple(-numbers[severity] for severity in SEVERITIES)


def in_queue(found: Iterable[Trouble], queue: str) -> Iterator[Trouble]:
    """Yield the troubles of one queue."""
    return (one for one in found if one.queue == queue)
