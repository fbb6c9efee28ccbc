"""Random programs for a `Machine`, of several kinds.

Two engines that answer a program differently are two engines that differ: that is what `differential` looks for, on a
database that it has to itself, since programs wander over the whole key space.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from fdbqueue.engine import StreamingMode
from tests.conformance.machine import SLOTS, Step

BASES = [b"a", b"b", b"c", b"d", b"e", b"f"]
TAILS = [b"", b"", b"", b"\x00", b"\x00\x00", b"m", b"\xff", b"\xff\xff"]
LONG = [b"c" + b"k" * 600, b"d" + b"k" * 9_999]
EDGES = [b"", b"\x00", b"\xfe\xff", b"\xff"]
ATOMICS = [
    "add",
    "bit_and",
    "bit_or",
    "bit_xor",
    "max",
    "min",
    "byte_min",
    "byte_max",
    "append_if_fits",
    "compare_and_clear",
]
MODES = [StreamingMode.iterator] * 6 + [
    StreamingMode.want_all,
    StreamingMode.exact,
    StreamingMode.small,
    StreamingMode.medium,
    StreamingMode.large,
    StreamingMode.serial,
]
OPTIONS: list[list[Any]] = [
    ["next_write_no_write_conflict_range"],
    ["next_write_no_write_conflict_range"],
    ["snapshot_ryw_disable"],
    ["snapshot_ryw_enable"],
    ["read_your_writes_disable"],
    ["bypass_unreadable"],
    ["report_conflicting_keys"],
    ["used_during_commit_protection_disable"],
    ["retry_limit", 1],
    ["retry_limit", -1],
    ["retry_limit", -2],
    ["max_retry_delay", 2],
    ["max_retry_delay", -1],
    ["size_limit", 500],
    ["size_limit", 31],
    ["timeout", 60_000],
    ["timeout", 0],
    ["priority_batch"],
    ["causal_read_risky"],
    ["lock_aware"],
    ["read_lock_aware"],
    ["tag", "one"],
    ["tag", "a tag that is too long"],
    ["debug_transaction_identifier", "name"],
    ["log_transaction"],
]
ERRORS = [1007, 1009, 1020, 1020, 1021, 1025, 1031, 1036, 2000, 2004, 2101, 0]


class Generator:
    """Makes a random program. `kind` leans it one way: ``plain``, ``options``, ``stamps``, ``pages`` or ``states``."""

    def __init__(self, seed: int, kind: str) -> None:
        self._random = random.Random(seed)
        self._kind = kind
        self._watches = 0

    def program(self) -> list[Step]:
        chance = self._random
        steps: list[Step] = self._contents()
        weights = self._weights()
        names, odds = list(weights), list(weights.values())
        for _ in range(chance.randint(20, 90)):
            op = chance.choices(names, odds)[0]
            steps.append([chance.randrange(SLOTS), op, *getattr(self, f"_{op}")()])
        for slot in range(SLOTS):
            steps += [[slot, "read_conflicts"], [slot, "write_conflicts"], [slot, "size"], [slot, "commit", False]]
        return steps

    def _contents(self) -> list[Step]:
        """Write some rows to begin with."""
        chance = self._random
        count = chance.choice([0, 5, 20]) if self._kind != "pages" else chance.choice([20, 60, 120])
        steps: list[Step] = [[0, "set", self._row_key(), self._value()] for _ in range(count)]
        return [*steps, [0, "commit", False]]

    def _row_key(self) -> bytes:
        if self._kind != "pages":
            return self._key()
        return self._random.choice(BASES) + b"%02d" % self._random.randrange(40)

    def _weights(self) -> dict[str, float]:
        weights: dict[str, float] = {
            "get": 10,
            "get_key": 8,
            "range": 8,
            "list": 3,
            "some": 4,
            "cursor": 2,
            "next": 5,
            "grv": 2,
            "set_rv": 1,
            "set": 12,
            "clear": 6,
            "clear_range": 4,
            "clear_startswith": 1,
            "atomic": 10,
            "conflict": 4,
            "read_conflicts": 6,
            "write_conflicts": 4,
            "size": 3,
            "watch": 2,
            "commit": 12,
            "replace": 1,
        }
        more: dict[str, dict[str, float]] = {
            "plain": {},
            "options": {"option": 14, "conflicting": 3, "on_error": 3},
            "stamps": {"stamped": 10, "option": 2, "stamp": 2, "stamp_now": 2},
            "pages": {"some": 12, "cursor": 8, "next": 16, "range": 10},
            "states": {
                "on_error": 8,
                "reset": 3,
                "cancel": 3,
                "cancel_watch": 2,
                "watch": 8,
                "bad": 4,
                "bad_rv": 1,
                "stamp": 3,
                "stamp_now": 3,
                "committed_version": 2,
            },
        }
        return weights | more[self._kind]

    # -- arguments -----------------------------------------------------------------------------------------------

    def _key(self) -> bytes:
        chance = self._random
        if self._kind == "pages" and chance.random() < 0.7:
            return self._row_key()
        if chance.random() < 0.04:
            return chance.choice(LONG)
        if chance.random() < 0.02:
            return b""
        return chance.choice(BASES) + chance.choice(TAILS)

    def _end(self) -> bytes:
        return self._random.choice(EDGES) if self._random.random() < 0.15 else self._key()

    def _ends(self) -> list[bytes]:
        ends = [self._end(), self._end()]
        return ends if self._random.random() < 0.05 else sorted(ends)

    def _value(self) -> bytes:
        size = self._random.choice([0, 1, 2, 4, 8, 9, 300] if self._kind != "pages" else [8, 200, 400, 700, 3000])
        return self._random.randbytes(size)

    def _selector(self) -> list[Any]:
        return [self._end(), self._random.random() < 0.5, self._random.choice([-3, -2, -1, 0, 0, 1, 1, 1, 2, 3, 4])]

    def _snapshot(self) -> bool:
        return self._random.random() < 0.25

    def _get(self) -> list[Any]:
        return [self._key(), self._snapshot()]

    def _get_key(self) -> list[Any]:
        return [self._selector(), self._snapshot()]

    def _range(self) -> list[Any]:
        chance = self._random
        ends: list[Any] = list(self._ends())
        if chance.random() < 0.4:
            ends = [self._selector() if chance.random() < 0.7 else end for end in ends]
        limit = chance.choice([0, 0, 0, 1, 1, 2, 3, 7])
        reverse, mode = chance.random() < 0.4, int(chance.choice(MODES))
        if reverse and isinstance(ends[1], list) and ends[1][2] > 1:
            mode = StreamingMode.want_all  # smaller pages would fill with the cluster's own rows behind the last
        return [*ends, limit, reverse, mode, self._snapshot()]

    _list = _cursor = _range

    def _some(self) -> list[Any]:
        return [self._random.choice([1, 2, 5, 20]), *self._range()]

    def _next(self) -> list[Any]:
        return [self._random.choice([1, 1, 3, 10])]

    def nothing(self) -> list[Any]:
        return []

    _grv = _read_conflicts = _write_conflicts = _size = _conflicting = _stamp = _stamp_now = nothing
    _reset = _cancel = _replace = _committed_version = nothing

    def _set_rv(self) -> list[Any]:
        return [self._random.randrange(SLOTS)]

    def _bad_rv(self) -> list[Any]:
        return [self._random.choice([0, -1])]

    def _set(self) -> list[Any]:
        return [self._key(), self._value()]

    def _clear(self) -> list[Any]:
        return [self._key()]

    def _clear_range(self) -> list[Any]:
        return self._ends()

    def _clear_startswith(self) -> list[Any]:
        return [self._random.choice(BASES)]

    def _atomic(self) -> list[Any]:
        param = self._random.choice([b"", b"\x00", b"\x01", b"\xff\xff", bytes(4), self._value()])
        return [self._random.choice(ATOMICS), self._key(), param]

    def _stamped(self) -> list[Any]:
        body = self._random.choice([b"", b"a", b"c"]) + bytes(10) + self._random.choice([b"", b"tail"])
        at = self._random.choice([len(body) - 10, 0, 0, 1, 1, -1, 90])
        template = body + struct.pack("<i", at)
        if self._random.random() < 0.5:
            return ["set_versionstamped_value", self._key(), template]
        return ["set_versionstamped_key", template, self._value()]

    def _conflict(self) -> list[Any]:
        kind = self._random.choice(
            ["read_conflict_key", "write_conflict_key", "read_conflict_range", "write_conflict_range"]
        )
        return [kind, *self._ends()]

    def _option(self) -> list[Any]:
        return list(self._random.choice(OPTIONS))

    def _watch(self) -> list[Any]:
        self._watches += 1
        return [self._watches, self._key()]

    def _cancel_watch(self) -> list[Any]:
        return [self._random.randint(1, max(1, self._watches))]

    def _on_error(self) -> list[Any]:
        return [self._random.choice(ERRORS)]

    def _commit(self) -> list[Any]:
        return [self._random.random() < (0.3 if self._kind == "states" else 0.05)]

    def _bad(self) -> list[Any]:
        raise NotImplementedError


BAD: list[Step] = [
    ["set", b"k" * 10_001, b""],
    ["set", b"v", bytes(100_001)],
    ["set", b"\xffx", b""],
    ["set", b"\xff\xff/x", b""],
    ["get", b"\xffx", False],
    ["get", b"k" * 10_009, False],
    ["get_key", [b"\xff\x00", False, 1], False],
    ["range", b"a", b"\xffx", 0, False, -1, False],
    ["range", b"a", b"z", 0, False, 0, False],
    ["range", b"a", b"z", -1, False, -1, False],
    ["range", b"a", b"z", 0, False, 9, False],
    ["clear", b"\xffx"],
    ["clear", b"k" * 10_020],
    ["clear_range", b"z", b"a"],
    ["clear_range", b"a", b"\xffx"],
    ["atomic", "add", b"\xffx", b"\x01"],
    ["atomic", "add", b"k" * 10_001, b"\x01"],
    ["conflict", "read_conflict_range", b"z", b"a"],
    ["conflict", "write_conflict_range", b"a", b"\xffx"],
    ["conflict", "read_conflict_range", b"a", b"\xffx"],
    ["watch", 0, b"\xffx"],
    ["watch", 0, b"k" * 10_001],
]
"""Steps that are refused, some at once, some only by what comes after them."""
