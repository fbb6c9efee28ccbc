"""Batches: where a stream of values is cut, by their number and their bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue.engine.errors import NOT_COMMITTED, TRANSACTION_TOO_LARGE, TRANSACTION_TOO_OLD, FDBError
from fdbqueue.stored.items import INLINE_BYTES, chunks_of, envelope
from fdbqueue.writes import bulk
from fdbqueue.writes.adaptive_limit import Halving
from fdbqueue.writes.bulk import Batch, Batches, Encoding

MOST_ITEMS, MOST_BYTES, INLINE = 10, 200, 60

values = st.lists(st.integers(0, 130).map(bytes) | st.just(b"short"), max_size=60)
ranks = st.sampled_from([None, "by length"])


def expected(sizes: list[int]) -> list[list[int]]:
    """Return the sizes of each batch's values: full as soon as it has enough of either, no large one over the brim."""
    found: list[list[int]] = [[]]
    for size in sizes:
        if size > INLINE and found[-1] and sum(found[-1]) + size > MOST_BYTES:
            found.append([])
        found[-1].append(size)
        if len(found[-1]) == MOST_ITEMS or sum(found[-1]) >= MOST_BYTES:
            found.append([])
    return found if found[-1] else found[:-1]


def encoding(order: str | None = None, *, takes_bytes: bool = True) -> Encoding:
    return Encoding(bytes, takes_bytes, len if order else lambda _: None, order)


@given(values=values, order=ranks)
@example(values=[b"short"] * 25, order=None)
@example(values=[bytes(INLINE)] * 9, order=None)
def test_a_batch_goes_out_when_it_has_enough_values_or_bytes(values: list[bytes], order: str | None) -> None:
    halves = 0

    def soon() -> None:
        nonlocal halves
        halves += 1

    with patch.multiple(bulk, BATCH_ITEMS=MOST_ITEMS, BATCH_BYTES=MOST_BYTES, INLINE_BYTES=INLINE):
        found = list(Batches(encoding(order), values, soon))
    sizes = expected([len(value) for value in values])
    assert [batch.size_bytes for batch in found] == [sum(some) for some in sizes]
    assert [stored for batch in found for stored in batch.stored] == [envelope(value) for value in values]
    assert [(batch.start, batch.stop) for batch in found] == spans(sizes)
    assert halves == sum(len(some) >= MOST_ITEMS // 2 for some in sizes if not fills_at_half(some))
    assert [batch.ranks for batch in found] == [some if order else None for some in sizes]


def spans(sizes: list[list[int]]) -> list[tuple[int, int]]:
    stops = [sum(map(len, sizes[: n + 1])) for n in range(len(sizes))]
    return list(zip([0, *stops], stops, strict=False))


def fills_at_half(sizes: list[int]) -> bool:
    return len(sizes) == MOST_ITEMS // 2 and sum(sizes) >= MOST_BYTES


def test_a_slow_input_sends_each_value_that_was_late_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slow() -> Iterator[bytes]:
        nonlocal now
        for n in range(6):
            now += (0.1, 0.6)[n > 2]
            yield b"%d" % n

    assert [batch.stop for batch in Batches(encoding(), slow(), lambda: None)] == [4, 5, 6]


@pytest.mark.parametrize("takes_bytes", [True, False])
def test_a_value_counts_as_taken_as_soon_as_it_is_read(takes_bytes: bool) -> None:
    source = Batches(encoding(takes_bytes=takes_bytes), [b"a", b"b", "no bytes", b"c"], lambda: None)
    with pytest.raises(TypeError):
        list(source)
    assert source.taken == 3


def test_a_failing_input_counts_its_values() -> None:
    def broken() -> Iterator[bytes]:
        yield from (b"a", b"b")
        raise ConnectionError

    source = Batches(encoding(), broken(), lambda: None)
    with pytest.raises(ConnectionError):
        list(source)
    assert source.taken == 2


@pytest.mark.parametrize("index", [0, 7])
@pytest.mark.parametrize("order", [None, "by length"])
def test_halves_of_a_batch_have_its_values_at_the_same_places(order: str | None, index: int) -> None:
    sizes = [3, INLINE_BYTES + 1, 2, INLINE_BYTES + 2, 1]
    whole = Batch(100, index=index)
    for size in sizes:
        whole.add(bytes(size), size if order else None)

    first, second = whole.halves()

    assert [(half.start, half.stop) for half in (first, second)] == [(100, 102), (102, 105)]
    assert first.stored + second.stored == whole.stored
    assert [(half.large, half.ranks) for half in (first, second)] == [
        ([(1, chunks_of(bytes(sizes[1])))], sizes[:2] if order else None),
        ([(1, chunks_of(bytes(sizes[3])))], sizes[2:] if order else None),
    ]
    assert [half.index for half in (first, second)] == ([7, 9] if index else [0, 0])
    assert first.size_bytes + second.size_bytes == whole.size_bytes


def test_an_empty_input_gives_no_batch() -> None:
    assert list(Batches(encoding(), [], lambda: None)) == []
    assert Batch(3).stop == 3


def test_halves_have_the_bytes_of_their_own_values() -> None:
    batch = Batch(0)
    for size_bytes in (100, 90_001, 3, 0, 200_000, 7):
        batch.add(bytes(size_bytes), None)
    assert [half.size_bytes for half in batch.halves()] == [90_104, 200_007]


def test_the_halves_of_a_batch_come_next_and_batches_are_read_one_at_a_time() -> None:
    read: list[int] = []

    def made() -> Iterator[list[int]]:
        for start in range(0, 12, 6):
            read.append(start)
            yield [*range(start, start + 6)]

    seen = []
    halving = Halving(made())
    for batch in halving:
        seen.append((batch, len(read)))
        if len(batch) > 3:
            halving.halve(FDBError(TRANSACTION_TOO_LARGE))
        elif batch == [3, 4, 5]:
            halving.again([5])

    assert [batch for batch, _ in seen] == [
        *([*range(6)], [0, 1, 2], [3, 4, 5], [5]),
        *([*range(6, 12)], [6, 7, 8], [9, 10, 11]),
    ]
    assert [count for _, count in seen] == [1, 1, 1, 1, 2, 2, 2]


def test_a_batch_is_given_up_when_it_is_too_large_or_too_old_twice() -> None:
    halving = Halving([[1, 2], [3]])
    rounds = iter(halving)
    next(rounds)
    halving.note(FDBError(NOT_COMMITTED))
    halving.note(FDBError(TRANSACTION_TOO_OLD))
    for code in TRANSACTION_TOO_OLD, TRANSACTION_TOO_LARGE:
        with pytest.raises(FDBError, match=str(code)):
            halving.note(FDBError(code))
    with pytest.raises(FDBError, match=str(NOT_COMMITTED)):
        halving.halve(FDBError(NOT_COMMITTED))
    assert next(rounds) == [3]
    halving.note(FDBError(TRANSACTION_TOO_LARGE))  # one item can't be cut: the engine's own retries decide
    with pytest.raises(FDBError, match=str(TRANSACTION_TOO_LARGE)):
        halving.halve(FDBError(TRANSACTION_TOO_LARGE))
