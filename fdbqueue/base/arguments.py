"""Checks of arguments, which run before any key is touched. Each message has the parameter's name and the remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fdbqueue.base.position import Position, check_position

if TYPE_CHECKING:
    from pathlib import Path


def check_limit(limit: object, what: str, *, least: int = 1, optional: bool = False) -> None:
    """Refuse a limit that is no number of items.

    Args:
        limit: the argument.
        what: what it counts, for the message, as "items to take".
        least: the smallest limit.
        optional: whether None is allowed; it means all.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is less than `least`.

    >>> from fdbqueue.base.arguments import check_limit
    >>> check_limit("3", "items to take")
    Traceback (most recent call last):
    TypeError: limit is how many items to take, an integer, not '3'.
    """
    if limit is None and optional:
        return
    none = ", or None for all" if optional else ""
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"limit is how many {what}, an integer{none}, not {limit!r}.")
    if limit < least:
        raise ValueError(f"limit is how many {what}, at least {least}{none}, not {limit}.")
    if limit > sys.maxsize:
        raise ValueError(f"limit is how many {what}, less than 2^63{none}, not {limit}.")


def check_whole(number: object, told: str, *, least: int = 0, most: int = sys.maxsize) -> None:
    """Refuse what is no whole number of a range.

    Args:
        told: begins the message: what the number is.

    Raises:
        TypeError: it is no integer. ValueError: it is less than `least`, or more than `most`.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{told}, an integer, not {number!r}.")
    if number > sys.maxsize:
        raise ValueError(f"{told}, less than 2^63, and this number is larger.")
    if not least <= number <= most:
        span = f"at least {least}" if most == sys.maxsize else f"from {least} to {most:,}"
        raise ValueError(f"{told}, {span}, not {number}.")


def check_flag(flag: object, name: str) -> None:
    """Refuse a switch that is neither True nor False.

    Raises:
        TypeError: it is something else, such as a text or a number.
    """
    if not isinstance(flag, bool):
        raise TypeError(f"{name} is True or False, not {flag!r}.")


def check_text(text: str, what: str) -> None:
    """Refuse a text with a lone surrogate, which can't be stored.

    Args:
        text: the argument.
        what: what it is, for the message, as "The name of a group".

    Raises:
        ValueError: it has one; UTF-8 has no bytes for it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise surrogate(text, what) from error


def surrogate(name: object, what: str) -> ValueError:
    """Return the error of a name or a text with a lone surrogate."""
    return ValueError(
        f"{what} has a lone surrogate, which is no text: {name!r}. Such a text comes from a file name or an argument in"
        " another encoding. Encode it by os.fsencode, or replace the character."
    )


def path_of(path: object, what: str) -> Path:
    """Return the path of a file or a folder.

    Args:
        path: the argument. An integer is none: it would be an open file.
        what: what is there, for the message, as "an export's file".

    Raises:
        TypeError: it is no path.
        ValueError: the system has no bytes for it.

    >>> from fdbqueue.base.arguments import path_of
    >>> path_of(7, "an export's file")
    Traceback (most recent call last):
    TypeError: The path of an export's file is a text or a pathlib.Path, not 7.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(f"The path of {what} is a text or a pathlib.Path, not {path!r}.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise surrogate(path, f"The path of {what}") from error
    from pathlib import Path  # an import of fdbqueue does without

    return Path(path)


def check_borders(*borders: Position | None) -> None:
    """Refuse borders of a browser that are no positions.

    Raises:
        TypeError, ValueError: one is neither a Position nor None, or no item can have it.
    """
    for border in borders:
        if border is None:
            continue
        if not isinstance(border, Position):
            raise TypeError(f"What to look after or before is an item's Position, not {border!r}.")
        check_position(border)


def check_values(values: object) -> None:
    """Raise TypeError unless `values` is an iterable of values. One value is not, and neither is a data frame.

    >>> from fdbqueue.base.arguments import check_values
    >>> check_values("teapot")
    Traceback (most recent call last):
    TypeError: Values to enqueue are an iterable, such as a list, not one str. Give [value], or use `enqueue`.
    """
    kind = type(values)
    if kind is list:
        return
    library = kind.__module__.partition(".")[0]
    if library in _FRAMES or any(hasattr(kind, protocol) for protocol in _FRAME_PROTOCOLS):
        raise TypeError(
            f"Values to enqueue are an iterable, such as a list, not a {kind.__name__} of {library}, whose columns"
            f" would be the items. Give {_FRAMES.get(library, 'a list of its rows')}."
        )
    if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(
            f"Values to enqueue are an iterable, such as a list, not one {kind.__name__}. Give [value], or use"
            " `enqueue`."
        )
    if hasattr(values, "get_range"):  # a wrapper of a cluster's database has it by `__getattr__`
        raise TypeError(
            f"Values to enqueue are an iterable, such as a list, not a {kind.__name__}: the database or the transaction"
            " comes first, then the values."
        )
    if not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        raise TypeError(f"Values to enqueue are an iterable, such as a list, not {kind.__name__}.")


_FRAME_PROTOCOLS = ("__arrow_c_stream__", "__arrow_c_array__", "__dataframe__")
_FRAMES = {
    "pandas": "frame.to_dict('records'), or series.to_list()",
    "polars": "frame.to_dicts(), or series.to_list(); of a LazyFrame frame.collect()",
    "pyarrow": "table.to_pylist()",
    "pyspark": "frame.toLocalIterator(), or use fdbqueue.spark.enqueue_dataframe",
}
"""The suggested replacement, by the library of a data frame."""


class HostPort(NamedTuple):
    """Where a server listens."""

    host: str
    """Its name or number, without brackets."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_and_port(text: str) -> HostPort | None:
    """Return host and port of a text ``HOST:PORT``; None if it is none.

    >>> host_and_port("[::1]:8080"), str(host_and_port("[::1]:8080")), host_and_port("8080")
    (HostPort(host='::1', port=8080), '[::1]:8080', None)
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_one = host and port.isascii() and port.isdecimal() and int(port) <= 65_535
    return HostPort(host, int(port)) if is_one else None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host: a number of the loopback interface, or ``localhost``.

    >>> is_loopback("127.0.0.1"), is_loopback("::ffff:127.0.0.1"), is_loopback("example.org")
    (True, True, False)
    """
    import ipaddress

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
