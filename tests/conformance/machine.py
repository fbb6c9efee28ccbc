"""Programs of interleaved transactions, run against any engine with every answer written down.

A program is a list of steps ``[slot, operation, *arguments]`` over four slots, each of which holds an open
transaction. `Machine` runs one and returns an answer per step; what differs by nature (versionstamps) is masked.
`programs` makes random ones.
"""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any

from fdbqueue.engine import FDBError, KeySelector

Step = list[Any]
Answer = Any

SLOTS = 4
READS = b"\xff\xff/transaction/read_conflict_range/"
WRITES = b"\xff\xff/transaction/write_conflict_range/"
CONFLICTS = b"\xff\xff/transaction/conflicting_keys/"
PATIENCE_SECONDS = 200.0
UNDONE: dict[str, list[Any]] = {
    "transaction_retry_limit": ["transaction_retry_limit", -1],
    "transaction_size_limit": ["transaction_size_limit", 10_000_000],
    "transaction_max_retry_delay": ["transaction_max_retry_delay", 1000],
    "snapshot_ryw_disable": ["snapshot_ryw_enable"],
    "snapshot_ryw_enable": ["snapshot_ryw_disable"],
}
"""What takes a database's option back."""


class Machine:
    """Runs one program on one database, which it clears first.

    Args:
        db: the database.
        fired: which watches, by number, are expected to fire; the others are given a moment only.
        arrival_s: how long each step gives reads that are under way to arrive.
    """

    def __init__(self, db: Any, fired: dict[int, Answer] | None = None, arrival_s: float = 0.0) -> None:
        self._db = db
        self._fired = fired
        self._arrival_s = arrival_s
        tr = db.create_transaction()
        tr.clear_range(b"", b"\xff")
        tr.commit().wait()
        self._slots = [self._new() for _ in range(SLOTS)]
        self._cursors: dict[int, Any] = {}
        self._stamps: list[bytes] = []
        self._waiting: dict[int, Any] = {}  # versionstamp futures by slot
        self._stamped: set[int] = set()  # slots that wrote a versionstamped key
        self._later: dict[int, list[Any]] = {}  # reads by slot that nobody has waited for
        self._db_options: list[str] = []  # those set so far, by name
        self.watches: dict[int, Any] = {}

    def _new(self) -> Any:
        return self._db.create_transaction()

    def run(self, program: list[Step]) -> list[Answer]:
        """Return the answers of all steps, then the watches' and the database's contents."""
        try:
            answers = [self._answer(*step) for step in program]
        finally:
            self._undo_options()
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
        finally:
            time.sleep(self._arrival_s)

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
        code = _code(future)
        return "fired" if code is None else code

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
        rows = iter(self._range(slot, *args))
        taken = _rows(itertools.islice(rows, take))
        time.sleep(self._arrival_s)  # the page behind the last row, which ends with `rows`
        return taken

    def _do_cursor(self, slot: int, *args: Any) -> Answer:
        rows = iter(self._range(slot, *args))
        # Wait for the first page: the next step's read is to find what this one has read.
        self._cursors[slot] = itertools.chain(list(itertools.islice(rows, 1)), rows)

    def _do_next(self, slot: int, take: int) -> Answer:
        cursor = self._cursors.get(slot)
        return None if cursor is None else _rows(itertools.islice(cursor, take))

    def _do_later(self, slot: int, op: str, *args: Any) -> Answer:
        self._later.setdefault(slot, []).append((op, self._begun(slot, op, *args)))

    def _begun(self, slot: int, op: str, *args: Any) -> Any:
        if op == "grv":
            return self._slots[slot].get_read_version()
        if op == "get":
            return self._view(slot, args[1]).get(args[0])
        if op == "get_key":
            return self._view(slot, args[1]).get_key(KeySelector(*args[0]))
        return self._range(slot, *args)

    def _do_ending(self, slot: int, reads: list[Step], waited: bool, end: str, *args: Any) -> Answer:
        """Begin reads, perhaps wait for the last, end the transaction one way or another, and tell how they ended."""
        gc.collect()  # as in `run`
        begun = [self._begun(slot, *read) for read in reads]
        if waited:
            self._finished(reads[-1][0], begun[-1])
        answer = self._answer(slot, end, *args)
        return [answer, [self._finished(op, read) for (op, *_), read in zip(reads, begun, strict=True)]]

    def _do_cancelled(self, slot: int, op: str, *args: Any) -> Answer:
        read = self._begun(slot, op, *args)
        read.cancel()
        answer = [self._finished(op, read), read.cancelled()]
        self._do_reset(slot)  # since whether it is known now, and conflicts, is not said
        return answer

    def _do_collect(self, slot: int) -> Answer:
        return [self._finished(op, read) for op, read in self._later.pop(slot, [])]

    def _finished(self, op: str, read: Any) -> Answer:
        try:
            if op == "grv":
                return read.wait() > 0
            return _rows(read.to_list()) if op == "range" else read.value
        except FDBError as error:
            return ["error", error.code]

    def _do_split(self, slot: int, begin: bytes, end: bytes, size: int) -> Answer:
        points = self._slots[slot].get_range_split_points(begin, end, size).wait()
        return [points[0], points[-1]]  # the cluster does not look for others in so few rows

    def _do_estimate(self, slot: int, begin: bytes, end: bytes) -> Answer:
        return self._slots[slot].get_estimated_range_size_bytes(begin, end).wait() >= 0

    def _do_database(self, _slot: int, op: str, *args: Any) -> Answer:
        answer = getattr(self._db, op)(*(KeySelector(*part) if isinstance(part, list) else part for part in args))
        return _rows(answer) if isinstance(answer, list) else answer

    def _do_sleep(self, _slot: int, seconds: float) -> Answer:
        time.sleep(seconds)

    def _do_committed_rv(self, slot: int, other: int) -> Answer:
        self._slots[slot].set_read_version(self._slots[other].get_committed_version())

    def _do_special(self, slot: int, begin: Any, end: Any, limit: int, reverse: bool) -> Answer:
        rows = _rows(self._range(slot, begin, end, limit, reverse, -2, False))
        return [row for row in rows if not row[0].startswith((READS + b"\xff", WRITES + b"\xff"))]

    def _do_special_get(self, slot: int, key: bytes) -> Answer:
        return self._do_get(slot, key, False)

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

    def _do_db_option(self, _slot: int, name: str, *args: Any) -> Answer:
        getattr(self._db.options, f"set_{name}")(*args)
        self._db_options.append(name)

    def _undo_options(self) -> None:
        """Give the database its options back, which other programs have too."""
        for name in self._db_options:
            undone = UNDONE[name]
            getattr(self._db.options, f"set_{undone[0]}")(*undone[1:])

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
    """Return how a watch's or a versionstamp's future failed, or None."""
    if not future.is_ready():
        return "pending"
    try:
        future.wait()
    except FDBError as error:
        return error.code
    return None
