"""Selectors: a condition on an item's headers and facts, in the words of JMS and SQL-92.

    color = 'red' AND weight BETWEEN 2 AND 5 AND (note IS NULL OR note LIKE 'urgent!_%' ESCAPE '!')

Names are headers, or facts (`_facts.py`). A name that is no Java identifier, or is reserved, is written
``"in quotes"``. Values are strings, numbers and booleans; a header that an item does not have is NULL.

Logic
    Three-valued, as in SQL: what is compared with NULL is *unknown*, ``NOT`` unknown is unknown, and an item is
    accepted if the whole is true. Numbers of all kinds compare with each other; a comparison of two kinds is false;
    strings and booleans know ``=`` and ``<>`` only. Integers divide towards zero. Arithmetic on what is no number, and
    division by zero, are unknown. Keywords may be written in any case, names and strings are as they are.

Beyond JMS
    ``IN`` takes numbers too; any value may stand in front of ``IN``, ``LIKE`` and ``IS NULL``; integers have no
    largest; names may be quoted. Octal integers are refused.

Source
    Jakarta Messaging 3.1, 3.8.1.1 "Message selector syntax".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from fdbqueue import FormatError
from fdbqueue.lowlevel import Layout, headers_of

from ._compiling import Compiler, Test
from ._facts import Facts
from ._parsing import parse_selector

Selects: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""A selector of one's own: called with an item's headers, says whether it is accepted."""


class Selector:
    """A condition, compiled once.

    Args:
        text: the condition; "" accepts everything.

    Raises:
        SelectorError: it is none; the message marks the place of the fault, and has line and column.

    >>> Selector("color = 'red' AND weight > 2.5").accepts({"color": "red", "weight": 3})
    True
    >>> Selector("weight > 2.5").accepts({}), Selector("NOT weight > 2.5").accepts({})
    (False, False)
    >>> Selector("color = 'red' OR")
    Traceback (most recent call last):
    ...
    fdbqueue.errors.SelectorError: The selector ends too early. Line 1, column 17:
    color = 'red' OR
                    ^
    """

    __slots__ = ("_test", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._test = _compiled(text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def accepts(self, headers: Mapping[str, Any], facts: Facts | None = None) -> bool:
        """Say whether an item with these headers is accepted; without `facts` those are NULL."""
        return self._test(headers, facts) is True


class ItemTest:
    """Says of stored items whether they are accepted.

    Args:
        layout: the queue's.
        selector: a condition, or a function of one's own.
    """

    __slots__ = ("_accepts", "_facts")

    def __init__(self, layout: Layout, selector: Selector | Selects) -> None:
        self._facts = Facts(layout)
        self._accepts: Callable[[Mapping[str, Any], Any], Any]
        if isinstance(selector, Selector):
            self._accepts = selector._test
        else:
            self._accepts = lambda headers, _: bool(selector(headers))

    def __call__(self, key: bytes, stored: bytes) -> bool:
        """Say whether the item with this key and value is accepted; one that can't be read is not.

        What can't be read is for those to find who take everything; here it must not stand in the others' way.
        """
        facts = self._facts
        facts.key, facts.stored = key, stored
        try:
            return self._accepts(headers_of(stored), facts) is True
        except FormatError:
            return False


@lru_cache(maxsize=4_096)
def _compiled(text: str) -> Test:
    if not text.strip():
        return lambda headers, facts: True
    return Compiler(text).condition(parse_selector(text)).test
