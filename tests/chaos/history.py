"""Histories: what each process asked for and was told, written so that it survives the process.

One line per event, in a file per process, each line by one write of its own. A call without an end is one whose process
was killed: what became of it is not known.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fdbqueue import Item
from fdbqueue.layers.leases import Lease, LeaseRef
from fdbqueue.layers.oplog._records import digest
from fdbqueue.stored.items import envelope
from tests.chaos.kinds import encoded

KILLED = "killed"
OK = "ok"
REFUSED = "refused"
"""Nothing was written, and the caller knows it."""


def value_of(name: str, number: int, size: int) -> bytes:
    """Return the value that is enqueued under a name and number, which no other has."""
    return f"{name}/{number}".encode().ljust(size, b".")


def content(value: Any, headers: Any = None) -> bytes:
    """Return the digest by which the log knows a value with its headers."""
    return digest(envelope(encoded(value), dict(headers) if headers else None))


def told_claims(leases: Iterable[LeaseRef]) -> list[tuple[str, str]]:
    return [(lease.position.text, lease.token.hex()) for lease in leases]


def told_leases(leases: Iterable[Lease]) -> list[tuple[str, str, str]]:
    return [(lease.position.text, lease.token.hex(), content(lease.value, lease.headers).hex()) for lease in leases]


def told_items(items: Iterable[Item]) -> list[tuple[str, str]]:
    return [(item.position.text, content(item.value, item.headers).hex()) for item in items]


@dataclass(slots=True)
class Told:
    """One call, as its caller saw it."""

    by: str
    number: int
    verb: str
    asked: dict[str, Any]
    began: float
    outcome: str = KILLED
    answer: dict[str, Any] = field(default_factory=dict)

    def contents(self) -> list[bytes]:
        """Return the digests of what it enqueues."""
        asked = self.asked
        if "message" in asked:
            return [content(asked["message"])]
        if "name" not in asked:
            return []
        headers = asked["headers"]
        values = (value_of(asked["name"], number, asked["size"]) for number in range(asked["count"]))
        return [content(value, headers) for value in values]


class History:
    """One process' history, being written."""

    def __init__(self, folder: Path, by: str) -> None:
        self.by = by
        self._file = os.open(folder / f"{by}.history", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._numbers = itertools.count()

    def begin(self, verb: str, asked: dict[str, Any]) -> int:
        """Tell that a call begins; return its number."""
        number = next(self._numbers)
        self._write(["begin", number, verb, asked, time.monotonic()])
        return number

    def end(self, number: int, outcome: str, answer: dict[str, Any]) -> None:
        """Tell what a call was told."""
        self._write(["end", number, outcome, answer])

    def note(self, what: str) -> None:
        """Tell that a fault happened."""
        self._write(["note", what])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, event: list[Any]) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")


def read_histories(folder: Path) -> tuple[list[Told], list[str]]:
    """Return the calls and the notes of all processes."""
    calls: list[Told] = []
    notes: list[str] = []
    for path in sorted(folder.glob("*.history")):
        of_process: dict[int, Told] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            match json.loads(line):
                case ["begin", number, verb, asked, began]:
                    of_process[number] = Told(path.stem, number, verb, asked, began)
                case ["end", number, outcome, answer]:
                    of_process[number].outcome = outcome
                    of_process[number].answer = answer
                case ["note", what]:
                    notes.append(what)
        calls += of_process.values()
    return calls, notes
