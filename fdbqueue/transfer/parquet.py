"""Files of records as Parquet. The columns are the fields of a record; the payload is the column ``value``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fdbqueue.arrow.needs import needed
from fdbqueue.errors import TransferError
from fdbqueue.transfer.records import Digest, FileHeader, FileRecord, Footer, decode_footer, decode_header, shortened

GROUP_ROWS = 20_000
GROUP_BYTES = 32_000_000
MAX_CHUNK_BYTES = 256_000_000
"""The most bytes that a column of a row group may take in memory. Those of our exports take less."""
MAX_MARKS = 16
"""The most marks of an item."""
_HEADER, _FOOTER = b"fdbqueue header", b"fdbqueue footer"
_TIMES = ("enqueued_at_us", "visible_at_us", "ttl_at_us", "died_at_us")
_FIELDS = tuple(field.name for field in msgspec.structs.fields(FileRecord))


def write(file: BinaryIO, header: FileHeader, records: Iterable[FileRecord]) -> Footer:
    """Write records into an open file, a row group at a time."""
    pa, pq = _libraries("an export")
    schema = _schema(pa).with_metadata({_HEADER: msgspec.json.encode(header)})
    digest = Digest()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(records, digest):
            columns: dict[str, list[Any]] = {_name(name): [getattr(one, name) for one in group] for name in _FIELDS}
            writer.write_table(pa.table(columns, schema=schema))
        footer = Footer(digest.items, digest.hex)
        writer.add_key_value_metadata({_FOOTER: msgspec.json.encode(footer)})
    return footer


def ends(path: Path) -> tuple[FileHeader, Footer]:
    """Return what the file says about its queue and its items.

    Raises:
        TransferError: it is no Parquet file, or no export.
    """
    pa, pq = _libraries("an import")
    try:
        metadata = pq.read_metadata(path).metadata or {}
        header = decode_header(metadata[_HEADER])
        return header, decode_footer(metadata[_FOOTER])
    except TransferError as error:
        raise TransferError(f"{path}: {error}.") from error
    except (pa.ArrowInvalid, OSError, KeyError, msgspec.DecodeError) as error:
        raise TransferError(f"{path}: is no export of fdbqueue, or not whole: {error}.") from error


def records(path: Path) -> Iterator[FileRecord]:
    """Yield the records of a file.

    A value that many rows share is in memory once. Rows become Python objects one at a time.

    Raises:
        TransferError: a row has none, or a column is larger than any of an export.
    """
    pa, pq = _libraries("an import")
    shared = [_name(name) for name in _FIELDS if name not in ("attempts", "marks", *_TIMES)]
    try:
        with pq.ParquetFile(path, read_dictionary=shared) as file:
            _check_sizes(file.metadata)
            for batch in file.iter_batches(1_000):
                columns = [batch.column(_name(name)) for name in _FIELDS]
                for row in zip(*columns, strict=True):
                    fields = dict(zip(_FIELDS, (one.as_py() for one in row), strict=True))
                    yield msgspec.convert(fields, FileRecord)
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise TransferError(f"is damaged, or no export of fdbqueue: {shortened(str(error))}") from error


def _check_sizes(metadata: Any) -> None:
    """Refuse columns that are larger than any of an export, before they are decoded."""
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        for column in range(group.num_columns):
            chunk = group.column(column)
            most = group.num_rows * MAX_MARKS if chunk.path_in_schema.startswith("marks.") else group.num_rows
            if chunk.total_uncompressed_size > MAX_CHUNK_BYTES or chunk.num_values > most:
                raise TransferError(
                    f"its column {shortened(repr(chunk.path_in_schema))} takes {chunk.total_uncompressed_size:,} bytes"
                    f" for {group.num_rows:,} rows, over the limit of {MAX_CHUNK_BYTES:,}, or of {most:,} values. Write"
                    " the file with smaller row groups"
                )


def _schema(pa: Any) -> Any:
    kinds = {"payload": pa.binary(), "headers": pa.binary(), "marks": pa.list_(pa.string())}
    kinds |= {"attempts": pa.int64(), **dict.fromkeys(_TIMES, pa.int64())}
    return pa.schema([pa.field(_name(name), kinds.get(name, pa.string()), nullable=False) for name in _FIELDS])


def _name(field: str) -> str:
    return "value" if field == "payload" else field


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
