"""What layers add to the columns of items. The table names the library's own layers, by module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fdbqueue.base.contributions import Contributions
from fdbqueue.stored.items import Notes


@dataclass(frozen=True, slots=True)
class Column:
    """A column of items in all states, made of their notes."""

    name: str
    kind: Literal["time", "number", "text"]
    """Its type. A time is in microseconds."""
    of: Callable[[Notes, str], Any]
    """Returns the value of an item, by its notes and its state; None: it has none. A number is never None."""
    of_claimed: Callable[[str], Any] | None = None
    """Returns the value of an item that a stream's batch has, by the name of the stream; None: `of` does."""


column_parts: Contributions[tuple[Column, ...]] = Contributions(leases="fdbqueue.layers.leases.columns:COLUMNS")
