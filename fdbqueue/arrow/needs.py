"""Import pyarrow on demand, recognise tables without it, and know the columns that layers add to items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

from fdbqueue.base.contributions import Contributions
from fdbqueue.stored.items import Notes

REMEDY = "pip install 'fdbqueue[arrow]'"


def needed(library: str, verb: str) -> Any:
    """Import a library that a verb needs.

    Raises:
        ModuleNotFoundError: it is not installed. The message says how to install it.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        extra = REMEDY if library in ("pyarrow", "numpy") else f"pip install {library}"
        raise ModuleNotFoundError(f"{verb} needs {library}: {extra}", name=library) from error


class TableRow(NamedTuple):
    """A row of a table with its own terms."""

    value: Any
    headers: Mapping[str, object] | None
    priority: int | None
    delay: float | None
    ttl: float | None


def table_rows(table: object, codec: Any, **columns: str | None) -> Iterator[TableRow]:
    """Return the rows of a table with their terms. This is for layers.

    Args:
        columns: ``column``, ``headers_column``, ``priority_column``, ``delay_column`` and ``ttl_column``.

    Raises:
        ModuleNotFoundError: pyarrow is not installed.
        ValueError: a column is not valid.
    """
    needed("pyarrow", "enqueue_many of a table")
    from fdbqueue.arrow.tables import Input

    return Input(table, codec, **columns).rows()


@runtime_checkable
class ArrowTable(Protocol):
    """Data that Arrow can read: of pyarrow, pandas, polars, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def is_table(values: object) -> bool:
    """Return whether `values` to enqueue are a table, or a column, that Arrow can read.

    >>> is_table([{"sku": "teapot"}])
    False
    """
    kind = type(values)
    return hasattr(kind, "__arrow_c_stream__") and not kind.__module__.startswith("pyspark")


def check_columns(values: object, **columns: str | None) -> bool:
    """Return whether `values` are a table. Refuse names of columns for values that are none, and names that are none.

    Raises:
        TypeError: a column was named, and `values` are no table; or a name is no str.
    """
    named = {option: name for option, name in columns.items() if name is not None}
    for option, name in named.items():
        if not isinstance(cast(object, name), str):
            raise TypeError(f"{option} is the name of a column, a str, not {name!r}.")
    if is_table(values):
        return True
    if named:
        raise TypeError(
            f"{next(iter(named))} names a column of a table, and {type(values).__name__} is no table: give a"
            " pyarrow.Table, a DataFrame, or another object with __arrow_c_stream__."
        )
    return False


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


column_parts: Contributions[tuple[Column, ...]] = Contributions(leases="fdbqueue.layers.leases.reports:COLUMNS")
