"""Envelopes: what is stored, and what happens to bytes that are none."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.errors import CodecError, FormatError, ItemTooLarge
from fdbqueue.stored.items import (
    CHUNK_BYTES,
    INLINE_BYTES,
    MAX_HEADER_BYTES,
    MAX_ITEM_BYTES,
    MAX_NOTES_BYTES,
    NO_NOTES,
    Blob,
    Notes,
    blob_of,
    chunks_of,
    envelope,
    has_notes,
    has_parts,
    headers_of,
    is_chunked,
    join_chunks,
    kept_size_of,
    notes_of,
    parse,
    with_blob,
    with_notes,
)

headers = st.dictionaries(
    st.text(max_size=8), st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=9)), max_size=4
)
times_us = st.integers(0, 2**62 - 1)
notes = st.builds(
    Notes,
    attempt=st.integers(0, 2**31),
    token=st.binary(max_size=16),
    expires_at_us=times_us,
    consumer=st.text(max_size=20),
    visible_at_us=times_us,
    enqueued_at_us=times_us,
    ttl_at_us=times_us,
    error=st.text(max_size=100),
    died_at_us=times_us,
)
payloads = st.one_of(st.binary(max_size=50), st.integers(INLINE_BYTES - 2, INLINE_BYTES + 2).map(bytes))


def test_a_plain_item_costs_one_byte_more_than_its_payload() -> None:
    assert envelope(b"x" * 100) == b"\x10" + b"x" * 100


@given(payload=payloads, headers=headers)
def test_an_envelope_returns_its_parts(payload: bytes, headers: dict[str, Any]) -> None:
    chunks = chunks_of(payload)
    opened = parse(envelope(payload, headers))
    assert dict(opened.headers) == headers
    assert (opened.chunked is not None) == bool(chunks) == (len(payload) > INLINE_BYTES)
    assert payload == (join_chunks(opened.chunked, chunks) if opened.chunked else opened.payload)


@given(payload=payloads, headers=headers, first=notes, second=notes)
def test_notes_are_exchanged_and_nothing_else_changes(
    payload: bytes, headers: dict[str, Any], first: Notes, second: Notes
) -> None:
    plain = envelope(payload, headers)
    noted = with_notes(with_notes(plain, first), second)
    assert notes_of(noted) == second
    assert parse(noted) == parse(plain)._replace(notes=second)
    assert is_chunked(noted) == is_chunked(plain)
    assert with_notes(noted, Notes()) == plain


def test_notes_cost_nothing_unless_something_is_noted() -> None:
    assert with_notes(envelope(b"x"), Notes()) == envelope(b"x")
    assert not has_notes(envelope(b"x", {"n": 1}))
    assert len(with_notes(envelope(b"x"), Notes(attempt=1))) == len(b"\x14" + b"\x00\x04" + b"\x81\xa1a\x01" + b"x")


def test_the_largest_inline_item_with_all_its_parts_stays_under_the_databases_limit_for_a_value() -> None:
    longest = Notes(error="e" * (MAX_NOTES_BYTES - 6))
    stored = with_notes(envelope(bytes(INLINE_BYTES), {"h": "h" * (MAX_HEADER_BYTES - 6)}), longest)
    assert 99_900 < len(stored) <= 100_000
    with pytest.raises(ItemTooLarge, match="Notes"):
        with_notes(envelope(b""), Notes(error="e" * MAX_NOTES_BYTES))


def test_notes_of_a_newer_version_are_refused_by_saying_so() -> None:
    with pytest.raises(FormatError, match="newer version"):
        notes_of(b"\x14\x00\x04\x81\xa1z\x01x")


@given(
    payload=st.binary(max_size=30),
    headers=headers,
    noted=notes,
    cut=st.integers(0, 200),
    noise=st.binary(max_size=3),
)
def test_truncated_and_foreign_bytes_are_refused_or_read_but_never_crash(
    payload: bytes, headers: dict[str, Any], noted: Notes, cut: int, noise: bytes
) -> None:
    for read in (parse, notes_of):
        for stored in (envelope(payload, headers), with_notes(envelope(payload, headers), noted)):
            with contextlib.suppress(FormatError):
                read(noise + stored[:cut])


@given(data=st.binary(max_size=60))
def test_random_bytes_are_refused_or_read_but_never_crash(data: bytes) -> None:
    with contextlib.suppress(FormatError):
        parse(data)


@given(
    payload=st.binary(max_size=60),
    headers=st.none() | st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=2),
    attempt=st.integers(0, 3),
    blob=st.builds(
        Blob, st.binary(min_size=16, max_size=16), st.integers(0, 2**31), st.integers(0, 2**32 - 1), st.booleans()
    ),
)
def test_an_envelope_with_a_blob_keeps_all_that_it_had(
    payload: bytes, headers: dict[str, int] | None, attempt: int, blob: Blob
) -> None:
    plain = with_notes(envelope(payload, headers), Notes(attempt=attempt))
    stored = with_blob(plain, blob)

    assert parse(stored) == parse(plain)._replace(blob=blob)
    assert blob_of(stored) == blob
    assert blob_of(plain) is None
    assert (has_parts(stored), has_parts(plain)) == (True, False)
    assert headers_of(stored) == (headers or {})
    assert notes_of(stored) == Notes(attempt=attempt)
    assert kept_size_of(stored) == kept_size_of(plain) == kept_size_of(envelope(payload, headers))
    assert with_notes(stored, Notes(consumer="x")) == with_blob(with_notes(plain, Notes(consumer="x")), blob)
    assert stored[0] >> 4 == 2, "so that an older version of the library refuses it"


def test_a_blob_with_a_truncated_description_is_refused() -> None:
    stored = with_blob(envelope(b""), Blob(bytes(16), 1, 2, True))
    for cut in range(1, len(stored)):
        for read in (parse, blob_of):
            with pytest.raises(FormatError, match="its blob's description is cut off"):
                read(stored[:cut])
    with pytest.raises(FormatError, match="is not that of an envelope"):
        parse(b"\x18" + stored[1:])


def test_an_envelope_of_a_newer_version_is_refused_by_saying_so() -> None:
    with pytest.raises(FormatError, match="format 3 by a newer version"):
        parse(b"\x38hello")
    with pytest.raises(FormatError, match="format 2 by a newer version"):
        parse(b"\x20hello")


def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    assert len(chunks_of(bytes(MAX_ITEM_BYTES))) == -(-MAX_ITEM_BYTES // CHUNK_BYTES)
    envelope(bytes(MAX_ITEM_BYTES))
    with pytest.raises(ItemTooLarge, match="over the limit of 8,000,000"):
        envelope(bytes(MAX_ITEM_BYTES + 1))


def test_a_missing_or_changed_chunk_is_noticed() -> None:
    payload = bytes(range(256)) * 1_000
    chunked = parse(envelope(payload)).chunked
    assert chunked is not None
    chunks = chunks_of(payload)
    for damaged in (chunks[:-1], [*chunks[1:], chunks[0]], [*chunks[:-1], b"x" * len(chunks[-1])]):
        with pytest.raises(FormatError, match="damaged"):
            join_chunks(chunked, damaged)


@pytest.mark.parametrize("bad", [{1: "x"}, {"x": object()}])
def test_headers_that_messagepack_cannot_hold_are_refused(bad: dict[Any, Any]) -> None:
    with pytest.raises(CodecError):
        envelope(b"", bad)


def test_headers_come_back_as_the_limits_say() -> None:
    here = datetime.datetime(2026, 1, 2, 3)
    given = {
        "tuple": (1,),
        "set": {1},
        "date": here.date(),
        "naive": here,
        "decimal": Decimal("1.5"),
        "id": UUID(int=7),
    }
    back = parse(envelope(b"", {**given, "aware": here.replace(tzinfo=datetime.UTC), "object": NO_NOTES})).headers
    texts = {"date": "2026-01-02", "naive": "2026-01-02T03:00:00", "decimal": "1.5", "id": str(given["id"])}
    assert {name: back[name] for name in given} == {"tuple": [1], "set": [1], **texts}
    assert back["aware"] == here.replace(tzinfo=datetime.UTC)
    assert type(back["object"]) is dict


def test_headers_over_the_limit_are_refused() -> None:
    with pytest.raises(ItemTooLarge, match="Headers"):
        envelope(b"", {"x": "y" * 9_000})
