"""Warnings, and deprecation: a public name that will go keeps working for two minor versions, and warns meanwhile."""

from __future__ import annotations

import inspect
import warnings
from enum import Enum


class Everything(Enum):
    """What a call is about that names nothing: `ALL`."""

    ALL = "ALL"

    def __repr__(self) -> str:
        return "ALL"


ALL = Everything.ALL


_BETWEEN = frozenset(("fdbqueue", "asyncio", "concurrent", "threading"))
"""The packages between a warning and the program that it is about."""


def warn_caller(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn about the line of the program that called the library, itself or by an event loop."""
    level, frame = 1, inspect.currentframe()
    while frame and frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def deprecated(name: str, *, since: str, instead: str, stacklevel: int = 2) -> None:
    """Warn that the caller uses a public name, or a parameter, that will be removed.

    Args:
        name: what is deprecated, as the caller writes it.
        since: the version that warned first.
        instead: what to write now.
        stacklevel: as for `warnings.warn`, counted from the function that calls this one.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     deprecated("Queue.pop", since="0.2.0", instead="Queue.dequeue")
    >>> str(told[0].message)
    'Queue.pop is deprecated since 0.2.0 and goes two minor versions later. Use Queue.dequeue.'
    """
    message = f"{name} is deprecated since {since} and goes two minor versions later. Use {instead}."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)


def tell_of_none(given: object, name: str) -> None:
    """Warn if None was given for `ALL`: it is often what a search has not found.

    A verb that is no coroutine calls this, so that the warning is about its caller's line.

    Args:
        given: the argument.
        name: the argument, as messages name it.
    """
    if given is None:
        deprecated(f"None as {name}", since="0.3.0", instead="the call without it, for all", stacklevel=4)
