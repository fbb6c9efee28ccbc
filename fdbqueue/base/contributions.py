"""What layers add to a mechanism of the rooms below them: parts by the name of their layer.

A mechanism has a table that names the parts of the library's own layers, by module. A module is imported when it is
first needed, so `import fdbqueue` brings in no layer.
"""

from __future__ import annotations

import importlib
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Contributions(Generic[T]):
    """Parts of one mechanism, by the name of their layer.

    Args:
        own: where the parts of the library's own layers are, as ``module:name``.
    """

    def __init__(self, **own: str) -> None:
        self.parts: dict[str, str | T] = {**own}
        """By the name of their layer: a part, or where it is, as ``module:name``."""

    def add(self, name: str, part: T) -> None:
        """Add the part of a layer, or replace it.

        Raises:
            ValueError: the name is empty, or that of a layer of the library.
        """
        if not name or isinstance(self.parts.get(name), str):
            raise ValueError(f"A layer of your own needs a name that the library does not use, not {name!r}.")
        self.parts[name] = part

    def all(self) -> dict[str, T]:
        """Return all parts, in the order in which they were added. It imports the library's own."""
        return {name: _loaded(part) if isinstance(part, str) else part for name, part in self.parts.items()}

    def added(self) -> list[T]:
        """Return the parts that were added, without the library's own."""
        return [part for part in self.parts.values() if not isinstance(part, str)]


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
