"""Names as texts: each name of every kind has one text, no two have the same, and no other code makes or reads one."""

from __future__ import annotations

import re
import shlex
import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import SingleFloat, Versionstamp
from fdbqueue.layers.sessions.session.records import pack_name
from fdbqueue.lowlevel import fdb_tuple
from fdbqueue.stored import names
from fdbqueue.stored.layout import Layout, name_of

ROOT = Path(names.__file__).parents[2]
NAN = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
"""Not the usual one: it packs to other bytes."""

_texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(
        ['["vip", 7]', "[", '{"text": "a"}', '{ "base64" : "eA=="}', '{"prefix": "02"}', "{x}", '"a"', "a\0b"]
    ),
)
_stamps = st.builds(Versionstamp, st.binary(min_size=10, max_size=10), st.integers(0, 65_535))
_parts: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**2_000), 2**2_000),
        st.floats(),
        st.sampled_from([NAN, -0.0, 0.0, 1, 1.0, True]),
        st.floats(width=32).map(SingleFloat),
        _texts,
        st.binary(max_size=20),
        st.uuids(),
        _stamps,
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)
_tuples = st.lists(_parts, min_size=1, max_size=4).map(tuple)


def _is_printable(text: str) -> bool:
    return names.escaped(text) == text


# A text that is read back as its name belongs to no other name: so these also show that no two names share a text.


@given(_tuples)
@example(("a\x00b",))
@example((1.0,))
@example((True,))
@example((NAN,))
@example((Versionstamp(b"\xff" * 10, 7),))
@example(("",))
def test_the_text_of_a_queue_names_that_queue_and_no_other(name: tuple[Any, ...]) -> None:
    layout = Layout(name)
    text = names.queue_text(layout.prefix)
    assert Layout(names.queue_named(text)).prefix == layout.prefix
    assert _is_printable(text)


@given(st.binary(min_size=1, max_size=40))
@example(b"\x02abc")
@example(b"\x33" + b"\xff" * 12)
@example(b"\x21\x00\x07\xff\xff\xff\xff\xff\xfe")
def test_the_text_of_a_queue_at_any_prefix_names_that_prefix(prefix: bytes) -> None:
    named = names.queue_named(names.name_text(name_of(prefix)))
    # Not of a `Layout`, which refuses some prefixes.
    parts = named if isinstance(named, tuple) else (named,)
    assert (named if isinstance(named, Subspace) else Subspace(parts)).key() == prefix


@given(st.one_of(_texts.filter(bool), st.binary(min_size=1, max_size=20), _tuples))
@example(('["vip", 7]',))
@example('["vip", 7]')
@example(b"ann")
@example('{"base64": "YW5u"}')
def test_the_text_of_a_session_or_a_gate_names_it_and_no_other(name: Any) -> None:
    text = names.session_text(name)
    assert fdb_tuple.pack((names.session_named(text),)) == fdb_tuple.pack((name,))
    assert _is_printable(text)


@given(_texts.filter(bool))
def test_the_text_of_a_group_or_a_subscription_names_it_and_no_other(name: str) -> None:
    assert names.text_named(names.session_text(name), "group") == name


@given(_texts.filter(bool))
def test_a_text_that_is_typed_means_itself_unless_it_begins_as_another_form(text: str) -> None:
    if text.startswith("[") or names.OBJECT.match(text):
        return
    assert names.queue_named(text) == names.session_named(text) == names.text_named(text, "group") == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("{x}", "{x}"),
        ('"quoted"', '"quoted"'),
        (" a b ", " a b "),
        ('["shop", "orders"]', ("shop", "orders")),
        ('["shop",7]', ("shop", 7)),
        ('["shop", {"base64": "eA=="}, [1.5, null, true]]', ("shop", b"x", (1.5, None, True))),
    ],
)
def test_what_was_typed_before_means_the_same(text: str, name: Any) -> None:
    assert names.queue_named(text) == names.session_named(text) == name


def test_the_forms_that_a_queue_and_a_session_have_each_for_itself() -> None:
    assert names.session_named('{"base64": "eA=="}') == b"x"
    assert Layout(names.queue_named('{"prefix": "02616263"}')).prefix == b"\x02abc"
    assert names.text_named("[7]", "group") == "[7]"
    assert Layout(names.queue_named('["a"]')).prefix == Layout("a").prefix
    assert pack_name(names.session_named('["a"]')) != pack_name("a")


WRONG = [
    "",
    "[",
    "[1",
    '["\\ud800"]',
    '["a"] b',
    "[NaN]",
    '[{"other": 1}]',
    '[{"base64": "eA==", "text": "a"}]',
    '[{"base64": "e"}]',
    '[{"uuid": "7"}]',
    '[{"versionstamp": "00"}]',
    '[{"single": "00"}]',
    '[{"double": true}]',
    '[{"prefix": "02"}]',
    '{"text": 7}',
    '{"text": "a"',
    "[" * 10_000,
    f"[{2**2_100}]",
    "a\ud800",
]


@pytest.mark.parametrize("text", WRONG, ids=lambda text: ascii(text[:30]))
def test_a_text_that_is_no_name_is_refused_with_one_kind_of_error(text: str) -> None:
    for read in (names.queue_named, names.session_named):
        with pytest.raises(ValueError, match=r"names no |name is empty"):
            read(text)


def test_only_a_queue_has_a_prefix_and_only_a_text_names_a_group() -> None:
    with pytest.raises(ValueError, match="only a queue has a prefix"):
        names.session_named('{"prefix": "02"}')
    with pytest.raises(ValueError, match="a group is named by a text"):
        names.text_named('{"base64": "eA=="}', "group")
    with pytest.raises(ValueError, match="an empty prefix would own"):
        Layout(names.queue_named('{"prefix": ""}'))


def test_a_prefix_that_is_a_tuple_names_the_queue_of_the_tuple() -> None:
    prefix = Layout("orders").prefix
    assert names.queue_text(Layout(Subspace(rawPrefix=prefix)).prefix) == "orders"


# -- no other code makes or reads the text of a name ----------------------------------------------------------------

SHOWING = (
    *(f"fdbqueue/{part}" for part in ("cli", "web", "observe", "spark", "arrow", "transfer", "notebook.py")),
    *("layers/common/handlers.py", "layers/sessions/reading"),
)
"""Where names are shown to people. Elsewhere errors have them as a program gives them."""
READS_OTHERS = {
    "fdbqueue/stored/names.py": "the one that may",
    "fdbqueue/cli/helptext.py": "finds names in messages, as a program gives them",
    "fdbqueue/agents/words.py": "a host in brackets",
    "fdbqueue/cli/options.py": "the bounds in a table of options",
    "fdbqueue/spark/operators.py": "what Spark left in a checkpoint",
}
READS = re.compile(r"""literal_eval|startswith\(["'][\[{]["']|\[:1\] [!=]= ["'][\[{]""")
FORMATS = re.compile(r"\{[\w.]*\b(session|gate)(![rsa])?\}|\b(repr|str|ascii)\([\w.]*\b(session|gate)\)")


def _lines(path: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    text = path.read_text()
    if pattern.search(text):
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield f"{path}:{number} {line.strip()}"


def test_no_other_code_makes_or_reads_the_text_of_a_name() -> None:
    found: list[str] = []
    for path in chain((ROOT / "fdbqueue").rglob("*.py"), (ROOT / "layers").rglob("*.py")):
        own = str(path.relative_to(ROOT))
        if own not in READS_OTHERS:
            found += _lines(path, READS)
        if own.startswith(SHOWING):
            found += _lines(path, FORMATS)
    assert not found, "\n".join(found)


def test_a_name_that_begins_with_a_dash_is_no_option_of_a_command() -> None:
    for name in ("-rf", "--help", "a b", "it's", "$x", "ann"):
        [word] = shlex.split(names.queue_word((name,)))
        assert not word.startswith("-")
        assert Layout(names.queue_named(word)).prefix == Layout(name).prefix
        [word] = shlex.split(names.session_word(name))
        assert not word.startswith("-")
        assert names.session_named(word) == name


QUOTES = re.compile(r"\bshlex\.(quote|join)\b|\bimport (quote|join)\b")


def test_no_other_code_writes_a_name_into_a_command() -> None:
    paths = [*(ROOT / "fdbqueue").rglob("*.py"), *(ROOT / "layers").rglob("*.py")]
    found = [line for path in paths if path != Path(names.__file__) for line in _lines(path, QUOTES)]
    assert not found, "\n".join(found)
