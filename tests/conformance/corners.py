"""More kinds of random programs, each about one corner of the contract."""

from __future__ import annotations

from typing import Any

from tests.conformance.machine import CONFLICTS, READS, SLOTS, WRITES, Step
from tests.conformance.programs import ATOMICS, BASES, TAILS, Generator

RETRIED = [1007, 1009, 1020, 1021, 1037, 1038, 1039, 1042, 1051, 1078, 1079, 1213, 1223]
REFUSED = [1, 1004, 1025, 1031, 1032, 1034, 1036, 1100, 1101, 2000, 2004, 2017, 2101, 4100]
ODD_OPTIONS: list[list[Any]] = [
    ["retry_limit", 0],
    ["retry_limit", 1],
    ["retry_limit", 3],
    ["retry_limit", -1],
    ["max_retry_delay", 0],
    ["max_retry_delay", 1],
    ["timeout", 60_000],
    ["timeout", 0],
    ["timeout", 1],
    ["tag", "one"],
    ["tag", "two"],
    ["tag", "three"],
    ["tag", "t" * 256],
    ["auto_throttle_tag", "one"],
    ["auto_throttle_tag", "four"],
    ["auto_throttle_tag", "five"],
    ["initialize_new_database"],
    ["lock_aware"],
    ["read_lock_aware"],
    ["debug_transaction_identifier", "a"],
    ["debug_transaction_identifier", "b"],
    ["debug_transaction_identifier", ""],
    ["log_transaction"],
    ["transaction_logging_enable", "a"],
    ["transaction_logging_max_field_length", 0],
    ["transaction_logging_max_field_length", -1],
    ["span_parent", bytes(33)],
    ["span_parent", b""],
    ["use_grv_cache"],
    ["automatic_idempotency"],
    ["authorization_token", "none"],
    ["snapshot_ryw_disable"],
    ["snapshot_ryw_enable"],
    ["server_request_tracing"],
    ["read_priority_low"],
]
SYSTEM = b"\xff/fdbqueue tests/"


class Atomics(Generator):
    """Operations of all lengths, many of them on the same few keys."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"atomic": 60, "get": 14, "commit": 16, "cursor": 0, "next": 0, "some": 0}

    def _key(self) -> bytes:
        return self._random.choice(BASES[:3])

    def _value(self) -> bytes:
        chance = self._random
        return chance.choice(
            [b"", b"\x00", b"\x01", b"\xff", bytes(4), b"\xff" * 3, chance.randbytes(chance.randint(0, 9))]
        )

    def _atomic(self) -> list[Any]:
        return [self._random.choice([*ATOMICS, "and", "or", "xor"]), self._key(), self._value()]


class Selectors(Generator):
    """Selectors that run off either end, cross and go far, over few rows."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"get_key": 30, "range": 20, "list": 6, "some": 6, "get": 4, "atomic": 6}

    def _contents(self) -> list[Step]:
        count = self._random.choice([0, 1, 3, 8, 30])
        return [*([0, "set", self._key(), self._value()] for _ in range(count)), [0, "commit", False]]

    def _selector(self) -> list[Any]:
        chance = self._random
        offset = chance.choice([-40, -20, -7, -4, *range(-3, 6), 7, 20, 40])
        return [self._end(), chance.random() < 0.5, offset]

    def _range(self) -> list[Any]:
        chance = self._random
        ends = [self._selector() if chance.random() < 0.8 else end for end in (self._end(), self._end())]
        limit, reverse, mode = chance.choice([0, 0, 1, 2, 5]), chance.random() < 0.5, chance.choice([-2, -2, -1])
        if reverse and isinstance(ends[1], list) and ends[1][2] > 1:
            mode = -2  # smaller pages would fill with the cluster's own rows behind the last
        return [*ends, limit, reverse, mode, self._snapshot()]

    _list = _cursor = _range


class Limits(Generator):
    """Sizes of transactions near what an option allows, and keys as long as they may be."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"option": 18, "size": 10, "commit": 16, "get": 6, "range": 6, "clear_range": 8}

    def _option(self) -> list[Any]:
        chance = self._random
        if chance.random() < 0.4:
            return ["size_limit", chance.choice([32, 100, 200, 300, 500, 800, 1200, 2000])]
        return [
            chance.choice(
                [
                    "read_your_writes_disable",
                    "next_write_no_write_conflict_range",
                    "raw_access",
                    "causal_write_risky",
                    "report_conflicting_keys",
                ]
            )
        ]

    def _key(self) -> bytes:
        chance = self._random
        if chance.random() < 0.05:
            return chance.choice(BASES) + b"k" * chance.choice(
                [9_998, 9_999, 10_000, 10_006, 10_007, 10_008, 10_009, 10_020]
            )
        return super()._key()


class Errors(Generator):
    """Errors of every number handed to `on_error`, limits of retries, and times that run out."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {
            "on_error": 25,
            "option": 10,
            "reset": 3,
            "cancel": 3,
            "watch": 6,
            "sleep": 2,
            "stamp": 3,
            "stamp_now": 3,
            "committed_version": 4,
            "bad": 2,
            "committed_rv": 2,
        }

    def program(self) -> list[Step]:
        steps: list[Step] = []
        for step in super().program():
            steps.append(step)
            if step[1:] in (["option", "timeout", 1], ["on_error", 1039]):
                steps.append([step[0], "sleep", 0.004])  # so that the time is out for certain
        return steps

    def _sleep(self) -> list[Any]:
        return [0.004]

    def _committed_rv(self) -> list[Any]:
        return [self._random.randrange(SLOTS)]

    def _on_error(self) -> list[Any]:
        chance = self._random
        return [
            chance.choice(RETRIED)
            if chance.random() < 0.7
            else chance.choice([*REFUSED, chance.randint(0, 5000), -1, 40_000])
        ]

    def _option(self) -> list[Any]:
        return list(self._random.choice(ODD_OPTIONS))


class Later(Generator):
    """Reads that are waited for after other reads and writes."""

    def program(self) -> list[Step]:
        steps: list[Step] = []
        for step in super().program():
            if step[1] in ("size", "read_conflicts"):
                continue  # on a cluster, reads that are under way together can't build on one another
            if step[1] in ("commit", "replace", "on_error", "reset", "cancel"):
                steps.append([step[0], "collect"])
            steps.append(step)
        return steps

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {
            "later": 40,
            "collect": 8,
            "option": 3,
        }

    def _later(self) -> list[Any]:
        op = self._random.choice(["get", "get_key", "range"])
        return [op, *getattr(self, f"_{op}")()]

    _collect = Generator.nothing


class Big(Generator):
    """Values as large as they may be, over which range reads take many pages."""

    def _contents(self) -> list[Step]:
        steps: list[Step] = []
        for _ in range(self._random.choice([5, 15, 30])):
            steps += [[0, "set", self._key(), self._value()], [0, "commit", False]]
        return steps

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"some": 16, "cursor": 8, "next": 16, "range": 12, "atomic": 4, "commit": 6}

    def _key(self) -> bytes:
        return self._random.choice(BASES) + self._random.choice([b"", b"m", b"n", b"\xff"])

    def _value(self) -> bytes:
        size = self._random.choice([0, 100, 4_000, 20_000, 39_000, 79_900, 80_100, 99_999, 100_000, 100_001])
        return bytes([self._random.randrange(256)]) * size


class Special(Generator):
    """Special keys, by selectors and limits, from either end."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {
            "special": 40,
            "special_get": 10,
            "conflict": 15,
            "option": 6,
            "get_key": 3,
            "cursor": 0,
            "next": 0,
        }

    def _option(self) -> list[Any]:
        return [
            self._random.choice(
                [
                    "report_conflicting_keys",
                    "special_key_space_enable_writes",
                    "read_your_writes_disable",
                    "next_write_no_write_conflict_range",
                ]
            )
        ]

    def _special_key(self) -> bytes:
        chance = self._random
        return chance.choice([READS, READS, WRITES, WRITES, CONFLICTS]) + chance.choice(
            [b"", b"a", b"b", b"d", self._key(), b"\xff"]
        )

    def _special_get(self) -> list[Any]:
        return [self._special_key()]

    def _special(self) -> list[Any]:
        chance = self._random
        edges = [
            b"\xff\xff/transaction/",
            b"\xff\xff/transaction0",
            b"\xff\xff/error_message",
            b"\xff\xff/transactiona",
            b"\xff\xff",
            b"\xff\xff\xff",
            b"\xff\xff/z",
        ]
        ends: list[Any] = [self._special_key() if chance.random() < 0.9 else chance.choice(edges) for _ in range(2)]
        if chance.random() < 0.95:
            ends.sort()
        if chance.random() < 0.5:
            ends = [[end, chance.random() < 0.4, chance.choice([-5, -1, 0, 1, 1, 2, 3, 9])] for end in ends]
        return [*ends, chance.choice([0, 0, 0, 1, 2, 5, -1]), chance.random() < 0.4]


class System(Generator):
    """System keys, written and read with the options for it."""

    def _contents(self) -> list[Step]:
        return [
            [0, "option", "access_system_keys"],
            [0, "clear_range", SYSTEM, SYSTEM[:-1] + b"0"],
            [0, "commit", False],
        ]

    def program(self) -> list[Step]:
        steps: list[Step] = []
        for step in super().program():
            steps.append(step)
            if step[1] in ("commit", "replace") and self._random.random() < 0.9:
                steps.append(
                    [
                        step[0],
                        "option",
                        self._random.choice(["access_system_keys", "access_system_keys", "read_system_keys"]),
                    ]
                )
        steps += [[0, "option", "read_system_keys"], [0, "range", SYSTEM, SYSTEM[:-1] + b"0", 0, False, -2, True]]
        return steps

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {
            "get_key": 0,
            "some": 0,
            "cursor": 0,
            "next": 0,
            "clear_startswith": 0,
            "option": 3,
        }

    def _option(self) -> list[Any]:
        return [self._random.choice(["access_system_keys", "read_system_keys", "raw_access", "snapshot_ryw_disable"])]

    def _key(self) -> bytes:
        return super()._key() if self._random.random() < 0.1 else self._end()

    def _end(self) -> bytes:
        return SYSTEM + self._random.choice(BASES) + self._random.choice(TAILS)

    def _selector(self) -> list[Any]:
        return [self._end(), self._random.random() < 0.5, 1]


class Database(Generator):
    """Reads and writes straight on the database, beside transactions, and sizes."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"database": 30, "split": 4, "estimate": 4, "committed_rv": 4, "set_rv": 3}

    def _committed_rv(self) -> list[Any]:
        return [self._random.randrange(SLOTS)]

    def _split(self) -> list[Any]:
        return [*self._ends(), self._random.choice([1_000_000, 10_000_000])]

    def _estimate(self) -> list[Any]:
        return self._ends()

    def _database(self) -> list[Any]:
        chance = self._random
        op = chance.choice(
            [
                "get",
                "__getitem__",
                "get_key",
                "get_range",
                "get_range_startswith",
                "set",
                "__setitem__",
                "clear",
                "clear_range",
                "__delitem__",
                "clear_range_startswith",
                "add",
                "bit_or",
                "append_if_fits",
            ]
        )
        if op in ("get", "__getitem__", "clear", "__delitem__"):
            return [op, self._key()]
        if op == "get_key":
            return [op, self._selector()]
        if op in ("get_range_startswith", "clear_range_startswith"):
            return [op, chance.choice([*BASES, b"", b"\xff"])]
        if op == "get_range":
            return [op, *self._ends(), chance.choice([0, 1, 3]), chance.random() < 0.4]
        if op == "clear_range":
            return [op, *self._ends()]
        return [op, self._key(), self._value()]


class Endings(Generator):
    """Transactions that end while reads are under way, and reads that are cancelled.

    A cluster may answer first: `differential.came_first` lets an answer pass where 1025 or 1101 was expected. Most of
    the transactions here have no read version yet, for which it takes longer.
    """

    def _weights(self) -> dict[str, float]:
        # Without pages that nobody waits for: whether they come depends on what is done meanwhile.
        return super()._weights() | {"ending": 50, "cancelled": 10, "some": 0, "cursor": 0, "next": 0}

    def program(self) -> list[Step]:
        steps: list[Step] = []
        for step in super().program():
            if step[1] in ("ending", "cancelled") and self._random.random() < 0.9:
                steps += [[step[0], "reset"], [step[0], self._random.choice(["set", "set", "clear", "atomic"])]]
                steps[-1] += getattr(self, f"_{steps[-1][1]}")()
            steps.append(step)
        return steps

    def _read(self, *more: str) -> list[Any]:
        op = self._random.choice(["get", "get", "get_key", "grv", *more])
        return [op, *getattr(self, f"_{op}")()]

    def _ending(self) -> list[Any]:
        chance = self._random
        ends: list[list[Any]] = [["cancel"], ["commit", False], ["commit", True], ["on_error", 2000]]
        end = chance.choice([*ends, *2 * [["reset"], ["replace"]]])
        if chance.random() < 0.6:
            return [[self._read("range")], chance.random() < 0.2, *end]
        reads = [["get", *self._get()] for _ in range(chance.randint(2, 4))]
        return [reads, chance.random() < 0.3, *end]

    def _cancelled(self) -> list[Any]:
        return self._read()


class Defaults(Generator):
    """Options of the database that change while transactions are under way, and transactions' own beside them."""

    def _weights(self) -> dict[str, float]:
        return super()._weights() | {"db_option": 16, "option": 8, "on_error": 16, "reset": 8, "replace": 6}

    def _option(self) -> list[Any]:
        return list(
            self._random.choice(
                [
                    ["retry_limit", 1],
                    ["retry_limit", -1],
                    ["size_limit", 300],
                    ["snapshot_ryw_disable"],
                    ["snapshot_ryw_enable"],
                    ["read_your_writes_disable"],
                    ["next_write_no_write_conflict_range"],
                ]
            )
        )

    def _on_error(self) -> list[Any]:
        return [self._random.choice([1007, 1020])]

    def _snapshot(self) -> bool:
        return self._random.random() < 0.6

    def _db_option(self) -> list[Any]:
        chance = self._random
        return list(
            chance.choice(
                [
                    ["transaction_retry_limit", chance.choice([-1, 0, 1, 2])],
                    ["transaction_size_limit", chance.choice([300, 10_000_000])],
                    ["transaction_max_retry_delay", chance.choice([0, 5, 1000])],
                    ["snapshot_ryw_disable"],
                    ["snapshot_ryw_enable"],
                ]
            )
        )


CORNERS = {
    "atomics": Atomics, "selectors": Selectors, "limits": Limits, "errors": Errors, "later": Later, "big": Big,
    "special": Special, "system": System, "database": Database, "endings": Endings, "defaults": Defaults,
}  # fmt: skip
