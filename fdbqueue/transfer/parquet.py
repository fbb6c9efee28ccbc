"""Files of records as Parquet. The columns are the fields of a record; the payload is the column ``value``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fdbqueue.arrow.needs import needed
from fdbqueue.errors import TransferError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.transfer.records import Digest, FileHeader, FileRecord, Footer, decode_footer, decode_header, shortened

HEADER_BYTES = 1 << 20
"""The most bytes of a header. It has the smallest and the largest value of its page."""
DEPTH = 8
"""The most structs within each other."""
DICTIONARY = 2
DELTA_BYTE_ARRAY = 7
"""The encoding whose values share beginnings. A page of a few bytes may have values of any size."""
_KINDS = {0: 5, 1: 6, 2: 7, 3: 8}
"""The field of a header that describes a page of a kind: data, index, dictionary, data of version 2."""
_ENCODINGS = {0: 2, 2: 2, 3: 4}
"""The field of that description that has the encoding."""


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What a page says of itself."""

    kind: int
    size: int
    """Its bytes in memory."""
    stored: int
    """Its bytes in the file, behind the header."""
    values: int
    encoding: int

    @property
    def is_data(self) -> bool:
        """Whether it has values of rows."""
        return self.kind in (0, 3)


def headers(file: BinaryIO, begin: int, end: int) -> Iterator[PageHeader]:
    """Yield the headers of the pages between two offsets of a file.

    Raises:
        ValueError: there is something else.
    """
    at = begin
    while at < end:
        found, length = _header(file, at, end)
        kind = _number(found, 1)
        described = found.get(_KINDS.get(kind, -1), {})
        if kind not in _KINDS or not isinstance(described, dict):
            raise ValueError(f"the page at byte {at:,} is of no known kind")
        values = _number(described, 1) if kind in _ENCODINGS else 0
        encoding = _number(described, _ENCODINGS[kind]) if kind in _ENCODINGS else 0
        page = PageHeader(kind, _number(found, 2), _number(found, 3), values, encoding)
        if min(page.size, page.stored, page.values) < 0:
            raise ValueError(f"the page at byte {at:,} has a size below 0")
        at += length + page.stored
        if at > end:
            raise ValueError(f"a page ends at byte {at:,}, behind the end of its column at {end:,}")
        yield page


def _header(file: BinaryIO, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the header at an offset, and its length."""
    most = 256
    while True:
        file.seek(at)
        read = _Compact(file.read(min(most, end - at)))
        try:
            return read.struct(), read.at
        except IndexError:
            if most >= min(end - at, HEADER_BYTES):
                raise ValueError(f"the header of the page at byte {at:,} has no end") from None
            most *= 16


def _number(fields: dict[int, Any], name: int) -> int:
    found = fields.get(name)
    if not isinstance(found, int):
        raise ValueError(f"the header of a page lacks its field {name}")
    return found


class _Compact:
    """Reads Thrift's compact protocol. Raises IndexError where the bytes end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > DEPTH:
            raise ValueError("the header of a page has too many structs within each other")
        fields: dict[int, Any] = {}
        name = 0
        while head := self._byte():
            name = name + (head >> 4) if head >> 4 else self._zigzag()
            fields[name] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # a truth is in the kind
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 12:
            return self.struct(depth + 1)
        if kind in (7, 8):  # a float, or bytes: nothing here needs them
            length = 8 if kind == 7 else self._varint()
            self.at += length
            if self.at > len(self._data):
                raise IndexError
            return None
        raise ValueError(f"the header of a page has a field of the kind {kind}")  # lists, sets and maps, which none has

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("the header of a page has a number of over 64 bits")

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)


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
COLUMNS = ["value" if name == "payload" else name for name in _FIELDS]


def write(file: BinaryIO, header: FileHeader, records: Iterable[FileRecord]) -> Footer:
    """Write records into an open file, a row group at a time."""
    pa, pq = _libraries("an export")
    schema = schema_of(pa).with_metadata({_HEADER: msgspec.json.encode(header)})
    digest = Digest()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in _groups(records, digest):
            columns: dict[str, list[Any]] = {
                column: [getattr(one, name) for one in group] for column, name in zip(COLUMNS, _FIELDS, strict=True)
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
            if lacks := [name for name in COLUMNS if name not in file.schema_arrow.names]:
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
    shared = [name for name in COLUMNS if name not in ("attempts", "marks", *_TIMES)]
    damage = (pa.ArrowException, OSError, KeyError, TypeError, ValueError, msgspec.ValidationError)
    with _opened(pq, path, read_dictionary=shared) as file:
        for group in range(file.metadata.num_row_groups):
            try:
                for batch in file.iter_batches(1_000, row_groups=[group], columns=COLUMNS):
                    columns = [batch.column(name) for name in COLUMNS]
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
    for name in COLUMNS:
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


def schema_of(pa: Any) -> Any:
    kinds = {"value": pa.binary(), "headers": pa.binary(), "marks": pa.list_(pa.string())}
    kinds |= {"attempts": pa.int64(), **dict.fromkeys(_TIMES, pa.int64())}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), nullable=False) for name in COLUMNS])


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
