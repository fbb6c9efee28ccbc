"""The grammar of selectors. It is the grammar of JMS, a subset of SQL-92's conditional expressions."""

from __future__ import annotations

from functools import cache
from typing import Any

from lark import Lark, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from fdbqueue import SelectorError

MAX_SELECTOR_BYTES = 8_000

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

_OR.2: /or(?![\w$])/i
_AND.2: /and(?![\w$])/i
NOT.2: /not(?![\w$])/i
_BETWEEN.2: /between(?![\w$])/i
_IN.2: /in(?![\w$])/i
_LIKE.2: /like(?![\w$])/i
_ESCAPE.2: /escape(?![\w$])/i
_IS.2: /is(?![\w$])/i
_NULL.2: /null(?![\w$])/i
_TRUE.2: /true(?![\w$])/i
_FALSE.2: /false(?![\w$])/i

COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/"
NAME: /(?!(or|and|not|between|in|like|escape|is|null|true|false)(?![\w$]))([^\W\d][\w$]*|\$[\w$]*)/i
QUOTED: /"([^"]|"")+"/
HEXADECIMAL.3: /0[xX][0-9a-fA-F]+[lL]?(?![\w$.])/
APPROXIMATE.2: /(\d+\.\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?(?![\w$.])|\d+([eE][+-]?\d+[fFdD]?|[fFdD])(?![\w$.])/
INTEGER: /(0|[1-9]\d*)[lL]?(?![\w$.])/
STRING: /'([^']|'')*'/

%ignore /\s+/
"""


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def parse_selector(text: str) -> Tree[Any]:
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
    at: Any = error.pos_in_stream
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
