"""The binding's key selectors, for transactions of both engines.

In range reads, the binding accepts only its own class, and checks with ``isinstance``. Importing that class loads the C
library. So our class returns the binding's class as its ``__class__`` when the binding is loaded. The binding's own
lazy strings return ``bytes`` in the same way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any


class KeySelector:
    """A key relative to a reference: the `offset`-th key from the last one before (or at) `key`.

    >>> KeySelector.first_greater_than(b"a") + 1
    KeySelector(b'a', True, 2)
    """

    __slots__ = ("key", "offset", "or_equal")

    def __init__(self, key: Any, or_equal: bool, offset: int) -> None:
        self.key = key
        self.or_equal = or_equal
        self.offset = offset

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            binding = sys.modules.get("fdb.impl")
            return KeySelector if binding is None else getattr(binding, "KeySelector", KeySelector)

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)

    @classmethod
    def last_less_than(cls, key: Any) -> KeySelector:
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: Any) -> KeySelector:
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: Any) -> KeySelector:
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: Any) -> KeySelector:
        return cls(key, False, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default asks for an object of the class that `__class__` returns.
        return KeySelector, (self.key, self.or_equal, self.offset)

    def __repr__(self) -> str:
        return f"KeySelector({self.key!r}, {self.or_equal!r}, {self.offset!r})"
