"""Programs of interleaved transactions, run against any engine with every answer written down.

A program is a list of steps ``[slot, operation, *arguments]`` over four slots, each of which holds an open
transaction. `Machine` runs one and returns an answer per step; what differs by nature (versionstamps) is masked.
`generate` makes a random one. Two engines that answer a program differently are two engines that differ: that is what
`differential` looks for, on a database that it has to itself, since programs wander over the whole key space.
"""

from __future__ import annotations

import gc
import itertools
import random
import struct
import time
from typing import Any

from fdbqueue.engine import FDBError, KeySelector, StreamingMode

Step = list[Any]
Answer = Any

SLOTS = 4
READS = b"\xff\xff/transaction/read_conflict_range/"
WRITES = b"\xff\xff/transaction/write_conflict_range/"
CONFLICTS = b"\xff\xff/transaction/conflicting_keys/"
PATIENCE_SECONDS = 5.0


class Machine:
    """Runs one program on one database, which it clears first.

    Args:
        db: the database.
        fired: which watches, by number, are expected to fire; the others are given a moment only.
    """

    def __init__(self, db: Any, fired: dict[int, Answer] | None = None) -> None:
        self._db = db
        self._fired = fired
        tr = db.create_transaction()
        tr.clear_range(b"", b"\xff")
        tr.commit().wait()
        self._slots = [self._new() for _ in range(SLOTS)]
        self._cursors: dict[int, Any] = {}
        self._stamps: list[bytes] = []
        self._waiting: dict[int, Any] = {}  # versionstamp futures by slot
        self._stamped: set[int] = set()  # slots that wrote a versionstamped key
        self.watches: dict[int, Any] = {}

    def _new(self) -> Any:
        return self._db.create_transaction()

    def run(self, program: list[Step]) -> list[Answer]:
        """Return the answers of all steps, then the watches' and the database's contents."""
        answers = [self._answer(*step) for step in program]
        gc.collect()  # the binding's errors keep transactions alive in cycles, and those keep watches from failing
        answers.append(["watches", {number: self._watched(number) for number in sorted(self.watches)}])
        answers.append(["contents", self._mask(_rows(self._new().get_range(b"", b"\xff")))])
        return answers

    def _answer(self, slot: int, op: str, *args: Any) -> Answer:
        try:
            return self._mask(getattr(self, f"_do_{op}")(slot, *args))
        except FDBError as error:
            return ["error", error.code]
        except (TypeError, ValueError) as error:
            return ["raised", type(error).__name__]

    def _mask(self, answer: Answer) -> Answer:
        if isinstance(answer, bytes):
            for number, stamp in enumerate(self._stamps):
                answer = answer.replace(stamp, b"<%08d>" % number)
            return answer
        if isinstance(answer, list | tuple):
            return [self._mask(part) for part in answer]
        return answer

    def _watched(self, number: int) -> Answer:
        future = self.watches[number]
        if self._fired is not None and self._fired.get(number) != "pending":
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not future.is_ready() and time.monotonic() < deadline:
                time.sleep(0.001)
        elif not future.is_ready():
            time.sleep(0.01)
        if not future.is_ready():
            return "pending"
        try:
            future.wait()
        except FDBError as error:
            return error.code
        return "fired"

    # -- reads ---------------------------------------------------------------------------------------------------

    def _view(self, slot: int, snapshot: bool) -> Any:
        tr = self._slots[slot]
        return tr.snapshot if snapshot else tr

    def _do_get(self, slot: int, key: bytes, snapshot: bool) -> Answer:
        value = self._view(slot, snapshot).get(key)
        return bytes(value) if value.present() else None

    def _do_get_key(self, slot: int, selector: list[Any], snapshot: bool) -> Answer:
        return bytes(self._view(slot, snapshot).get_key(KeySelector(*selector)))

    def _range(self, slot: int, begin: Any, end: Any, limit: int, reverse: bool, mode: int, snapshot: bool) -> Any:
        ends = [KeySelector(*at) if isinstance(at, list) else at for at in (begin, end)]
        return self._view(slot, snapshot).get_range(*ends, limit=limit, reverse=reverse, streaming_mode=mode)

    def _do_range(self, slot: int, *args: Any) -> Answer:
        return _rows(self._range(slot, *args))

    def _do_list(self, slot: int, *args: Any) -> Answer:
        return _rows(self._range(slot, *args).to_list())

    def _do_some(self, slot: int, take: int, *args: Any) -> Answer:
        return _rows(itertools.islice(self._range(slot, *args), take))

    def _do_cursor(self, slot: int, *args: Any) -> Answer:
        rows = iter(self._range(slot, *args))
        # Wait for the first page: the next step's read is to find what this one has read.
        self._cursors[slot] = itertools.chain(list(itertools.islice(rows, 1)), rows)

    def _do_next(self, slot: int, take: int) -> Answer:
        cursor = self._cursors.get(slot)
        return None if cursor is None else _rows(itertools.islice(cursor, take))

    def _do_grv(self, slot: int) -> Answer:
        self._slots[slot].get_read_version().wait()

    def _do_set_rv(self, slot: int, other: int) -> Answer:
        self._slots[slot].set_read_version(self._slots[other].get_read_version().wait())

    def _do_bad_rv(self, slot: int, version: int) -> Answer:
        self._slots[slot].set_read_version(version)

    # -- writes --------------------------------------------------------------------------------------------------

    def _do_set(self, slot: int, key: bytes, value: bytes) -> Answer:
        self._slots[slot].set(key, value)

    def _do_clear(self, slot: int, key: bytes) -> Answer:
        self._slots[slot].clear(key)

    def _do_clear_range(self, slot: int, begin: bytes, end: bytes) -> Answer:
        self._slots[slot].clear_range(begin, end)

    def _do_clear_startswith(self, slot: int, prefix: bytes) -> Answer:
        self._slots[slot].clear_range_startswith(prefix)

    def _do_atomic(self, slot: int, name: str, key: bytes, param: bytes) -> Answer:
        if name == "set_versionstamped_key":
            self._stamped.add(slot)
        getattr(self._slots[slot], name)(key, param)

    def _do_conflict(self, slot: int, kind: str, begin: bytes, end: bytes) -> Answer:
        ends = (begin,) if kind.endswith("key") else (begin, end)
        getattr(self._slots[slot], f"add_{kind}")(*ends)

    # -- what it knows about itself ------------------------------------------------------------------------------

    def _do_read_conflicts(self, slot: int) -> Answer:
        if slot in self._stamped:
            return None  # its edges show the read version
        rows = _rows(self._slots[slot].get_range(READS, READS + b"\xff\xff"), len(READS))
        return [row for row in rows if row[0] <= b"\xff"]  # beyond are the cluster's own keys

    def _do_write_conflicts(self, slot: int) -> Answer:
        if slot in self._stamped:
            return None
        return _rows(self._slots[slot].get_range(WRITES, WRITES + b"\xff\xff"), len(WRITES))

    def _do_conflicting(self, slot: int) -> Answer:
        return _rows(self._slots[slot].get_range(CONFLICTS, CONFLICTS + b"\xff\xff"), len(CONFLICTS))

    def _do_size(self, slot: int) -> Answer:
        # This waits for reads that nobody has waited for: the page behind the last row that was taken.
        self._slots[slot].get(READS).present()
        return self._slots[slot].get_approximate_size().wait()

    # -- states --------------------------------------------------------------------------------------------------

    def _do_option(self, slot: int, name: str, *args: Any) -> Answer:
        getattr(self._slots[slot].options, f"set_{name}")(*args)

    def _do_watch(self, slot: int, number: int, key: bytes) -> Answer:
        tr = self._slots[slot]
        self.watches[number] = tr.watch(key)
        tr.snapshot.get(key).wait()  # so that the watch has done its own read too

    def _do_cancel_watch(self, slot: int, number: int) -> Answer:
        gc.collect()
        if number in self.watches:
            self.watches[number].cancel()

    def _do_stamp(self, slot: int) -> Answer:
        self._waiting[slot] = self._slots[slot].get_versionstamp()

    def _do_stamp_now(self, slot: int) -> Answer:
        future = self._waiting.get(slot)
        if future is None:
            return None
        if not future.is_ready():
            time.sleep(0.001)
        return bytes(future.wait()) if future.is_ready() else "pending"

    def _do_commit(self, slot: int, keep: bool) -> Answer:
        tr = self._slots[slot]
        stamp = tr.get_versionstamp()
        try:
            tr.commit().wait()
        except FDBError as error:
            if not keep:
                self._replace(slot)
            return ["error", error.code, _code(stamp)]
        version = tr.get_committed_version()
        code = _code(stamp)
        if code is None:
            self._stamps.append(bytes(stamp))
        if not keep:
            self._replace(slot)
        return ["committed", version > 0, code]

    def _do_on_error(self, slot: int, code: int) -> Answer:
        self._cursors.pop(slot, None)
        self._slots[slot].on_error(code).wait()
        self._stamped.discard(slot)

    def _do_reset(self, slot: int) -> Answer:
        self._cursors.pop(slot, None)
        self._stamped.discard(slot)
        self._slots[slot].reset()
        self._waiting.pop(slot, None)

    def _do_cancel(self, slot: int) -> Answer:
        self._slots[slot].cancel()

    def _do_replace(self, slot: int) -> Answer:
        self._replace(slot)

    def _replace(self, slot: int) -> None:
        self._cursors.pop(slot, None)
        self._waiting.pop(slot, None)
        self._stamped.discard(slot)
        self._slots[slot] = self._new()

    def _do_committed_version(self, slot: int) -> Answer:
        return self._slots[slot].get_committed_version() > 0


def _rows(rows: Any, cut: int = 0) -> list[list[bytes]]:
    return [[bytes(row.key)[cut:], bytes(row.value)] for row in rows]


def _code(future: Any) -> Answer:
    """Return how a versionstamp's future failed, or None."""
    if not future.is_ready():
        return "pending"
    try:
        future.wait()
    except FDBError as error:
        return error.code
    return None


# -- random programs -----------------------------------------------------------------------------------------------

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

    def _nothing(self) -> list[Any]:
        return []

    _grv = _read_conflicts = _write_conflicts = _size = _conflicting = _stamp = _stamp_now = _nothing
    _reset = _cancel = _replace = _committed_version = _nothing

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


def generate(seed: int, kind: str) -> list[Step]:
    """Return the random program number `seed` of one kind."""
    generator = Generator(seed, kind)
    chance = random.Random(f"{seed} {kind} bad")
    generator._bad = lambda: ["bad"]  # type: ignore[method-assign]
    program = generator.program()
    for step in program:
        if step[1] == "bad":
            step[1:] = chance.choice(BAD)
        elif step[1] == "stamped":
            step[1] = "atomic"
    return program


KINDS = ("plain", "options", "stamps", "pages", "states")
