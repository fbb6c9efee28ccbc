"""The grammar of selectors, which is that of JMS, and how a selector is compiled."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from fdbqueue import Position, SelectorError
from fdbqueue.lowlevel import Layout, Notes, headers_of, notes_of

from ..common.levels import PRIORITY

NORMAL_PRIORITY = 4
"""Priority of an item whose sender gave none, as in JMS."""


class Facts:
    """The facts of one available item, each computed on use."""

    __slots__ = ("_layout", "key", "stored")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.key = b""
        """The item's key."""
        self.stored = b""
        """The item's stored value."""

    @property
    def position(self) -> Position:
        """The item's position."""
        return self._layout.position_of(self.key)

    @property
    def notes(self) -> Notes:
        """The item's notes."""
        return notes_of(self.stored)


def _priority(facts: Facts) -> object:
    return headers_of(facts.stored).get(PRIORITY, NORMAL_PRIORITY)


FACTS: dict[str, Callable[[Facts], object]] = {
    "JMSMessageID": lambda facts: f"ID:{facts.position.text}",
    "JMSPriority": _priority,
    "JMSTimestamp": lambda facts: facts.notes.enqueued_at_us // 1_000 or None,
    "JMSExpiration": lambda facts: facts.notes.ttl_at_us // 1_000,
    "JMSRedelivered": lambda facts: facts.notes.attempt > 0,
    "JMSXDeliveryCount": lambda facts: facts.notes.attempt + 1,
    "fdbqueue_index": lambda facts: facts.position.index,
    "fdbqueue_rank": lambda facts: facts.position.rank,
}
"""Facts: the values of an item that a selector can use in addition to its headers.

========================  ==============================================================================
``JMSMessageID``          ``ID:`` and its position, as ``Position.text`` writes it
``JMSPriority``           its header "priority", as it was sent; 4 without one
``JMSTimestamp``          time of its enqueue, in milliseconds since 1970; NULL if that is unknown
``JMSExpiration``         time at which it expires, in milliseconds since 1970; 0: never
``JMSRedelivered``        whether it was leased before
``JMSXDeliveryCount``     number of the next delivery, from 1
``fdbqueue_index``        its index
``fdbqueue_rank``         its rank; NULL in a queue without ranks
========================  ==============================================================================

A selector can't read a header with one of these names.
"""


# The grammar of selectors. It is the grammar of JMS, a subset of SQL-92's conditional expressions.

MAX_SELECTOR_BYTES = 8_000

_KEYWORDS = ("or", "and", "not", "between", "in", "like", "escape", "is", "null", "true", "false")
GRAMMAR = r"""
?start: or

?or: and (_OR and)*
?and: not (_AND not)*
?not: NOT not                                   -> negation
    | predicate

?predicate: sum
    | sum COMPARISON sum                        -> comparison
    | sum [NOT] _BETWEEN sum _AND sum           -> between
    | sum [NOT] _IN "(" listed ("," listed)* ")"    -> among
    | sum [NOT] _LIKE STRING [_ESCAPE STRING]   -> like
    | sum _IS [NOT] _NULL                       -> null

?sum: product
    | sum SIGN product                          -> arithmetic
?product: signed
    | product FACTOR signed                     -> arithmetic
?signed: SIGN signed                            -> sign
    | atom

?atom: literal
    | NAME                                      -> name
    | QUOTED                                    -> quoted
    | "(" or ")"

?listed: literal
    | SIGN literal                              -> sign

literal: INTEGER                                -> integer
    | HEXADECIMAL                               -> hexadecimal
    | APPROXIMATE                               -> approximate
    | STRING                                    -> string
    | _TRUE                                     -> true
    | _FALSE                                    -> false

COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/"
QUOTED: /"([^"]|"")+"/
HEXADECIMAL.3: /0[xX][0-9a-fA-F]+[lL]?(?![\w$.])/
APPROXIMATE.2: /(\d+\.\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?(?![\w$.])|\d+([eE][+-]?\d+[fFdD]?|[fFdD])(?![\w$.])/
INTEGER: /(0|[1-9]\d*)[lL]?(?![\w$.])/
STRING: /'([^']|'')*'/

%ignore /\s+/
"""
GRAMMAR += "".join(f"{'NOT' if word == 'not' else f'_{word.upper()}'}.2: /{word}(?![\\w$])/i\n" for word in _KEYWORDS)
GRAMMAR += rf"NAME: /(?!({'|'.join(_KEYWORDS)})(?![\w$]))([^\W\d][\w$]*|\$[\w$]*)/i"


Node: TypeAlias = Tree[Token]


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def parse_selector(text: str) -> Node:
    """Return the tree of a selector.

    Raises:
        SelectorError: the text is not a selector; the message says where the fault is.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        before = text[: error.start]
        raise SelectorError(
            f"A selector has a lone surrogate, which is no text: {text!r:.200}. Remove it.",
            line=before.count("\n") + 1,
            column=error.start - before.rfind("\n"),
        ) from error
    if size > MAX_SELECTOR_BYTES:
        raise SelectorError(
            f"A selector of {size:,} bytes is over the limit of {MAX_SELECTOR_BYTES:,}."
            " Put what it looks for into a header.",
            line=1,
            column=1,
        )
    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise _refusal(text, error) from error


def _refusal(text: str, error: UnexpectedInput) -> SelectorError:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return fault(text, len(text), "The selector ends too early.")
    at = cast(int, error.pos_in_stream)
    if isinstance(error, UnexpectedToken):
        return fault(text, at, f"{str(error.token)!r} can't stand here.")
    if text[at] in "'\"":
        return fault(text, at, "The quotation that begins here does not end.")
    return fault(text, at, f"{text[at : at + 12].split()[0]!r} is nothing that a selector has.")


def fault(text: str, at: int, why: str) -> SelectorError:
    """Return the error for a fault at an offset of `text`; its message marks the place."""
    before = text[:at]
    line = before.count("\n") + 1
    column = at - (before.rfind("\n") + 1) + 1
    shown = text.split("\n")[line - 1]
    start = max(0, column - 41)
    marked = f"{shown[start : start + 80]}\n{' ' * (column - 1 - start)}^"
    return SelectorError(f"{why} Line {line}, column {column}:\n{marked}", line=line, column=column)


# Compiles the tree of a selector into closures, once.
#
# Every closure takes an item's headers and its `Facts`. It returns a string, a number, True, False, or None. None is
# SQL's NULL; as the result of a condition it means "unknown".

Headers: TypeAlias = Mapping[str, object]
Scalar: TypeAlias = str | int | float | bool
"""A value that a selector names."""
Test: TypeAlias = Callable[[Headers, Facts | None], object]
Operation: TypeAlias = Callable[[Any, Any], float]
"""Calculates with two numbers."""
Comparison: TypeAlias = Callable[[Any, Any], bool]
"""Compares two values of one kind."""

MAX_DEPTH = 100
MAX_DIGITS = 1_000
"""Most digits of a decimal integer: Python converts at most 4,300, or fewer if it is configured so."""
_COMPARISONS: dict[str, Comparison] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBERS = (int, float)  # compared with `type(...)`, so a bool is no number
_ANY, _NUMBER, _STRING, _BOOLEAN = "any", "number", "string", "condition"


@dataclass(slots=True)
class CompiledPart:
    """A part of a selector, compiled."""

    test: Test
    kind: str
    """The kind of its value, if that is known without an item."""
    name: str = ""
    """The name of the header that it reads; "" if it is no header."""
    literal: Scalar | None = None
    """Its value, if that is known without an item."""
    at: int = 0
    """Its offset in the text."""


class Compiler:
    """Compiles one selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def condition(self, tree: Node) -> CompiledPart:
        """Compile a condition.

        Raises:
            SelectorError: it is no condition, or contains a fault.
        """
        part = self._part(tree)
        self._want(part, _BOOLEAN, "What is to be true or false")
        return part

    def _part(self, tree: Node) -> CompiledPart:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise fault(self._text, _at(tree), f"A selector is nested at most {MAX_DEPTH} deep.")
        part: CompiledPart = getattr(self, f"_{tree.data}")(*tree.children)
        part.at = _at(tree)
        self._depth -= 1
        return part

    def _or(self, *children: Node) -> CompiledPart:
        return CompiledPart(_joined([self.condition(child).test for child in children], decides=True), _BOOLEAN)

    def _and(self, *children: Node) -> CompiledPart:
        return CompiledPart(_joined([self.condition(child).test for child in children], decides=False), _BOOLEAN)

    def _negation(self, _: Token, child: Node) -> CompiledPart:
        return CompiledPart(_negated(self.condition(child).test), _BOOLEAN)

    def _comparison(self, first: Node, sign: Token, second: Node) -> CompiledPart:
        left, right = self._part(first), self._part(second)
        if sign not in ("=", "<>"):
            for part in (left, right):
                self._want(part, _NUMBER, f"What {str(sign)!r} compares")
        if left.name and right.literal is not None and sign == "=":
            test = _is_equal(left.name, right.literal)
        else:
            test = _compared(left.test, right.test, _COMPARISONS[sign], ordered=sign not in ("=", "<>"))
        return CompiledPart(test, _BOOLEAN)

    def _between(self, subject: Node, negated: Token | None, low: Node, high: Node) -> CompiledPart:
        parts = [self._part(child) for child in (subject, low, high)]
        for part in parts:
            self._want(part, _NUMBER, "What BETWEEN compares")
        value, least, most = (part.test for part in parts)
        above = _compared(value, least, operator.ge, ordered=True)
        below = _compared(value, most, operator.le, ordered=True)
        return CompiledPart(_maybe_not(_joined([above, below], decides=False), negated), _BOOLEAN)

    def _among(self, subject: Node, negated: Token | None, *literals: Node) -> CompiledPart:
        part = self._part(subject)
        listed = [self._part(literal).literal for literal in literals]
        for literal, child in zip(listed, literals, strict=True):
            if isinstance(literal, bool):
                raise fault(self._text, _at(child), "IN lists strings or numbers.")
        strings = frozenset(one for one in listed if isinstance(one, str))
        numbers = frozenset(one for one in listed if isinstance(one, int | float))
        return CompiledPart(_maybe_not(_in(part.test, strings, numbers), negated), _BOOLEAN)

    def _like(self, subject: Node, negated: Token | None, pattern: Token, escape: Token | None) -> CompiledPart:
        part = self._part(subject)
        self._want(part, _STRING, "What LIKE looks at")
        matches = self._pattern(pattern, escape)
        return CompiledPart(_maybe_not(_matching(part.test, matches), negated), _BOOLEAN)

    def _null(self, subject: Node, negated: Token | None) -> CompiledPart:
        return CompiledPart(_is_null(self._part(subject).test, wanted=negated is None), _BOOLEAN)

    def _arithmetic(self, first: Node, sign: Token, second: Node) -> CompiledPart:
        left, right = self._part(first), self._part(second)
        for part in (left, right):
            self._want(part, _NUMBER, f"What {str(sign)!r} takes")
        return CompiledPart(_calculated(left.test, right.test, _OPERATIONS[sign]), _NUMBER)

    def _sign(self, sign: Token, child: Node) -> CompiledPart:
        part = self._part(child)
        self._want(part, _NUMBER, f"What {str(sign)!r} takes")
        if isinstance(part.literal, int | float):
            return self._constant(-part.literal if sign == "-" else part.literal, _NUMBER)
        zero = _constant(0)
        return CompiledPart(_calculated(zero, part.test, _OPERATIONS[sign]), _NUMBER)

    def _quoted(self, name: Token) -> CompiledPart:
        return self._name(name[1:-1].replace('""', '"'))

    def _name(self, token: str) -> CompiledPart:
        name = str(token)
        fact = FACTS.get(name)
        if fact is not None:
            return CompiledPart(lambda headers, facts: None if facts is None else fact(facts), _ANY)
        return CompiledPart(lambda headers, facts: headers.get(name), _ANY, name=name)

    def _integer(self, token: Token) -> CompiledPart:
        digits = token.rstrip("lL")
        if len(digits) > MAX_DIGITS:
            raise fault(self._text, token.start_pos or 0, f"A decimal integer has at most {MAX_DIGITS:,} digits.")
        return self._constant(int(digits), _NUMBER)

    def _hexadecimal(self, token: Token) -> CompiledPart:
        return self._constant(int(token.rstrip("lL"), 16), _NUMBER)

    def _approximate(self, token: Token) -> CompiledPart:
        return self._constant(float(token.rstrip("fFdD")), _NUMBER)

    def _string(self, token: Token) -> CompiledPart:
        return self._constant(_unquoted(token), _STRING)

    def _true(self) -> CompiledPart:
        return self._constant(True, _BOOLEAN)

    def _false(self) -> CompiledPart:
        return self._constant(False, _BOOLEAN)

    def _constant(self, value: Scalar, kind: str) -> CompiledPart:
        return CompiledPart(_constant(value), kind, literal=value)

    def _want(self, part: CompiledPart, kind: str, what: str) -> None:
        if part.kind not in (kind, _ANY):
            raise fault(self._text, part.at, f"{what} is a {kind}, or a name, and here a {part.kind} begins.")

    def _pattern(self, pattern: Token, escape: Token | None) -> Callable[[str], object]:
        """Return a function that matches a whole string against a LIKE pattern."""
        sign = None if escape is None else _unquoted(escape)
        if escape is not None and (sign is None or len(sign) != 1):
            raise fault(self._text, escape.start_pos or 0, "ESCAPE names one character.")
        runs = [""]
        signs = iter(_unquoted(pattern))
        for one in signs:
            if one == sign:
                escaped = next(signs, None)
                if escaped is None or escaped not in ("%", "_", sign):
                    raise fault(
                        self._text, pattern.start_pos or 0, f"{sign!r} escapes '%', '_' and itself, and nothing else."
                    )
                runs[-1] += re.escape(escaped)
            elif one == "%":
                runs.append("")
            else:
                runs[-1] += "." if one == "_" else re.escape(one)
        return re.compile(_expression(*runs), re.DOTALL).fullmatch


def _expression(first: str, *rest: str) -> str:
    """Return the regular expression of the runs between the "%" of a pattern.

    Each inner run matches at its first place, and the atomic group never tries another place. If the rest does not
    follow the first place, it follows no later one. Plain ".*" tries all combinations of places. That never ends for a
    few "%" and some hundred characters.
    """
    if not rest:
        return first
    *between, last = rest
    return first + "".join(f"(?>.*?{run})" for run in between) + f".*{last}"


def _unquoted(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _at(tree: Node) -> int:
    start: int = getattr(tree.meta, "start_pos", 0)
    return start


def _constant(value: Scalar) -> Test:
    return lambda headers, facts: value


def _maybe_not(test: Test, negated: Token | None) -> Test:
    return test if negated is None else _negated(test)


def _negated(test: Test) -> Test:
    def negated(headers: Headers, facts: Facts | None) -> bool | None:
        value = test(headers, facts)
        return False if value is True else True if value is False else None

    return negated


def _joined(tests: list[Test], *, decides: bool) -> Test:
    """Return a test that has the value that `decides` if one test has it, else is unknown if one is unknown.

    A value that is no boolean is unknown.
    """

    def joined(headers: Headers, facts: Facts | None) -> bool | None:
        known: bool | None = not decides
        for test in tests:
            value = test(headers, facts)
            if value is decides:
                return decides
            if value is not (not decides):
                known = None
        return known

    return joined


def _is_equal(name: str, literal: Scalar) -> Test:
    """Compare a header with a constant in one step: most selectors consist of such comparisons."""
    types = _NUMBERS if type(literal) in _NUMBERS else (type(literal),)

    def is_equal(headers: Headers, facts: Facts | None) -> bool | None:
        value = headers.get(name)
        if value is None:
            return None
        return type(value) in types and bool(value == literal)

    return is_equal


def _compared(left: Test, right: Test, compare: Comparison, *, ordered: bool) -> Test:
    """Compare values of one kind. Values of two kinds compare as false; strings and booleans have no order (JMS)."""

    def compared(headers: Headers, facts: Facts | None) -> bool | None:
        one, other = left(headers, facts), right(headers, facts)
        if one is None or other is None:
            return None
        kind = type(one)
        if kind in _NUMBERS:
            return type(other) in _NUMBERS and compare(one, other)
        return not ordered and kind is type(other) and kind in (str, bool) and compare(one, other)

    return compared


def _in(test: Test, strings: frozenset[str], numbers: frozenset[float]) -> Test:
    def is_in(headers: Headers, facts: Facts | None) -> bool | None:
        value = test(headers, facts)
        if value is None:
            return None
        if type(value) is str:
            return value in strings
        return type(value) in _NUMBERS and value in numbers

    return is_in


def _matching(test: Test, matches: Callable[[str], object]) -> Test:
    def matching(headers: Headers, facts: Facts | None) -> bool | None:
        value = test(headers, facts)
        if value is None:
            return None
        return type(value) is str and matches(value) is not None

    return matching


def _is_null(test: Test, *, wanted: bool) -> Test:
    return lambda headers, facts: (test(headers, facts) is None) is wanted


def _calculated(left: Test, right: Test, operation: Operation) -> Test:
    """Calculate with numbers; unknown if an operand is no number, or there is no result."""

    def calculated(headers: Headers, facts: Facts | None) -> int | float | None:
        one, other = left(headers, facts), right(headers, facts)
        if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
            return None
        try:
            result: int | float = operation(one, other)
        except (ZeroDivisionError, OverflowError):
            return None
        return result

    return calculated


def _divided(one: float, other: float) -> float:
    """Divide like JMS: integer division rounds towards zero."""
    if type(one) is int and type(other) is int:
        quotient = abs(one) // abs(other)
        return quotient if (one < 0) == (other < 0) else -quotient
    return one / other


_OPERATIONS: dict[str, Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
}
