"""Parquet files whose pages lie about themselves are refused before they are decoded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.errors import TransferError
from fdbqueue.transfer import import_items, parquet
from fdbqueue.transfer.records import FileHeader, from_line

HEADER = FileHeader(1, "q", "bytes", None, 1)


def export_of(file: Path, value: str = "a", rows: int = 3) -> bytes:
    """Write an export of items with one value, and return its bytes."""
    line = '{"position":"%d:aa","state":"available","text":%s}'
    with file.open("wb") as out:
        parquet.write(out, HEADER, [from_line((line % (at + 1, json.dumps(value))).encode()) for at in range(rows)])
    return file.read_bytes()


def varint(number: int) -> bytes:
    """Return a number from 0 on as Thrift's compact protocol has it."""
    number, found = number << 1, b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


Patch = Callable[[bytes], bytes]
"""Changes the first bytes of a page, whose header begins with its kind (15 04) and its size in memory (15 …)."""

PATCHES: dict[str, tuple[Patch, str]] = {
    "134 MB": (
        lambda page: page.replace(varint(1_100_004), varint((1 << 27) - 1)),
        r"its pages say that they take 134,217,\d+ bytes, and the footer says 1,100,\d+",
    ),
    "no known kind": (lambda page: b"\x15\x7e" + page[2:], "is of no known kind"),
    "a size below 0": (lambda page: page[:3] + bytes([page[3] | 1]) + page[4:], "has a size below 0"),
    "no kind": (lambda page: b"\x25" + page[1:], "lacks its field 1"),
    "no header": (lambda page: b"\xff" * 11, "a field of the kind 15"),
    "a list": (lambda page: b"\x19\xf8" + page[2:], "a field of the kind 9"),
    "structs within each other": (lambda page: b"\x1c" * 11, "has too many structs within each other"),
    "a number without an end": (lambda page: b"\x15" + b"\xff" * 10, "has a number of over 64 bits"),
    "a text without an end": (lambda page: b"\x18\xff\xff\x7f" + page[4:], "has no end"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_page_that_lies_about_itself_is_refused_before_it_is_decoded(
    db: Any, space: Subspace, tmp_path: Path, name: str
) -> None:
    patch, told = PATCHES[name]
    file = tmp_path / "items.parquet"
    whole = export_of(file, "x" * 1_100_000)
    assert len(whole) < 10_000
    at = pq.read_metadata(file).row_group(0).column(parquet.COLUMNS.index("value")).dictionary_page_offset
    page = whole[at : at + 11]
    assert (page[:3], len(patch(page))) == (b"\x15\x04\x15", 11)
    file.write_bytes(whole[:at] + patch(page) + whole[at + 11 :])
    allocated = pa.default_memory_pool().max_memory()
    with pytest.raises(TransferError, match=told) as refused:
        import_items(db, Queue(space), file)
    assert "row group 1, column 'value'" in str(refused.value)
    assert pa.default_memory_pool().max_memory() == allocated
    assert list(db.get_range_startswith(space.key())) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"\x4c\x15\x06", b"\x4c\x15\x7e", "a page of 24 bytes says that it has 63 values"),
        (b"\x2c\x15\x06", b"\x2c\x15\x7e", "its pages say that they have 63 values, and the footer says 3"),
        (b"\x2c\x15\x06", b"\x2c\x15\x04", "its pages say that they have 2 values, and the footer says 3"),
    ],
)
def test_a_page_that_lies_about_its_values_is_refused(
    db: Any, space: Subspace, tmp_path: Path, before: bytes, after: bytes, told: str
) -> None:
    file = tmp_path / "items.parquet"
    whole = export_of(file)
    at = whole.index(before)  # the first column has the positions
    file.write_bytes(whole[:at] + after + whole[at + len(after) :])
    with pytest.raises(TransferError, match=f"row group 1, column 'position': {told}"):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


def rewritten(file: Path, **options: Any) -> None:
    """Write the rows of an export anew, as another program would."""
    export_of(file)
    table = pq.read_table(file)
    footer = pq.read_metadata(file).metadata[b"fdbqueue footer"]
    with pq.ParquetWriter(file, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"fdbqueue footer": footer})


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "gzip", "use_dictionary": False},
        {"data_page_version": "2.0", "write_page_index": True, "write_page_checksum": True},
        {"version": "1.0", "data_page_size": 1},
    ],
)
def test_a_file_that_another_program_wrote_anew_is_imported(
    db: Any, space: Subspace, tmp_path: Path, options: dict[str, Any]
) -> None:
    file = tmp_path / "items.parquet"
    rewritten(file, **options)
    assert import_items(db, Queue(space), file).items == 3


def test_values_whose_beginnings_are_shared_are_refused(db: Any, space: Subspace, tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    rewritten(file, use_dictionary=False, column_encoding={"position": "DELTA_BYTE_ARRAY"})
    with pytest.raises(TransferError, match="row group 1, column 'position': its encoding DELTA_BYTE_ARRAY hides"):
        import_items(db, Queue(space), file)


def test_a_row_group_has_no_more_rows_than_other_programs_write(
    db: Any, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_GROUP_ROWS", 2)
    file = tmp_path / "items.parquet"
    export_of(file)
    with pytest.raises(TransferError, match="row group 1 has 3 rows, over the limit of 2"):
        import_items(db, Queue(space), file)


def test_a_footer_with_more_than_any_export_has_is_not_read_to_its_end(
    db: Any, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_GROUPS", 3)
    file = tmp_path / "items.parquet"
    export_of(file)
    with pytest.raises(TransferError, match=r"not whole: .* Exceeded size limit"):
        import_items(db, Queue(space), file)


def test_a_file_without_a_column_is_refused_by_its_name(db: Any, space: Subspace, tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    export_of(file)
    footer = pq.read_metadata(file).metadata
    pq.write_table(pq.read_table(file).drop_columns(["consumer"]).replace_schema_metadata(footer), file)
    with pytest.raises(TransferError, match="it has no column 'consumer'"):
        import_items(db, Queue(space), file)


def test_a_column_that_can_not_be_decoded_is_named(
    db: Any, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 2)
    file = tmp_path / "items.parquet"
    whole = bytearray(export_of(file))
    chunk = pq.read_metadata(file).row_group(1).column(parquet.COLUMNS.index("state"))
    at = chunk.data_page_offset - 4  # within the compressed dictionary
    whole[at : at + 4] = b"\xff" * 4
    file.write_bytes(whole)
    with pytest.raises(TransferError, match="row group 2, column 'state'"):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


@pytest.mark.engines("memory")
def test_random_damage_is_refused_by_an_error_of_the_library(db: Any, space: Subspace, tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    whole, chance, refused = export_of(file), random.Random(11), 0
    for number in range(150):
        damaged = bytearray(whole if number % 3 else whole[: chance.randrange(1, len(whole))])
        for _ in range(chance.choice((1, 2, 5))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        file.write_bytes(bytes(damaged))
        try:
            import_items(db, Queue(space), file)
        except TransferError:
            refused += 1
            assert list(db.get_range_startswith(space.key())) == []
        db.clear_range_startswith(space.key())
    assert refused > 100
