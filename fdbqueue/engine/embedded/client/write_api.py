"""The writing half of a transaction: sets, clears, atomic operations and conflict ranges. None of them waits.

A forbidden write fails later, as on a cluster. The first such error fails every later operation that returns a
future, above all the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fdbqueue.engine import api
from fdbqueue.engine.embedded.client import special_keys
from fdbqueue.engine.embedded.client.pages import is_selector, key_to_bytes, value_to_bytes
from fdbqueue.engine.embedded.client.read_api import ReadApi
from fdbqueue.engine.embedded.client.reads import (
    METADATA_VERSION,
    READ_KEY_LIMIT,
    SYSTEM_KEY_LIMIT,
    SYSTEM_TOP,
    TOP,
    cut,
)
from fdbqueue.engine.embedded.store.commit.atomics import (
    ADD,
    APPEND_IF_FITS,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    BYTE_MAX,
    BYTE_MIN,
    CLEAR_RANGE,
    COMPARE_AND_CLEAR,
    MAX,
    MIN,
    OPERATIONS,
    SET,
    SET_VERSIONSTAMPED_KEY,
    SET_VERSIONSTAMPED_VALUE,
    VALUE_SIZE_LIMIT,
    Stack,
    stamp_position,
)
from fdbqueue.engine.errors import FDBError
from fdbqueue.engine.keys import strinc

if TYPE_CHECKING:
    from fdbqueue.engine.embedded.client.pending import Watch

KEY_LIMIT: Final = 10_000
MUTATION_BYTES: Final = 44
"""Bytes that a mutation adds to a transaction's size besides key and value. A conflict range adds 24."""

ATOMICS: Final = {
    "add": ADD,
    "and": BIT_AND,
    "bit_and": BIT_AND,
    "or": BIT_OR,
    "bit_or": BIT_OR,
    "xor": BIT_XOR,
    "bit_xor": BIT_XOR,
    "append_if_fits": APPEND_IF_FITS,
    "max": MAX,
    "min": MIN,
    "set_versionstamped_key": SET_VERSIONSTAMPED_KEY,
    "set_versionstamped_value": SET_VERSIONSTAMPED_VALUE,
    "byte_min": BYTE_MIN,
    "byte_max": BYTE_MAX,
    "compare_and_clear": COMPARE_AND_CLEAR,
}
"""Atomic operations by the binding's names. The binding also offers each with the prefix ``bit_``."""
_SETTLED_AT_COMMIT: Final = frozenset(OPERATIONS) - {SET_VERSIONSTAMPED_VALUE}
"""Operations that need no check besides the lengths of key and parameter."""


class WriteApi(ReadApi):
    """The write operations of a transaction."""

    _watches: list[Watch]  # they become active at the commit

    def get_key(self, key_selector: api.KeySelector) -> Any:
        raise NotImplementedError

    def _defer(self, code: int) -> None:
        raise NotImplementedError

    def _may_write(self) -> bool:
        """Return whether the transaction accepts writes. After the commit began, a write is an error."""
        raise NotImplementedError

    # -- values --------------------------------------------------------------------------------------------------

    def set(self, key: api.Key, value: api.Bytes) -> None:
        """Set `key` to `value`."""
        if type(key) is not bytes:
            key = key_to_bytes(key)
        if type(value) is not bytes:
            value = value_to_bytes(value)
        if self._odd or key >= TOP or len(key) > KEY_LIMIT or len(value) > VALUE_SIZE_LIMIT:
            self._set_oddly(key, value)
            return
        self._size += 3 * len(key) + len(value) + 69
        writes = self._writes
        if writes.plain or (not writes.ranged and key not in writes.points):
            writes.points[key] = value
            writes.empty = False
        else:
            writes.set(key, value, True)

    def set_rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set many keys at once: each of `keys` to the value at the same index of `values`. All are bytes."""
        key_sizes, value_sizes = [*map(len, keys)], [*map(len, values)]
        writes = self._writes
        if (
            not keys
            or self._odd
            or not writes.plain
            or max(keys) >= TOP
            or max(key_sizes) > KEY_LIMIT
            or max(value_sizes) > VALUE_SIZE_LIMIT
        ):
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)
            return
        writes.points.update(zip(keys, values, strict=True))
        writes.empty = False
        self._size += 3 * sum(key_sizes) + sum(value_sizes) + 69 * len(key_sizes)

    def _set_oddly(self, key: bytes, value: bytes) -> None:
        if self._deferred_error():
            return
        if key >= TOP:
            if key == METADATA_VERSION:
                self._defer(2000)
                return
            if special_keys.holds(key):
                self._defer(special_keys.write_error(self._settings))
                return
        conflict = self._write_conflicts()
        if not self._may_write():
            return
        if key >= self._write_top():
            self._defer(2004)
            return
        self._size += len(key) + len(value) + MUTATION_BYTES + (2 * len(key) + 25 if conflict else 0)
        if len(key) > self._write_limit(key):
            self._defer(2102)
        elif len(value) > VALUE_SIZE_LIMIT:
            self._defer(2103)
        elif self._settings.ryw_disabled:
            self._write_early(SET, key, value, conflict)
        else:
            with self._lock:
                self._writes.set(key, value, conflict)
            self._trigger(key, key + b"\0", value)

    def _atomic_operation(self, opcode: int, key: api.Key, param: api.Bytes) -> None:
        param = value_to_bytes(param)
        key = key_to_bytes(key)
        short = not self._odd and key < TOP and opcode in _SETTLED_AT_COMMIT
        if short and len(key) <= KEY_LIMIT and len(param) <= VALUE_SIZE_LIMIT:
            self._size += 3 * len(key) + len(param) + MUTATION_BYTES + 25
            with self._lock:
                self._writes.mutate(opcode, key, param, True)
            return
        if self._deferred_error():
            return
        conflict = self._write_conflicts()
        if not self._may_write():
            return
        code = self._atomic_error(opcode, key, param)
        if code:
            self._defer(code)
            return
        with self._lock:
            if opcode == SET_VERSIONSTAMPED_KEY:
                key = self._stamped_key(key)
                conflict = False
            self._size += len(key) + len(param) + MUTATION_BYTES + (2 * len(key) + 25 if conflict else 0)
            if self._settings.ryw_disabled:
                self._write_early(opcode, key, param, conflict)
                return
            self._writes.mutate(opcode, key, param, conflict)
        self._trigger(key, key + b"\0")

    def _atomic_error(self, opcode: int, key: bytes, param: bytes) -> int:
        if key == METADATA_VERSION:
            if opcode != SET_VERSIONSTAMPED_VALUE or param != bytes(14):
                return 2000
        elif key >= self._write_top():
            return 2004
        if opcode not in OPERATIONS and opcode != SET_VERSIONSTAMPED_KEY:
            return 2018
        if len(key) > self._write_limit(key):
            return 2102
        if len(param) > VALUE_SIZE_LIMIT:
            return 2103
        template = key if opcode == SET_VERSIONSTAMPED_KEY else param if opcode == SET_VERSIONSTAMPED_VALUE else None
        return 2000 if template is not None and stamp_position(template) is None else 0

    def _stamped_key(self, template: bytes) -> bytes:
        """Record the range of possible keys, which starts at the read version. Return the smallest, as a template."""
        at = stamp_position(template) or 0
        body = template[:-4]
        low = body[:at] + (self._version or 0).to_bytes(8, "big") + b"\0\0" + body[at + 10 :]
        high = min(body[:at] + b"\xff" * 10 + body[at + 10 :] + b"\0", self._top())
        self._writes.make_unreadable(low, high, self._settings.ryw_disabled)
        return low + template[-4:]

    def clear(self, key: api.Key | api.KeySelector) -> None:
        """Clear `key`, or the key that a selector names."""
        if type(key) is not bytes:
            key = key_to_bytes(self.get_key(key) if is_selector(key) else key)
        if self._odd or key >= TOP or len(key) > KEY_LIMIT:
            self._clear_oddly(key)
            return
        self._size += 4 * len(key) + 50
        writes = self._writes
        if writes.plain:
            writes.points[key] = None
            writes.empty = False
        else:
            with self._lock:
                writes.clear(key, True)

    def _clear_oddly(self, key: bytes) -> None:
        if self._deferred_error():
            return
        conflict = self._write_conflicts()
        if not self._may_write():
            return
        if special_keys.holds(key):
            self._defer(special_keys.write_error(self._settings))
            return
        if key >= self._write_top():
            self._defer(2004)
            return
        if len(key) > (SYSTEM_KEY_LIMIT if key[:1] == TOP else READ_KEY_LIMIT):
            return
        if self._settings.ryw_disabled:
            self._write_early(CLEAR_RANGE, key, key + b"\0", conflict)
            return
        self._size += 2 * len(key) + 25 + (2 * len(key) + 25 if conflict else 0)
        with self._lock:
            self._writes.clear(key, conflict)
        self._trigger(key, key + b"\0", None)

    def clear_range(self, begin: api.Bound, end: api.Bound) -> None:
        """Clear the keys from `begin` (None: the first key) up to and excluding `end` (None: behind the last)."""
        if type(begin) is bytes and type(end) is bytes and not self._odd and begin < end <= TOP:
            self._size += 2 * (len(begin) + len(end)) + MUTATION_BYTES + 24
            writes = self._writes
            if len(begin) < len(end) <= len(begin) + 2 and (writes.plain or not (writes.ranged or writes.dead.begins)):
                # A range of one or two keys, as a dequeue clears it.
                after = begin + b"\0"
                if len(after) <= KEY_LIMIT and (end == after or end == after + b"\0"):
                    if writes.dead.begins:
                        with self._lock:
                            writes.revive(begin)
                            writes.revive(after)
                    writes.points[begin] = None
                    if end != after:
                        writes.points[after] = None
                    writes.empty = False
                    return
            begin, end = cut(begin), cut(end)
            if begin != end:
                with self._lock:
                    writes.clear_range(begin, end, True)
            return
        if is_selector(begin):
            begin = self.get_key(begin)
        if is_selector(end):
            end = self.get_key(end)
        begin = b"" if begin is None else key_to_bytes(begin)
        end = b"\xff" if end is None else key_to_bytes(end)
        if self._deferred_error():
            return
        if begin > end:
            self._defer(2005)
            return
        conflict = self._write_conflicts()
        if not self._may_write():
            return
        if begin >= special_keys.BEGIN and end <= special_keys.END:
            if begin < end or not self._settings.write_special:
                self._defer(special_keys.write_error(self._settings))
            return
        top = self._write_top()
        if begin > top or end > top:
            self._defer(2004)
            return
        cost = len(begin) + len(end)
        self._size += cost + MUTATION_BYTES + (cost + 24 if conflict else 0)
        begin, end = cut(begin), cut(end)
        if begin == end:
            return
        if self._settings.ryw_disabled:
            self._write_early(CLEAR_RANGE, begin, end, conflict)
            return
        with self._lock:
            self._writes.clear_range(begin, end, conflict)
        self._trigger(begin, end, None)

    def clear_range_startswith(self, prefix: api.Key) -> None:
        """Clear the keys that start with `prefix`."""
        prefix = key_to_bytes(prefix)
        self.clear_range(prefix, strinc(prefix))

    def __setitem__(self, key: api.Key, value: api.Bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: api.Key | slice) -> None:
        if isinstance(key, slice):
            self.clear_range(key.start, key.stop)
        else:
            self.clear(key)

    # -- conflicts -----------------------------------------------------------------------------------------------

    def add_read_conflict_range(self, begin: api.Bound, end: api.Bound) -> None:
        """Add a read conflict on ``[begin, end)``, as a read of the range does."""
        if type(begin) is bytes and type(end) is bytes and not self._odd and begin <= end <= TOP:
            if len(begin) > READ_KEY_LIMIT or len(end) > READ_KEY_LIMIT:
                begin, end = cut(begin), cut(end)
            with self._lock:
                self._add_conflict(begin, end)
            return
        begin, end = _ordered(begin, end)
        if self._deferred_error() or not self._may_write():
            return
        if (begin > self._top() or end > self._top()) and (begin, end) != (METADATA_VERSION, METADATA_VERSION + b"\0"):
            self._defer(2004)
            return
        begin, end = cut(begin), cut(end)
        if self._settings.ryw_disabled and begin < end:
            self._size += len(begin) + len(end) + 24
            self._unseen_size += len(begin) + len(end) + 24
        with self._lock:
            self._add_conflict(begin, end)

    def add_read_conflict_key(self, key: api.Key) -> None:
        """Add a read conflict on `key`, as a read does."""
        key = key_to_bytes(key)
        self.add_read_conflict_range(key, key + b"\x00")

    def add_write_conflict_range(self, begin: api.Bound, end: api.Bound) -> None:
        """Add a write conflict on ``[begin, end)``, as a write to the range does."""
        if type(begin) is not bytes or type(end) is not bytes or self._odd or not begin <= end <= TOP:
            begin, end = _ordered(begin, end)
            if self._deferred_error() or not self._may_write():
                return
            if begin > self._write_top() or end > self._write_top():
                self._defer(2004)
                return
        begin, end = cut(begin), cut(end)
        if begin < end:
            self._size += len(begin) + len(end) + 24
            self._unseen_size += len(begin) + len(end) + 24
            with self._lock:
                self._writes.add_conflict(begin, end)

    def add_write_conflict_key(self, key: api.Key) -> None:
        """Add a write conflict on `key`, as a write does."""
        key = key_to_bytes(key)
        self.add_write_conflict_range(key, key + b"\x00")

    # -- helpers -------------------------------------------------------------------------------------------------

    def _write_conflicts(self) -> bool:
        """Return whether the current write gets a write conflict. The option that prevents it holds for one write."""
        if self._settings.quiet_next:
            self._settings.quiet_next = False  # the option made these settings the transaction's own
            return False
        return True

    def _write_top(self) -> bytes:
        return SYSTEM_TOP if self._settings.write_system else TOP

    def _write_limit(self, key: bytes) -> int:
        if key[:1] == TOP:
            return SYSTEM_KEY_LIMIT
        return READ_KEY_LIMIT if self._settings.raw else KEY_LIMIT

    def _write_early(self, op: int, key: bytes, param: bytes, conflict: bool) -> None:
        """Add a write outside the read-your-writes map, which the option has turned off."""
        end = param if op == CLEAR_RANGE else key + b"\0"
        self._unseen_size += MUTATION_BYTES + len(key) + len(param)
        if conflict:
            self._unseen_size += 24 + len(key) + len(end)
        self._writes.write_early(op, key, param, conflict)

    def _trigger(self, begin: bytes, end: bytes, *value: bytes | None) -> None:
        """Fire the transaction's own watches on a range that it has just written with `value`."""
        for watch in list(self._watches):
            if begin <= watch.key < end:
                watch.written(*value)


def _ordered(begin: api.Bound, end: api.Bound) -> tuple[bytes, bytes]:
    begin, end = key_to_bytes(begin), key_to_bytes(end)
    if begin > end:
        raise FDBError(2005)
    return begin, end


def operation(code: int, *, buffered: bool) -> Any:
    """Return the method that applies atomic operation number `code`, in a class with a write buffer or without."""

    settled = code in _SETTLED_AT_COMMIT

    def apply(self: Any, key: api.Key, param: api.Bytes) -> None:
        self._atomic_operation(code, key, param)

    def buffer(self: WriteApi, key: api.Key, param: api.Bytes) -> None:
        if (
            not self._odd
            and type(key) is bytes
            and type(param) is bytes
            and key < TOP
            and len(key) <= KEY_LIMIT
            and len(param) <= VALUE_SIZE_LIMIT
        ):
            writes = self._writes
            if not (writes.ranged and (writes.unreadable.begins or writes.quiet or key in writes.clears)):
                # The usual case, a counter: as `_atomic_operation` and `WriteBuffer.mutate` do it. Two threads may
                # count at the same key: the second one finds the stack of the first, and takes the lock.
                stack = Stack([(code, param)])
                writes.empty = writes.plain = False
                if writes.points.setdefault(key, stack) is stack:
                    self._size += 3 * len(key) + len(param) + MUTATION_BYTES + 25
                    return
        self._atomic_operation(code, key, param)

    return buffer if buffered and settled else apply


def add_operations(owner: type, *, buffered: bool = False) -> None:
    """Add the atomic operations to `owner` under the binding's names. A transaction is `buffered`."""
    for name, code in ATOMICS.items():
        for method in (name, f"bit_{name}"):
            setattr(owner, method, operation(code, buffered=buffered))


add_operations(WriteApi, buffered=True)
