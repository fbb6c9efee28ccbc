"""A database that is as plain as can be, to compare an engine's transactions with: one dictionary.

A transaction of the model copies the rows that it sees and applies its operations to the copy. Committing means to
take all of its operations again, on the newest rows: it was serializable if every read then gives the same answer.
The model knows no conflict ranges and no overlays, so it can't share a mistake with an engine that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rows = dict[bytes, bytes]
Selector = tuple[bytes, bool, int]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _add(old: bytes, param: bytes) -> bytes:
    return ((_number(old[: len(param)]) + _number(param)) % (1 << 8 * len(param))).to_bytes(len(param), "little")


def _bits(operation: Callable[[int, int], int]) -> Callable[[bytes, bytes], bytes]:
    def apply(old: bytes, param: bytes) -> bytes:
        fitted = old[: len(param)].ljust(len(param), b"\0")
        return bytes(operation(a, b) for a, b in zip(fitted, param, strict=True))

    return apply


def _max(old: bytes, param: bytes) -> bytes:
    fitted = old[: len(param)].ljust(len(param), b"\0")
    return fitted if _number(fitted) > _number(param) else param


def _min(old: bytes, param: bytes) -> bytes:
    fitted = old[: len(param)].ljust(len(param), b"\0")
    return fitted if _number(fitted) < _number(param) else param


ON_NOTHING_THE_PARAMETER = frozenset({"bit_and", "min", "byte_min", "byte_max"})
"""What these operations leave where there was no value; for the others it is as if it had been empty."""

ATOMICS: dict[str, Callable[[bytes, bytes], bytes]] = {
    "add": _add,
    "bit_and": _bits(lambda a, b: a & b),
    "bit_or": _bits(lambda a, b: a | b),
    "bit_xor": _bits(lambda a, b: a ^ b),
    "max": _max,
    "min": _min,
    "byte_min": min,
    "byte_max": max,
    "append_if_fits": lambda old, param: old + param,
}


def combined(name: str, old: bytes | None, param: bytes) -> bytes | None:
    """Return what atomic operation `name` makes of the value `old`; None is no value."""
    if name == "compare_and_clear":
        return None if old == param else old
    if old is None and name in ON_NOTHING_THE_PARAMETER:
        return param
    return ATOMICS[name](old or b"", param)


Operation = tuple[Any, ...]
"""An operation's name and its arguments."""


class Model:
    """Rows, and what each operation answers and changes. A selector beyond them finds ``before`` or ``after``."""

    def __init__(self, rows: Rows) -> None:
        self.rows = dict(rows)

    def take(self, operation: Operation) -> Any:
        name, *arguments = operation
        return getattr(self, name)(*arguments)

    # -- reads -------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        found = [(key, self.rows[key]) for key in sorted(self.rows, reverse=reverse) if begin <= key < end]
        return found[:limit] if limit else found

    def get_key(self, selector: Selector) -> bytes | str:
        place = self._place(selector)
        if place < 0:
            return "before"
        return sorted(self.rows)[place] if place < len(self.rows) else "after"

    def get_between(self, begin: Selector, end: Selector, reverse: bool) -> list[tuple[bytes, bytes]]:
        keys = sorted(self.rows)[max(0, self._place(begin)) : max(0, self._place(end))]
        return [(key, self.rows[key]) for key in (reversed(keys) if reverse else keys)]

    def _place(self, selector: Selector) -> int:
        key, or_equal, offset = selector
        return sum(other < key or (or_equal and other == key) for other in self.rows) - 1 + offset

    # -- writes ------------------------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def clear(self, key: bytes) -> None:
        self.rows.pop(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        for key in [key for key in self.rows if begin <= key < end]:
            del self.rows[key]

    def atomic(self, name: str, key: bytes, param: bytes) -> None:
        value = combined(name, self.rows.get(key), param)
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value
