"""Selectors: JMS's syntax, SQL's logic, and what is said of those that are wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Position, SelectorError
from fdbqueue.layers.subscriptions.selectors import ItemTest, Selector
from fdbqueue.stored.items import Notes, envelope, with_notes
from fdbqueue.stored.layout import Layout

HEADERS = {"color": "red", "weight": 3, "price": 2.5, "urgent": True, "x-key": "k", "$odd": 1, "tags": ["a", "b"]}


@pytest.mark.parametrize(
    "text",
    [
        "color = 'red'",
        "COLOR IS NULL",
        "color <> 'blue' and NoT color = 'blue'",
        "weight = 3 AND weight = 3.0 AND weight = 3L AND weight = 0x3 AND weight = 3e0 AND weight = 3.d",
        "weight > price AND price < 3 AND weight >= 3 AND weight <= 3",
        "weight + 1 * 2 = 5 AND (weight + 1) * 2 = 8 AND -weight = -3 AND +weight = 3 AND - - weight = 3",
        "weight / 2 = 1 AND -weight / 2 = -1 AND weight / 2.0 = 1.5",
        "weight BETWEEN 1 AND 3 AND weight NOT BETWEEN 4 AND 5",
        "color IN ('blue', 'red') AND color NOT IN ('green') AND weight IN (1, 3.0)",
        "weight IN (-1, +3) AND -weight IN (-3)",
        "color LIKE 'r%' AND color LIKE '_e_' AND color NOT LIKE 'e%' AND color LIKE '%'",
        "urgent AND urgent = TRUE AND NOT urgent = false AND urgent <> FALSE",
        "nothing IS NULL AND color IS NOT NULL AND tags IS NOT NULL",
        "\"x-key\" = 'k' AND $odd = 1",
        "color = 'blue' OR color = 'green' OR weight = 3",
        "nothing = 1 OR color = 'red'",
        "(((color = 'red')))",
        "color\n  =\t'red'",
    ],
)
def test_it_accepts(text: str) -> None:
    assert Selector(text).accepts(HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        "nothing = 1",
        "NOT nothing = 1",
        "nothing <> 1 OR nothing = 1",
        "nothing IN ('a')",
        "nothing NOT IN ('a')",
        "nothing LIKE '%'",
        "nothing NOT LIKE '%'",
        "nothing BETWEEN 1 AND 2",
        "nothing + 1 = 1 OR NOT nothing + 1 = 1",
        "nothing AND TRUE",
        "color = 3 OR weight = 'red' OR urgent = 1 OR urgent = 'TRUE'",
        "color > price OR color < price OR urgent < weight",
        "color LIKE 'RED' OR weight LIKE '3'",
        "weight / 0 = 1 OR NOT weight / 0 = 1",
        "color + 1 = 1 OR NOT color + 1 = 1",
        "color OR NOT color",
        "weight AND TRUE",
        "tags = 'a' OR tags IN ('a')",
        "FALSE",
    ],
)
def test_it_does_not_accept(text: str) -> None:
    assert not Selector(text).accepts(HEADERS)


@pytest.mark.parametrize(
    ("pattern", "like", "unlike"),
    [
        ("'12%3'", ["123", "12993"], ["1234"]),
        ("'l_se'", ["lose"], ["loose", "lse"]),
        ("'!_%' ESCAPE '!'", ["_foo", "_"], ["bar"]),
        ("'50\\%' ESCAPE '\\'", ["50%"], ["500"]),
        ("'a!!b' ESCAPE '!'", ["a!b"], ["a!!b"]),
        ("'it''s.*'", ["it's.*"], ["it's.x"]),
        ("'a%z'", ["a\nz"], ["a\n"]),
        ("'%ab%a_%b'", ["abacb", "xabxaxxb"], ["aba", "abab"]),
        (f"'{'%a' * 30}b'", ["a" * 3_000 + "b"], ["a" * 3_000]),  # all ways to find these would take years
    ],
)
def test_patterns_are_like(pattern: str, like: list[str], unlike: list[str]) -> None:
    selector = Selector(f"word LIKE {pattern}")
    assert [word for word in [*like, *unlike] if selector.accepts({"word": word})] == like


@pytest.mark.parametrize(
    ("text", "line", "column", "why"),
    [
        ("color = 'red' OR", 1, 17, "ends too early"),
        ("color = 'red", 1, 9, "does not end"),
        ("color = 'red'\nAND weight > 'x'", 2, 14, "compares is a number"),
        ("color = 'red' weight", 1, 15, "can't stand here"),
        ("weight = 007", 1, 10, "nothing that a selector has"),
        ("weight = ?", 1, 10, "nothing that a selector has"),
        ("a < b < c", 1, 7, "can't stand here"),
        ("3", 1, 1, "true or false is a condition"),
        ("weight + 1 AND TRUE", 1, 1, "here a number begins"),
        ("urgent AND ('x')", 1, 13, "here a string begins"),
        ("3 LIKE 'x'", 1, 1, "LIKE looks at is a string"),
        ("color LIKE 'x' ESCAPE 'ab'", 1, 23, "one character"),
        ("color LIKE 'x!y' ESCAPE '!'", 1, 12, "escapes '%'"),
        ("color IN ('a', TRUE)", 1, 16, "strings or numbers"),
        ("color IN (weight)", 1, 11, "can't stand here"),
        ("-'a' = 1", 1, 2, "takes is a number"),
        ("color IN (-'a')", 1, 12, "takes is a number"),
        (f"weight = {'1' * 5_000}", 1, 10, "at most 1,000 digits"),
        ("weight BETWEEN 'a' AND 'b'", 1, 16, "BETWEEN compares"),
        ("NOT (" * 120 + "a" + ")" * 120, 1, 1, "deep"),
        ("a" * 9_000, 1, 1, "over the limit"),
    ],
)
def test_a_bad_selector_is_refused_with_the_place_of_the_fault(text: str, line: int, column: int, why: str) -> None:
    with pytest.raises(SelectorError, match=why) as refused:
        Selector(text)
    if why != "deep":
        assert (refused.value.line, refused.value.column) == (line, column)


def test_a_selector_asks_for_more_than_headers() -> None:
    layout = Layout("q")
    notes = Notes(attempt=2, enqueued_at_us=7_000_000, ttl_at_us=9_000_000)
    key, stored = layout.item_key(Position(7, b"random")), with_notes(envelope(b"x", {"a": 1}), notes)
    accepted = (
        "JMSMessageID = 'ID:7:72616e646f6d' AND JMSTimestamp = 7000 AND JMSExpiration = 9000 AND JMSRedelivered"
        " AND JMSXDeliveryCount = 3 AND fdbqueue_index = 7 AND JMSPriority = 4 AND fdbqueue_rank IS NULL AND a = 1"
    )
    assert ItemTest(layout, Selector(accepted))(key, stored)
    fresh = "JMSTimestamp IS NULL AND JMSExpiration = 0 AND NOT JMSRedelivered AND JMSXDeliveryCount = 1"
    assert ItemTest(layout, Selector(fresh))(key, envelope(b"x"))
    assert ItemTest(layout, Selector("JMSPriority > 8"))(key, envelope(b"x", {"priority": 9}))
    assert ItemTest(layout, lambda headers: headers["a"] == 1)(key, stored)
    assert not Selector("JMSRedelivered OR NOT JMSRedelivered").accepts({})


def test_an_item_that_cannot_be_read_is_not_accepted() -> None:
    assert not ItemTest(Layout("q"), Selector("1 = 1"))(b"key", b"\xff")


numbers = ["i", "j", "x", "1", "2", "0", "2.5", "-3"]
strings = ["s", "t", "'a'", "'ab'", "'it''s'"]


def arithmetic(depth: int) -> st.SearchStrategy[str]:
    if not depth:
        return st.sampled_from(numbers)
    part = arithmetic(depth - 1)
    return part | st.builds("{} {} {}".format, part, st.sampled_from("+-*/"), part) | part.map("({})".format)


def conditions(depth: int) -> st.SearchStrategy[str]:
    number, not_ = arithmetic(2), st.sampled_from(["", "NOT "])
    string = st.sampled_from(strings)
    if depth:
        part = conditions(depth - 1)
        return (
            st.builds("{} {} {}".format, part, st.sampled_from(["AND", "OR"]), part)
            | part.map("NOT {}".format)
            | part.map("({})".format)
        )
    return (
        st.builds("{} {} {}".format, number, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), number)
        | st.builds("{} {} {}".format, string, st.sampled_from(["=", "<>"]), string)
        | st.builds("{} {}BETWEEN {} AND {}".format, number, not_, number, number)
        | st.builds("{} {}IN ('a', 'ab', 'it''s')".format, st.sampled_from("st"), not_)
        | st.builds(
            "{} {}LIKE {}".format, st.sampled_from("st"), not_, st.sampled_from(["'a%'", "'_b'", "'%!_' ESCAPE '!'"])
        )
        | st.builds("{} IS {}NULL".format, st.sampled_from("ijxstf"), not_)
        | st.builds("f = {}".format, st.sampled_from(["TRUE", "FALSE"]))
        | st.just("f")
    )


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA case_sensitive_like = ON")
    yield connection
    connection.close()


small = st.none() | st.integers(-3, 3)
words = st.none() | st.sampled_from(["a", "ab", "it's", "_", "b_"])


@given(
    text=st.integers(0, 4).flatmap(conditions),
    row=st.fixed_dictionaries(
        {
            **dict.fromkeys("ij", small),
            "x": st.none() | st.sampled_from([-1.5, 0.0, 2.0, 2.5]),
            **dict.fromkeys("st", words),
            "f": st.none() | st.booleans(),
        }
    ),
)
def test_sqlite_answers_the_same(sqlite: sqlite3.Connection, text: str, row: dict[str, Any]) -> None:
    columns = ", ".join(f"? AS {name}" for name in row)
    query = f"SELECT ({text}) IS TRUE FROM (SELECT {columns})"
    expected = bool(sqlite.execute(query, list(row.values())).fetchone()[0])
    present = {name: value for name, value in row.items() if value is not None}
    assert Selector(text).accepts(present) is expected


@given(text=st.text(alphabet="ab1.'\"()=<>+-*/ %\nANDORNOTLIKEIS", max_size=30))
def test_any_text_is_a_selector_or_refused_with_a_place_in_it(text: str) -> None:
    line, column = 1, 1
    try:
        Selector(text).accepts(HEADERS)
    except SelectorError as error:
        line, column = error.line, error.column
    assert 1 <= line <= text.count("\n") + 1
    assert 1 <= column <= len(text) + 1


@pytest.mark.parametrize(
    "text", ["color = NULL", "color <> null", "not = 1", "Like LIKE 'a'", "between = 1", "is IS NULL"]
)
def test_a_reserved_word_is_no_name_unless_it_is_quoted(text: str) -> None:
    with pytest.raises(SelectorError, match="can't stand here"):
        Selector(text)
    assert Selector('"null" = 1 AND nullable = 2').accepts({"null": 1, "nullable": 2})
