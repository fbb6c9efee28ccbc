"""What layers add to the looks at a queue: a section of its page, figures in a list of queues, parts of its check.

Tables name what the library's own layers add, by module. A module is imported at the first look that needs it, so
`import fdbqueue` brings in no layer. A layer of your own adds to the tables by `add_to_page` and `add_to_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from fdbqueue.base.contributions import Contributions
from fdbqueue.base.reprs import Table
from fdbqueue.engine.api import Database, KeyValue, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout


class Section(Protocol):
    """What a layer says of a queue on its page."""

    def facts(self) -> str:
        """Return the most important figures in one line."""

    def tables(self) -> Iterator[Table]:
        """Yield tables that have rows."""


class ItemCheck:
    """A layer's part of a check. It sees each item of the queue once, and then says what is wrong.

    A check that is given a database makes one transaction of its own, and gives it to its parts. Only a queue that is
    too long for it is read in many: then the parts get a database. An item that moves between two of them may look
    wrong. So whatever a part finds there is a problem only if nothing in the queue has changed meanwhile.
    """

    items = 0
    """Items that it has read beside those of the queue."""
    counted = True
    """Whether it could compare the counters of those."""
    foreign: Sequence[bytes] = ()
    """Keys that it has read and that are not the library's."""

    def see(self, packed: bytes, state: str, row: KeyValue, notes: Notes | None) -> None:
        """Note an item. Items come in the order of their positions, in all states.

        Args:
            packed: its packed position.
            notes: its notes; None if they can't be read, which the check itself reports.
        """

    def problems(self) -> list[str]:
        """Return the inconsistencies, one sentence each, when all items have been seen."""
        return []


MakesCheck: TypeAlias = Callable[[], ItemCheck]
"""Begins a layer's part of a check."""


MakesContentCheck: TypeAlias = Callable[[Transaction | Database, Layout], ItemCheck]
"""Begins a part of every check of a queue, also of `Queue.check`: what items have beside themselves.

It is given the layout where items keep that.
"""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """What a layer adds to `fdbqueue.check`."""

    make: Callable[[Transaction | Database, Any], ItemCheck]
    """Begins its part of the check of a `Queue`."""
    looks_at: tuple[str, ...]
    """What it compares, in words."""
    leaves_out: tuple[tuple[str, Callable[[Layout], Subspace]], ...] = ()
    """What it does not look at, in words, and where that is."""
    owns: tuple[Callable[[Layout], Subspace], ...] = ()
    """The keys of the layer below the queue's name. A check calls all others foreign that the library did not write."""
    removes: Callable[[Transaction | Database, Any], int] | None = None
    """Removes what is stored for nothing in a `Queue`, for `check(remove_foreign=True)`, and returns how many keys."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """What a layer adds to the page of a queue, and to lists of queues. It reads by snapshot, and a bounded number."""

    section: Callable[[Transaction, Layout], Steps[Section | None]]
    """Reads the section; None: the layer has nothing in this queue."""
    stats: Callable[[Transaction, Layout], Steps[Any]] | None = None
    """Reads figures for a list of queues; their value is None if the layer has nothing in this queue."""


check_parts: Contributions[CheckPart] = Contributions(
    leases="fdbqueue.layers.leases.timer_check:CHECK_PART",
    staged="fdbqueue.layers.staged.check:CHECK_PART",
    subscriptions="fdbqueue.layers.subscriptions.check:CHECK_PART",
    streams="fdbqueue.layers.streams.check:CHECK_PART",
    smart="fdbqueue.layers.smart.check:CHECK_PART",
    sessions="fdbqueue.layers.sessions.reading.check:CHECK_PART",
    schedules="fdbqueue.layers.schedules.check:CHECK_PART",
)
content_parts: Contributions[MakesContentCheck] = Contributions(blobs="fdbqueue.layers.blobs.check:BlobCheck")
page_parts: Contributions[PagePart] = Contributions(sessions="fdbqueue.layers.sessions.reading.listing:PAGE_PART")


def add_to_page(name: str, part: PagePart) -> None:
    """Add a layer's section to the page of every queue that `Queue.inspect` reads in this process.

    Args:
        name: the layer's name. The section is `Inspection.sections[name]`.
        part: what reads it.

    Raises:
        ValueError: the name is empty, or that of a layer of the library. TypeError: `part` is no `PagePart`.
    """
    if not isinstance(cast(object, part), PagePart):
        raise TypeError(f"A layer adds a PagePart to the page, not {part!r}.")
    page_parts.add(name, part)


def add_to_check(name: str, part: CheckPart) -> None:
    """Add a layer's part to `fdbqueue.check` of every queue in this process.

    Args:
        name: the layer's name.
        part: what makes it.

    Raises:
        ValueError: the name is empty, or that of a layer of the library. TypeError: `part` is no `CheckPart`.
    """
    if not isinstance(cast(object, part), CheckPart):
        raise TypeError(f"A layer adds a CheckPart to the check, not {part!r}.")
    check_parts.add(name, part)
