"""Check that gates fit the slots of sessions that take them, and the pointers that wait at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from fdbqueue import FormatError
from fdbqueue.engine.keys import within
from fdbqueue.lowlevel import Database, KeyValue, Transaction, fdb_tuple, pages
from fdbqueue.stored.layout import FAMILIES
from fdbqueue.stored.names import session_told
from fdbqueue.stored.own_rows import own_rows
from fdbqueue.stored.own_values import decoded, signed, unsigned

from ..line.line import Line
from ..line.slots import Entry
from ..session.gate_record import GateRecord, unpack_gate_record
from ..session.records import SessionRecord, name_of, pointer_of


class GateCheck:
    """Compares the gates of one line with the entries of all slots.

    Args:
        tr: a transaction, or a database.
        line: the line.
    """

    def __init__(self, tr: Transaction | Database, line: Line) -> None:
        self._tr = tr
        self._line = line
        self._held: Counter[bytes] = Counter()
        self._waiting: dict[tuple[bytes, bytes], bytes] = {}

    def add(self, name: bytes, record: SessionRecord, entries: Iterable[Entry]) -> None:
        """Count the slots of gates that the slots of a session have, and note where they wait."""
        for entry in entries:
            self._held.update(
                gate for gate, _ in record.gates[: self._line.slots.gates.held(record.gates, entry.stage)]
            )
            if entry.stage >= 0:
                self._waiting[record.gates[entry.stage][0], entry.place] = name

    def problems(self) -> list[str]:
        """Return what does not fit, once all sessions were added."""
        keys = self._line.keys
        problems: list[str] = []
        records: dict[bytes, GateRecord] = {}
        for row in self._rows(keys.gate()):
            try:
                records[row.key[len(keys.gate()) :]] = unpack_gate_record(keys.layout, row.key, row.value)
            except FormatError as error:
                problems.append(str(error))
        waiters: Counter[bytes] = Counter()
        for row in self._rows(keys.gated().prefix):
            parts = FAMILIES["gate/line"].parts(row.key[len(keys.gated().prefix) :])
            if parts is None:
                continue
            name = parts[0]
            gate = fdb_tuple.pack((name,))
            waiters[gate] += 1
            try:
                pointer = pointer_of(row.value)
            except FormatError as error:
                problems.append(str(error))
                continue
            if self._waiting.pop((gate, keys.gated(gate).packed(row.key)), None) != pointer.name:
                problems.append(f"A pointer that waits at the gate {session_told(name)} belongs to no slot.")
        problems += [
            f"A slot of the session {session_told(name_of(name))} waits at the gate {session_told(name_of(gate))},"
            " and has no pointer there."
            for (gate, _), name in self._waiting.items()
        ]
        surplus = dict(self._numbers("gate/surplus", keys.surplus(b""), unsigned, problems))
        counted = dict(self._numbers("gate/waiting", keys.waiters(b""), signed, problems))
        for gate in {*records, *self._held, *waiters, *surplus, *counted}:
            record = records.get(gate, GateRecord())
            told = f"The gate {session_told(name_of(gate))}"
            if record.held != self._held[gate]:
                problems.append(f"{told} has {self._held[gate]} slots taken, and its record says {record.held}.")
            if surplus.get(gate, 0) != max(0, record.held - record.limit):
                problems.append(f"{told} has {surplus.get(gate, 0)} slots noted as too many, which is wrong.")
            if waiters[gate] and record.held < record.limit:
                problems.append(f"{told} has a free slot, and a pointer waits there.")
            if counted.get(gate, 0) != waiters[gate]:
                problems.append(f"{told} has {waiters[gate]} pointers that wait, and its counter says another number.")
            if gate in records and not (record.held or record.kept or waiters[gate]):
                problems.append(f"{told} is not in use, and has a record.")
        return problems

    def _rows(self, prefix: bytes) -> Iterator[KeyValue]:
        for page in pages(self._tr, *within(prefix)):
            yield from page

    def _numbers(
        self, family: str, prefix: bytes, decode: Callable[[bytes], int], problems: list[str]
    ) -> Iterator[tuple[bytes, int]]:
        layout = self._line.keys.layout
        for _, row in own_rows(layout, family, self._rows(prefix)):
            try:
                yield row.key[len(prefix) :], decoded(layout, row.key, row.value, decode)
            except FormatError as error:
                problems.append(str(error))
