"""Files of records as Parquet. The columns are the fields of a record; the payload is the column ``value``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fdbqueue.arrow.needs import needed
from fdbqueue.errors import TransferError
from fdbqueue.transfer.records import Digest, FileHeader, FileRecord, Footer, checked, decode_footer, decode_header

GROUP_ROWS = 20_000
GROUP_BYTES = 32_000_000
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
    except (pa.ArrowInvalid, OSError, KeyError, msgspec.DecodeError) as error:
        raise TransferError(f"{path}: is no export of fdbqueue, or not whole: {error}.") from error


def records(path: Path) -> Iterator[FileRecord]:
    """Yield the records of a file.

    Raises:
        TransferError: a row has none.
    """
    pa, pq = _libraries("an import")
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1_000):
                columns = [batch.column(_name(name)).to_pylist() for name in _FIELDS]
                for row in zip(*columns, strict=True):
                    number += 1
                    fields = dict(zip(_FIELDS, row, strict=True))
                    yield checked(FileRecord(**{**fields, "marks": tuple(fields["marks"])}))
    except TransferError as error:
        raise TransferError(f"{path}: row {number}: {error}.") from error
    except (pa.ArrowInvalid, OSError, KeyError, TypeError) as error:
        raise TransferError(f"{path}: is damaged, or no export of fdbqueue: {error}.") from error


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
