"""Files of records: JSON lines or Parquet, by the name's ending. They are written in parts, so that a write can resume.

An export writes parts of JSON lines into a folder beside the file. Each part appears whole, by a rename. At the end the
parts become the file, which appears whole, too. An export that was interrupted goes on behind its last part.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from fdbqueue.base.aside import written_aside
from fdbqueue.errors import TransferError
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.transfer.records import (
    FORMAT,
    MAX_LINE_BYTES,
    Digest,
    FileHeader,
    FileRecord,
    Footer,
    check_record,
    decode_footer,
    decode_header,
    from_line,
    shortened,
)

JSONL, PARQUET = "jsonl", "parquet"


def format_of(path: Path, what: str) -> str:
    """Return the format of a file, by the ending of its name.

    Raises:
        TransferError: the ending names no format, or it is no file but a pipe or a device.
    """
    ending = path.suffix.lower()
    nameless = not ending and (str(path) == "-" or path.is_relative_to("/dev"))
    if nameless or path.is_fifo() or path.is_char_device():
        raise TransferError(
            f"{path}: {what} is a file .jsonl or .parquet, and no pipe: an interrupted one goes on where it was. For"
            " a pipe use Queue.browse and Queue.enqueue_many."
        )
    if ending == ".parquet":
        return PARQUET
    if ending in (".jsonl", ".ndjson"):
        return JSONL
    raise TransferError(f"{path}: {what} is a file .jsonl or .parquet, and {ending or 'no ending'!r} is neither.")


class Parts:
    """The parts of a file that is being written.

    Args:
        path: the file.

    Raises:
        TransferError: the folder of the parts can't be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folder = path.with_name(path.name + ".part")
        self._header = self.folder / "header.json"

    @property
    def header(self) -> FileHeader | None:
        """The header of an export that was begun; None if none was."""
        try:
            return decode_header(self._header.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, *UNREADABLE) as error:
            raise TransferError(
                f"{self.folder}: the export that was begun there can't be read: {error}. Remove the folder."
            ) from error

    def begin(self, header: FileHeader) -> None:
        """Make the folder, with a header."""
        try:
            self.folder.mkdir(exist_ok=True)
            with written_aside(self._header) as file:
                file.write(msgspec.json.encode(header))
        except OSError as error:
            raise TransferError(f"{self.folder}: can't be written ({error.strerror}).") from error

    def add(self, lines: list[bytes]) -> None:
        """Write a part. It is whole, or it is not there."""
        try:
            with written_aside(self.folder / f"{len(self.names()):08d}.jsonl") as file:
                file.write(b"\n".join(lines) + b"\n")
        except OSError as error:
            raise TransferError(
                f"{self.folder}: can't be written ({error.strerror}). Export again, and it goes on there."
            ) from error

    def names(self) -> list[Path]:
        """Return the parts in their order."""
        return sorted(self.folder.glob("*.jsonl"))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all parts."""
        for name in self.names():
            with name.open("rb") as file:
                for line in file:
                    yield line.rstrip(b"\n")

    def last(self) -> FileRecord | None:
        """Return the last record; None if there is none."""
        names = self.names()
        return from_line(names[-1].read_bytes().rstrip(b"\n").rpartition(b"\n")[2]) if names else None

    def finish(self, header: FileHeader, format: str) -> Footer:
        """Make the file from the parts, and remove them."""
        digest = Digest()
        try:
            with written_aside(self._path) as file:
                if format == JSONL:
                    file.write(msgspec.json.encode(header) + b"\n")
                    for line in self.lines():
                        digest.add(from_line(line).digest())
                        file.write(line + b"\n")
                    footer = Footer(digest.items, digest.hex)
                    file.write(msgspec.json.encode(footer) + b"\n")
                else:
                    from fdbqueue.transfer import parquet

                    footer = parquet.write(file, header, map(from_line, self.lines()))
        except OSError as error:
            raise TransferError(
                f"{self._path}: can't be written ({error.strerror}). Export again, and it goes on."
            ) from error
        self.remove()
        return footer

    def remove(self) -> None:
        """Remove the folder of the parts, if there is one."""
        shutil.rmtree(self.folder, ignore_errors=True)


class SourceFile:
    """A file of records to read.

    Raises:
        TransferError: the file can't be read, or is no export, or is not whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._format = format_of(path, "an import")
        if not path.is_file():
            begun = " Its export was interrupted: run that again." if Parts(path).folder.exists() else ""
            raise TransferError(f"{path}: there is no such file.{begun}")
        if self._format == PARQUET:
            from fdbqueue.transfer import parquet

            self.header, self.footer = parquet.ends(path)
        else:
            self.header, self.footer = _ends(path)
        if self.header.fdbqueue > FORMAT:
            raise TransferError(
                f"{path}: a newer version of fdbqueue wrote it, in format {self.header.fdbqueue}. Update fdbqueue."
            )

    def records(self) -> Iterator[FileRecord]:
        """Yield the records, each of which is checked. One is in memory at a time.

        Their positions ascend, as those of an export do. So no two items have one position.

        Raises:
            TransferError: a line, or a row, has no record that can be restored. The message has its number.
        """
        if self._format == PARQUET:
            from fdbqueue.transfer import parquet

            kind, number, found = "row", 1, parquet.records(self.path)
        else:
            kind, number, found = "line", 2, self._lines()
        before, ranked = b"", self.header.order is not None
        while True:
            try:
                record = next(found, None)
                if record is None:
                    return
                packed = check_record(record, ranked=ranked)
                if packed == before:
                    raise TransferError(f"the position {record.position} is there twice. Remove one of the items")
                if packed < before:
                    raise TransferError(
                        f"the position {record.position} stands behind a higher one. Sort the items by the numbers of"
                        " their positions"
                    )
            except TransferError as error:
                raise TransferError(f"{self.path}: {kind} {number}: {error}.") from error
            yield record
            before = packed
            number += 1

    def _lines(self) -> Iterator[FileRecord]:
        with self.path.open("rb") as file:
            _line(file)
            for _ in range(self.footer.items):
                line = _line(file)
                if not line:
                    return
                yield from_line(line)

    def checked(self) -> Digest:
        """Read all records and return their digest.

        Raises:
            TransferError: a record is not valid, or the file was changed.
        """
        digest = Digest()
        for record in self.records():
            digest.add(record.digest())
        if (digest.items, digest.hex) != (self.footer.items, self.footer.digest):
            raise TransferError(
                f"{self.path}: it has {digest.items:,} items with the digest {digest.hex}, and its end says"
                f" {self.footer.items:,} with {self.footer.digest}: the file was changed. Export it again; or, if you"
                " changed it on purpose, give its last line this number and this digest."
            )
        return digest


def _line(file: BinaryIO) -> bytes:
    """Return the next line; b"" at the end.

    Raises:
        TransferError: it is longer than any item.
    """
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise TransferError(f"it has over {MAX_LINE_BYTES:,} bytes, more than any item")
    return line


def _ends(path: Path) -> tuple[FileHeader, Footer]:
    try:
        with path.open("rb") as file:
            first = _line(file)
            header = decode_header(first)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 200))
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    except OSError as error:
        raise TransferError(f"{path}: can't be read ({error.strerror}).") from error
    except TransferError as error:
        raise TransferError(f"{path}: line 1: {error}.") from error
    except UNREADABLE as error:
        told = shortened(str(error))
        raise TransferError(f"{path}: is no export of fdbqueue: its first line is no header ({told}).") from error
    try:
        return header, decode_footer(last)
    except UNREADABLE as error:
        raise TransferError(f"{path}: is not whole: its last line is missing. Export it again.") from error
