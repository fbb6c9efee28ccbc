"""Names of queues, sessions and other things: all tuples that a key can have."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.engine.steps import run
from fdbqueue.engine.transactional import attempts
from fdbqueue.stored.catalogue import About, write_about
from fdbqueue.stored.layout import Layout

Name = tuple[Any, ...]

_texts = st.text(st.sampled_from("ab\x00\xff\u20ac"), max_size=3)
_bytes = st.lists(st.sampled_from([0, 1, 2, 0x61, 0xFE, 0xFF]), max_size=3).map(bytes)
_numbers = st.integers(-300, 300) | st.floats(allow_nan=False) | st.sampled_from([2**64, -(2**64), 2**200])
_leaves = _texts | _bytes | _numbers | st.none() | st.booleans()
elements = st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
"""Elements of a key tuple: few letters, so that names are often alike."""
key_tuples = st.lists(elements, min_size=1, max_size=3).map(tuple)
"""Key tuples."""


@st.composite
def pairs_apart(draw: st.DrawFn) -> tuple[Name, Name]:
    """Two names of which neither is within the other, and which are alike: one goes on where the other ends."""
    one = draw(key_tuples)
    other = draw(
        key_tuples | st.builds(_longer, st.just(one), st.sampled_from(["\x00", "\x00b", "\x00\xff", "b", "\xff"]))
    )
    assume(not overlap(one, other))
    return one, other


def _longer(name: Name, tail: str) -> Name:
    """Return the name with a longer last element, however deep it is."""
    *before, last = name
    if isinstance(last, str):
        last += tail
    elif isinstance(last, bytes):
        last += tail.encode("latin-1")
    elif isinstance(last, tuple):
        last = _longer(last, tail) if last else (None,)
    else:
        before, last = [*before, last], tail
    return (*before, last)


def beside(space: Subspace, name: str) -> Subspace:
    """Return a subspace for one more queue, beside that of a queue that owns the whole space of a test."""
    *above, last = fdb_tuple.unpack(space.key())
    return Subspace((*above, f"{last} {name}"))


def registered_before(db: Any, *names: Any) -> None:
    """Register names as a version does that lets them lie within each other."""

    async def body(tr: Any) -> None:
        for name in names:
            write_about(tr, Layout(name), About("bytes"))

    run(attempts(db, body))


def overlap(one: Name, other: Name) -> bool:
    """Return whether one of the names is the other, or is within it, by their packed elements."""
    packed = [[fdb_tuple.pack((part,)) for part in name] for name in (one, other)]
    return all(first == second for first, second in zip(*packed))  # noqa: B905  the shorter one decides
