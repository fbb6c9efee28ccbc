"""What layers add to the looks at a queue: a section of its page, figures in a list of queues, parts of its check.

Two tables name what the library's own layers add, by module. A module is imported at the first look that needs it, so
`import fdbqueue` brings in no layer. A layer of your own adds to the tables by `add_to_page` and `add_to_check`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from fdbqueue.base.reprs import Table
from fdbqueue.engine.api import Database, Transaction
from fdbqueue.engine.keys import Subspace
from fdbqueue.engine.steps import Steps
from fdbqueue.reads.check import ItemCheck
from fdbqueue.stored.layout import Layout

T = TypeVar("T")


class Section(Protocol):
    """What a layer says of a queue on its page."""

    def facts(self) -> str:
        """Return the most important figures in one line."""

    def tables(self) -> Iterator[Table]:
        """Yield tables that have rows."""


@dataclass(frozen=True, slots=True)
class CheckPart:
    """What a layer adds to `fdbqueue.check`."""

    make: Callable[[Transaction | Database, Any], ItemCheck]
    """Begins its part of the check of a `Queue`."""
    looks_at: tuple[str, ...]
    """What it compares, in words."""
    leaves_out: tuple[tuple[str, Callable[[Layout], Subspace]], ...] = ()
    """What it does not look at, in words, and where that is."""


@dataclass(frozen=True, slots=True)
class PagePart:
    """What a layer adds to the page of a queue, and to lists of queues. It reads by snapshot, and a bounded number."""

    section: Callable[[Transaction, Layout], Steps[Section | None]]
    """Reads the section; None: the layer has nothing in this queue."""
    stats: Callable[[Transaction, Layout], Steps[Any]] | None = None
    """Reads figures for a list of queues; their value is None if the layer has nothing in this queue."""


class Contributions(Generic[T]):
    """Parts of a look, by the name of their layer.

    Args:
        own: where the parts of the library's own layers are, as ``module:name``.
    """

    def __init__(self, **own: str) -> None:
        self._parts: dict[str, str | T] = {**own}

    def add(self, name: str, part: T) -> None:
        """Add the part of a layer, or replace it.

        Raises:
            ValueError: the name is empty, or that of a layer of the library.
        """
        if not name or isinstance(self._parts.get(name), str):
            raise ValueError(f"A layer of your own needs a name that the library does not use, not {name!r}.")
        self._parts[name] = part

    def all(self) -> dict[str, T]:
        """Return all parts, in the order in which they were added. It imports the library's own."""
        return {name: _loaded(part) if isinstance(part, str) else part for name, part in self._parts.items()}


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


check_parts: Contributions[CheckPart] = Contributions(
    leases="fdbqueue.layers.leases.timer_check:CHECK_PART",
    staged="fdbqueue.layers.staged.check:CHECK_PART",
    subscriptions="fdbqueue.layers.subscriptions.check:CHECK_PART",
    streams="fdbqueue.layers.streams.check:CHECK_PART",
    smart="fdbqueue.layers.smart.orphans:CHECK_PART",
    sessions="fdbqueue.layers.sessions.reading.check:CHECK_PART",
)
page_parts: Contributions[PagePart] = Contributions(sessions="fdbqueue.layers.sessions.reading.page:PAGE_PART")


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
