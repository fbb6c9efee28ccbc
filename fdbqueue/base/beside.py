"""What is kept beside an object that another part owns, while the object lives: a transaction, a database, a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class KeptBeside(Generic[T]):
    """One value for each object, gone with the object.

    Args:
        make: makes the value that `of` returns when there is none.

    >>> class Owner: ...
    >>> owner, counts = Owner(), KeptBeside(dict)
    >>> counts.of(owner)["a"] = 1
    >>> counts.of(owner), counts.get(Owner())
    ({'a': 1}, None)
    """

    __slots__ = ("_kept", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    def of(self, owner: object) -> T:
        """Return the value of an object. It is made if there is none; two threads get the same one."""
        known = self._kept.get(owner)
        return self._kept.setdefault(owner, self._make()) if known is None else known

    def get(self, owner: object) -> T | None:
        """Return the value of an object; None if there is none."""
        return self._kept.get(owner)

    def put(self, owner: object, value: T) -> T:
        """Set the value of an object, and return it."""
        self._kept[owner] = value
        return value
