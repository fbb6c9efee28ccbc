"""Programs of interleaved transactions whose answers were recorded on a FoundationDB 7.3.79 cluster.

Each is a JSON object a line in `tests/data/recorded-programs.jsonl.gz`: `steps`, each a list
``[slot, operation, *arguments]`` over four open transactions; `answers`, one per step; `contents`, the rows at the
end. Bytes are written ``x:HEX``, an error is ``["error", code]``. All keys lie under `PREFIX`; versionstamps, which
differ by nature, are masked.
"""

from __future__ import annotations

import gzip
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

from fdbqueue.engine import FDBError, KeySelector

FILE = Path(__file__).resolve().parent.parent / "data" / "recorded-programs.jsonl.gz"
PREFIX = bytes.fromhex("150764696666")
SLOTS = 4
REPLACED_AFTER = (1025, 2017)
"""A slot gets a new transaction after these errors, whatever the step; after others only if it was a commit."""


@cache
def programs() -> list[dict[str, Any]]:
    """Return all recorded programs."""
    with gzip.open(FILE, "rt") as lines:
        return [json.loads(line) for line in lines]


def difference(db: Any, program: dict[str, Any]) -> str | None:
    """Run `program` and return the first answer that is not the recorded one, or None."""
    replay = Replay(db)
    for number, (step, expected) in enumerate(zip(program["steps"], program["answers"], strict=True)):
        answer = replay.answer(step)
        if answer != expected:
            return f"seed {program['seed']}, step {number} {step}: {answer}, but the cluster said {expected}"
    if replay.contents() != program["contents"]:
        return f"seed {program['seed']}: other rows at the end"
    return None


class Replay:
    """The four transactions of one program that is being run."""

    def __init__(self, db: Any) -> None:
        self._db = db
        tr = db.create_transaction()
        tr.clear_range(PREFIX, PREFIX + b"\xff")
        tr.commit().wait()
        self._slots = [db.create_transaction() for _ in range(SLOTS)]

    def answer(self, step: list[Any]) -> Any:
        """Take one step and return its answer as it would be recorded."""
        slot, op, *arguments = step
        try:
            return _written(getattr(self, f"_{op}")(slot, *map(_read, arguments)))
        except FDBError as error:
            if op == "commit" or error.code in REPLACED_AFTER:
                self._replace(slot)
            return ["error", error.code]

    def contents(self) -> Any:
        return _written(_rows(self._db.create_transaction().get_range(PREFIX, PREFIX + b"\xff")))

    def _replace(self, slot: int) -> None:
        self._slots[slot] = self._db.create_transaction()

    def _view(self, slot: int, snapshot: bool) -> Any:
        return self._slots[slot].snapshot if snapshot else self._slots[slot]

    # -- reads ---------------------------------------------------------------------------------------------------

    def _get(self, slot: int, key: bytes, snapshot: bool) -> bytes | None:
        value = self._view(slot, snapshot).get(key)
        return bytes(value) if value.present() else None

    def _get_key(self, slot: int, key: bytes, or_equal: bool, offset: int, snapshot: bool) -> Any:
        found = bytes(self._view(slot, snapshot).get_key(KeySelector(key, or_equal, offset)))
        return found if found.startswith(PREFIX) else ["outside", found < PREFIX]

    def _range(self, slot: int, begin: Any, end: Any, limit: int, reverse: bool, snapshot: bool) -> Any:
        return _rows(self._view(slot, snapshot).get_range(begin, end, limit=limit, reverse=reverse))

    def _sel_range(self, slot: int, *arguments: Any) -> Any:
        begin, end = KeySelector(*arguments[:3]), KeySelector(*arguments[3:6])
        return self._range(slot, begin, end, *arguments[6:])

    def _grv(self, slot: int) -> None:
        self._slots[slot].get_read_version().wait()

    # -- writes --------------------------------------------------------------------------------------------------

    def _set(self, slot: int, key: bytes, value: bytes) -> None:
        self._slots[slot].set(key, value)

    def _clear(self, slot: int, key: bytes) -> None:
        self._slots[slot].clear(key)

    def _clear_range(self, slot: int, begin: bytes, end: bytes) -> None:
        self._slots[slot].clear_range(begin, end)

    def _atomic(self, slot: int, name: str, key: bytes, param: bytes) -> None:
        getattr(self._slots[slot], name)(key, param)

    def _conflict(self, slot: int, kind: str, begin: bytes, end: bytes) -> None:
        side, shape = kind.split("_")
        ends = (begin,) if shape == "key" else (begin, end)
        getattr(self._slots[slot], f"add_{side}_conflict_{shape}")(*ends)

    def _vs_value(self, slot: int, key: bytes) -> None:
        self._slots[slot].set_versionstamped_value(key, bytes(10) + b"tail" + struct.pack("<L", 0))

    def _vs_key(self, slot: int) -> None:
        key = PREFIX + b"y" + bytes(10) + struct.pack("<L", len(PREFIX) + 1)
        self._slots[slot].set_versionstamped_key(key, b"stamped key")

    # -- states --------------------------------------------------------------------------------------------------

    def _option(self, slot: int, name: str) -> None:
        getattr(self._slots[slot].options, name)()

    def _reset(self, slot: int) -> None:
        self._slots[slot].reset()

    def _commit(self, slot: int) -> str:
        self._slots[slot].commit().wait()
        self._replace(slot)
        return "committed"

    def _bad(self, slot: int, kind: str) -> Any:
        return getattr(self, f"_bad_{kind}")(slot, self._slots[slot])

    def _bad_long_key(self, _slot: int, tr: Any) -> None:
        tr.set(PREFIX + b"k" * 10_001, b"")
        tr.commit().wait()

    def _bad_long_value(self, _slot: int, tr: Any) -> None:
        tr.set(PREFIX + b"v", b"x" * 100_001)
        tr.commit().wait()

    def _bad_inverted(self, _slot: int, tr: Any) -> None:
        tr.clear_range(PREFIX + b"z", PREFIX + b"a")

    def _bad_cancel(self, slot: int, tr: Any) -> None:
        tr.cancel()
        self._replace(slot)
        tr.get(PREFIX + b"a").present()

    def _bad_used(self, slot: int, tr: Any) -> list[Any]:
        tr.commit().wait()
        value = tr.get(PREFIX + b"a")
        self._replace(slot)
        return ["after commit", bool(value.present())]


def _rows(rows: Any) -> list[list[bytes]]:
    return [[bytes(row.key), bytes(row.value)] for row in rows if bytes(row.key).startswith(PREFIX)]


def _read(part: Any) -> Any:
    if isinstance(part, str) and part.startswith("x:"):
        return bytes.fromhex(part[2:])
    return part


def _written(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return "x:" + _masked(answer).hex()
    if isinstance(answer, list):
        return [_written(part) for part in answer]
    return answer


def _masked(answer: bytes) -> bytes:
    if answer.startswith(PREFIX + b"y"):
        return PREFIX + b"y<stamp>"
    if answer.endswith(b"tail") and len(answer) == 14:
        return b"<stamp>tail"
    return answer
