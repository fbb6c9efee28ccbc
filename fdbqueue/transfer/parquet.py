"""Files of records as Parquet. The columns are the fields of a record; the payload is the column ``value``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fdbqueue.arrow.needs import needed
from fdbqueue.errors import TransferError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.transfer.pages import DELTA_BYTE_ARRAY, DICTIONARY, headers
from fdbqueue.transfer.records import Digest, FileHeader, FileRecord, Footer, decode_footer, decode_header, shortened

GROUP_ROWS = 20_000
GROUP_BYTES = 32_000_000
MAX_CHUNK_BYTES = 256_000_000
"""The most bytes that a column of a row group may take in memory. Those of our exports take less."""
MAX_GROUP_ROWS = 1 << 20
"""The most rows of a row group. Those of our exports have 20,000; this is the default of other writers."""
MAX_MARKS = 16
"""The most marks of an item."""
MAX_GROUPS = 100_000
"""The most row groups of a file, and the most columns of a group: the footer is read whole."""
_HEADER, _FOOTER = b"fdbqueue header", b"fdbqueue footer"
_TIMES = ("enqueued_at_us", "visible_at_us", "ttl_at_us", "died_at_us")
_FIELDS = tuple(field.name for field in msgspec.structs.fields(FileRecord))
_COLUMNS = ["value" if name == "payload" else name for name in _FIELDS]


def write(file: BinaryIO, header: FileHeader, records: Iterable[FileRecord]) -> Footer:
    """Write records into an open file, a row group at a time."""
    pa, pq = _libraries("an export")
    schema = _schema(pa).with_metadata({_HEADER: msgspec.json.encode(header)})
    digest = Digest()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(records, digest):
            columns: dict[str, list[Any]] = {
                column: [getattr(one, name) for one in group] for column, name in zip(_COLUMNS, _FIELDS, strict=True)
            }
            writer.write_table(pa.table(columns, schema=schema))
        footer = Footer(digest.items, digest.hex)
        writer.add_key_value_metadata({_FOOTER: msgspec.json.encode(footer)})
    return footer


def ends(path: Path) -> tuple[FileHeader, Footer]:
    """Return what the file says about its queue and its items.

    Raises:
        TransferError: it is no Parquet file, or no export; or a page is larger than any of an export, or lies about its
            size. Nothing was decoded.
    """
    pa, pq = _libraries("an import")
    try:
        with _opened(pq, path) as file, path.open("rb") as raw:
            metadata = file.metadata.metadata or {}
            header = decode_header(metadata[_HEADER])
            footer = decode_footer(metadata[_FOOTER])
            if lacks := [name for name in _COLUMNS if name not in file.schema_arrow.names]:
                raise TransferError(f"is no export of fdbqueue: it has no column {lacks[0]!r}")
            _check_sizes(file.metadata, raw)
        return header, footer
    except TransferError as error:
        raise TransferError(f"{path}: {error}.") from error
    except (pa.ArrowException, OSError, KeyError, ValueError, *UNREADABLE) as error:
        told = shortened(" ".join(str(error).split()))
        raise TransferError(f"{path}: is no export of fdbqueue, or not whole: {told}.") from error


def records(path: Path) -> Iterator[FileRecord]:
    """Yield the records of a file.

    A value that many rows share is in memory once. Rows become Python objects one at a time.

    Raises:
        TransferError: a row has none. The message names the row group, and the column if that can't be decoded.
    """
    pa, pq = _libraries("an import")
    shared = [name for name in _COLUMNS if name not in ("attempts", "marks", *_TIMES)]
    damage = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, msgspec.ValidationError)
    with _opened(pq, path, read_dictionary=shared) as file:
        for group in range(file.metadata.num_row_groups):
            try:
                for batch in file.iter_batches(1_000, row_groups=[group], columns=_COLUMNS):
                    columns = [batch.column(name) for name in _COLUMNS]
                    for row in zip(*columns, strict=True):
                        fields = dict(zip(_FIELDS, (one.as_py() for one in row), strict=True))
                        yield msgspec.convert(fields, FileRecord)
            except damage as error:
                column = _unreadable(file, group, damage)
                where = f"row group {group + 1}" + (f", column {column!r}" if column else "")
                raise TransferError(
                    f"is damaged, or no export of fdbqueue: {where}: {shortened(str(error))}"
                ) from error


def _opened(pq: Any, path: Path, **options: Any) -> Any:
    return pq.ParquetFile(path, thrift_container_size_limit=MAX_GROUPS, **options)


def _unreadable(file: Any, group: int, damage: tuple[type[Exception], ...]) -> str:
    """Return the column of a row group that can't be decoded; "" if each can."""
    for name in _COLUMNS:
        try:
            for batch in file.iter_batches(1_000, row_groups=[group], columns=[name]):
                batch.validate(full=True)  # texts are UTF-8
        except damage:
            return name
    return ""


def _check_sizes(metadata: Any, file: BinaryIO) -> None:
    """Refuse columns that are larger than any of an export, before they are decoded.

    A decoder allocates what the pages say. So each page is asked, and not only the footer.
    """
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        if not 0 <= group.num_rows <= MAX_GROUP_ROWS:
            raise TransferError(
                f"row group {at + 1} has {group.num_rows:,} rows, over the limit of {MAX_GROUP_ROWS:,}. Write the file"
                " with smaller row groups"
            )
        for column in range(group.num_columns):
            chunk = group.column(column)
            path = chunk.path_in_schema
            named = f"its column {shortened(repr(path))}"
            most = group.num_rows * MAX_MARKS if path.startswith("marks.") else group.num_rows
            if chunk.total_uncompressed_size > MAX_CHUNK_BYTES or chunk.num_values > most:
                raise TransferError(
                    f"{named} takes {chunk.total_uncompressed_size:,} bytes"
                    f" for {group.num_rows:,} rows, over the limit of {MAX_CHUNK_BYTES:,}, or of {most:,} values. Write"
                    " the file with smaller row groups"
                )
            try:
                _check_pages(chunk, file)
            except ValueError as error:
                raise TransferError(f"is damaged: row group {at + 1}, {named.removeprefix('its ')}: {error}") from error


def _check_pages(chunk: Any, file: BinaryIO) -> None:
    """Compare what the pages of a column say with what the footer says of them.

    Raises:
        ValueError: they differ, or a page can't be checked.
    """
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    end = begin + chunk.total_compressed_size
    if not 0 < begin <= end <= file.seek(0, 2):
        raise ValueError(f"its pages are at the bytes {begin:,} to {end:,}, which the file does not have")
    size = values = 0
    for page in headers(file, begin, end):
        size += page.size
        if page.encoding == DELTA_BYTE_ARRAY:
            raise ValueError("its encoding DELTA_BYTE_ARRAY hides how large the values are. Write it with another")
        if page.kind == DICTIONARY and 4 * page.values > page.size:  # a text has 4 bytes of length, a number 4 or more
            raise ValueError(f"a page of {page.size:,} bytes says that it has {page.values:,} values")
        values += page.values if page.is_data else 0
    if size > chunk.total_uncompressed_size:
        raise ValueError(
            f"its pages say that they take {size:,} bytes, and the footer says {chunk.total_uncompressed_size:,}"
        )
    if values != chunk.num_values:
        raise ValueError(f"its pages say that they have {values:,} values, and the footer says {chunk.num_values:,}")


def _schema(pa: Any) -> Any:
    kinds = {"value": pa.binary(), "headers": pa.binary(), "marks": pa.list_(pa.string())}
    kinds |= {"attempts": pa.int64(), **dict.fromkeys(_TIMES, pa.int64())}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), nullable=False) for name in _COLUMNS])


def _groups(records: Iterable[FileRecord], digest: Digest) -> Iterator[list[FileRecord]]:
    group: list[FileRecord] = []
    size = 0
    for record in records:
        digest.add(record.digest())
        group.append(record)
        size += len(record.payload)
        if len(group) >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _libraries(what: str) -> tuple[Any, Any]:
    pa = needed("pyarrow", f"{what} of Parquet")
    import pyarrow.parquet as pq

    return pa, pq
