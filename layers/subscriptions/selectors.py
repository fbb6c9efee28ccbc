"""Selectors: a condition on an item's headers and facts, in the words of JMS and SQL-92.

    color = 'red' AND weight BETWEEN 2 AND 5 AND (note IS NULL OR note LIKE 'urgent!_%' ESCAPE '!')

Names are headers, or facts (`_grammar.py`). Write a name that is no Java identifier, or is reserved, ``"in quotes"``.
Values are strings, numbers and booleans; a missing header is NULL.

Logic
    Logic is three-valued, as in SQL. A comparison with NULL is *unknown*, and ``NOT`` unknown is unknown. An item is
    accepted if the whole condition is true. Numbers of all kinds compare with each other. A comparison of two kinds of
    values is false. Strings and booleans have ``=`` and ``<>`` only. Integer division rounds towards zero. Arithmetic
    on a value that is no number, and division by zero, are unknown. Keywords are case-insensitive; names and strings
    are case-sensitive.

Beyond JMS
    ``IN`` takes numbers too. Any value may precede ``IN``, ``LIKE`` and ``IS NULL``. Integers have no upper limit.
    Names may be quoted. Octal integers are refused.

Source
    Jakarta Messaging 3.1, 3.8.1.1 "Message selector syntax".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from fdbqueue import FormatError, SelectorError
from fdbqueue.lowlevel import KeyValue, Layout, Place, State, headers_of
from fdbqueue.stored.items import salvaged_notes

from ._grammar import Compiler, Facts, Headers, Test, parse_selector
from .records import SubscriptionRecord

Selects: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""A selector of your own: called with an item's headers, it returns whether the item is accepted."""


class Selector:
    """A condition, compiled once.

    Args:
        text: the condition. It can't be empty: a call that takes a selector accepts everything without one.

    Raises:
        TypeError: it is no text. SelectorError: the text is empty, or no condition; the message marks the fault, with
            line and column.

    >>> from fdbqueue.layers import Selector
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
        if not isinstance(text, str):
            raise TypeError(f"The text of a selector is a str, such as \"color = 'red'\", not {text!r}.")
        if not text.strip():
            raise SelectorError(
                "The selector is empty. Give a condition, as in \"color = 'red'\". To accept all items, give none.",
                line=1,
                column=1,
            )
        self.text = text
        self._test = _compiled(text)

    @classmethod
    def of_stored(cls, text: str) -> Selector:
        """Return the selector of a registration, where "" accepts everything."""
        if not isinstance(text, str):
            raise TypeError(f"A registration has its selector as text, not as {text!r}.")
        own = cls.__new__(cls)
        own.text = text
        own._test = _compiled(text)
        return own

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def accepts(self, headers: Mapping[str, object], facts: Facts | None = None) -> bool:
        """Return whether an item with these headers is accepted; without `facts` all facts are NULL.

        Raises:
            TypeError: an argument is of a wrong kind.
        """
        if not isinstance(headers, Mapping):
            raise TypeError(f"headers are a mapping of names to values, not {headers!r}.")
        if facts is not None and not isinstance(facts, Facts):
            raise TypeError(f"facts are those of a stored item, which the library makes, or None, not {facts!r}.")
        return self._test(headers, facts) is True


class ItemTest:
    """Returns whether a stored item is accepted.

    Args:
        layout: the queue's layout.
        selector: a condition, or a function of your own.

    Raises:
        TypeError: it is neither.
    """

    __slots__ = ("_accepts", "_facts")

    def __init__(self, layout: Layout, selector: str | Selector | Selects) -> None:
        self._facts = Facts(layout)
        if isinstance(selector, str):
            selector = Selector(selector)
        self._accepts: Callable[[Headers, Facts | None], object]
        if isinstance(selector, Selector):
            self._accepts = _compiled(selector.text)
        elif not callable(selector):
            raise TypeError(f"A selector is a str, a Selector or a function of the headers, not {selector!r}.")
        else:
            self._accepts = lambda headers, _: bool(selector(headers))

    def __call__(self, key: bytes, stored: bytes) -> bool:
        """Return whether the item with this key and value is accepted; False if it can't be read.

        Consumers without a selector meet unreadable items and get the error. Here such an item must not block the
        others.
        """
        facts = self._facts
        facts.key, facts.stored = key, stored
        try:
            return self._accepts(headers_of(stored), facts) is True
        except FormatError:
            return False


def item_test(layout: Layout, where: str | None, error: str | None, text: str = "") -> Callable[[bytes, bytes], bool]:
    """Return a test of an item's key, as an available item has it, and its stored value. All that is given must hold.

    Args:
        where: a condition on headers.
        error: how the last error begins, as far as the notes can be read.
        text: a text in the stored value. A large item, which is stored in chunks, does not have it.

    Raises:
        SelectorError: `where` is no condition.
    """
    fits, needle = ItemTest(layout, Selector(where)) if where else None, text.encode()

    def test(key: bytes, value: bytes) -> bool:
        if needle not in value or (error and not salvaged_notes(value)[0].error.startswith(error)):
            return False
        return fits is None or fits(key, value)

    return test


def row_test(
    layout: Layout, state: State, where: str | None, error: str | None, text: str = ""
) -> Callable[[KeyValue], bool]:
    """Return a test of the rows of one state; otherwise as `item_test`."""
    place: Place = getattr(layout, state)
    test = item_test(layout, where, error, text)
    return lambda row: test(layout.available.key(place.packed(row.key)), row.value)


def wanted_by(layout: Layout, registration: SubscriptionRecord) -> ItemTest | None:
    """Return the test of a registration's condition; None: it has none, or a function that only its consumers know."""
    return ItemTest(layout, registration.selector) if registration.selector else None


@lru_cache(maxsize=4_096)
def _compiled(text: str) -> Test:
    if not text.strip():
        return lambda headers, facts: True
    return Compiler(text).condition(parse_selector(text)).test
