"""Guards of sessions, taken out of copies of the library one by one: the tests of sessions find each."""

from __future__ import annotations

from tests.chaos.mutants import Mutant

LINE, WORKING = "layers/sessions/line/line.py", "layers/sessions/workers/working.py"
TRACKING, SESSION = "layers/sessions/line/tracking.py", "layers/sessions/session/session.py"
AHEAD = "layers/sessions/workers/read_ahead.py"
GATES = "layers/sessions/line/gates.py"
SLOTS, TURN = "layers/sessions/line/slots.py", "layers/sessions/session/lease.py"
JOINING, QUEUE = "layers/sessions/line/line_queue.py", "layers/sessions/line/line_queue.py"
_NAMES = (
    *("_bounded", "_gates_interleavings", "_gates"),
    *("_concurrency", "_concurrency_interleavings", "_results", "_groups", "_interleavings", "_fairness", "_operators"),
    *("_failures", ""),
)
TESTS = tuple(f"sessions/test_sessions{name}" for name in _NAMES)
"""Which files of tests look for them."""

MUTANTS = (
    Mutant(
        "the end of a session does not conflict with an enqueue",
        WORKING,
        (
            (
                "            session.add_conflicts_with_arrivals(tr)\n            left.is_alone",
                "            left.is_alone",
            ),
        ),
    ),
    Mutant(
        "an ack does not look for its follow-ups in the same session",
        WORKING,
        (("        if done.follow_ups:  # some may be", "        if False:  # some may be"),),
    ),
    Mutant(
        "a changed record does not conflict with enqueues",
        LINE,
        (
            (
                "pack_record(record))\n        tr.add_write_conflict_key(session.guard_key)\n",
                "pack_record(record))\n",
            ),
        ),
    ),
    Mutant(
        "a worker leaves its session though no other waits",
        WORKING,
        (("over = await self._line.others_wait(tr, now_us, turn.record)", "over = True"),),
    ),
    Mutant(
        "slots of one session are lent without a look at each other",
        LINE,
        (("            if pointer.name not in names:\n", "            if names is not None:\n"),),
        tests=("sessions/test_sessions_costs",),
    ),
    Mutant(
        "a consumer goes on though another session waits",
        AHEAD,
        (("if await others or turn is None", "if turn is None"),),
    ),
    Mutant(
        "a consumer goes on though an item was changed",
        AHEAD,
        (("return turn.pointer.edits == edits and not", "return not"),),
    ),
    Mutant(
        "a consumer goes on though a more urgent item has come",
        AHEAD,
        (("head.rows[0].key < first or ", ""),),
    ),
    Mutant(
        "the pointer of a paused session stays in the line",
        LINE,
        (
            (
                "            moves.leave_available(place, self.notes(place, bytes(value)))\n",
                "            pass\n",
            ),
        ),
    ),
    Mutant(
        "the item in progress is not noted",
        LINE,
        (
            (
                'lent = replace(pointer, current=current, since_us=now_us, edits=0, acked=b"")',
                "lent = replace(pointer, since_us=now_us)",
            ),
        ),
    ),
    Mutant(
        "an item that is available does not wake a session of delayed items",
        SLOTS,
        (
            (
                "if record.pointer and visible_at_us and not visible_at_us < record.asleep_until_us:",
                "if record.pointer:",
            ),
        ),
    ),
    Mutant(
        "an ack does not see a pause",
        TURN,
        (("recorded: Any = tr.get(session.record_key)", "recorded: Any = tr.snapshot.get(session.record_key)"),),
    ),
    Mutant(
        "an ended session keeps its counters",
        SLOTS,
        (("        tr.clear_range(*session.layout.whole_range())\n", ""),),
    ),
    Mutant(
        "a released follow-up does not wake its session",
        SLOTS,
        (("if record.asleep_until_us and await self.woken(tr, moves, record):", "if False:"),),
    ),
    Mutant(
        "a sweep removes the item in progress",
        TRACKING,
        (("if await line.slots.holder(tr, session, record, packed) is not None:", "if False:"),),
    ),
    Mutant(
        "an item that expires does not conflict with a lease of its session",
        LINE,
        (
            ("        tr.add_write_conflict_key(key)\n", ""),
            ("        tr.add_write_conflict_key(key + TAKEN)\n", ""),
        ),
    ),
    Mutant(
        "a lease does not ask for cancelled groups",
        SESSION,
        (("now_us, home=self.home)", "now_us)"),),
    ),
    Mutant(
        "a consumer does not store the results of the items before",
        WORKING,
        (("        results = {one.packed: one.result for one in done}\n", "        results = {}\n"),),
    ),
    Mutant(
        "an item is given to two slots",
        SLOTS,
        (
            (
                "        tr.add_read_conflict_key(session.conflict_key(packed))\n        tr.add_write",
                "        tr.add_write",
            ),
        ),
    ),
    Mutant(
        "a slot looks for an item without those that others hold",
        SLOTS,
        (("return frozenset(entry.current for entry in entries.values() if entry.current)", "return frozenset()"),),
    ),
    Mutant(
        "a lowered limit does not converge",
        SLOTS,
        (
            (
                "        if record.is_stopped or record.slots > record.limit:\n            moves",
                "        if record.is_stopped:\n            moves",
            ),
            (
                "record is None or record.is_stopped or record.slots > record.limit:",
                "record is None or record.is_stopped:",
            ),
        ),
    ),
    Mutant(
        "a slot goes on though there are too many",
        SLOTS,
        (("turn.is_unnumbered or record.slots > record.limit", "turn.is_unnumbered"),),
    ),
    Mutant(
        "a slot ends beside an item that comes",
        SLOTS,
        (("            session.add_conflicts_with_arrivals(tr)\n        left", "            pass\n        left"),),
    ),
    Mutant(
        "a raised limit does not see an item that comes",
        SLOTS,
        (("            session.add_conflicts_with_arrivals(tr)\n        else:", "            pass\n        else:"),),
    ),
    Mutant(
        "a gate's slot is not counted",
        GATES,
        (("held=record.held + free,", "held=record.held,"),),
    ),
    Mutant(
        "a slot is given back beside a session that begins to wait",
        GATES,
        (
            (
                "while found := await self._first(tr, gate)",
                "while found := await self._first(tr.snapshot, gate)",
            ),
        ),
    ),
    Mutant(
        "a session that goes on does not see a lowered limit",
        GATES,
        (("surplus = [tr.get(", "surplus = [tr.snapshot.get("),),
    ),
    Mutant(
        "a session keeps its slots though others wait at its gate",
        SLOTS,
        (('ends=to == "tail"', "ends=False"),),
    ),
    Mutant(
        "an item that waits for its next attempt keeps the slots of its gates",
        SLOTS,
        (
            (
                "            elif record.gates:\n                self.note(",
                "            elif False:\n                self.note(",
            ),
        ),
    ),
    Mutant(
        "a session that is ready is taken though the limit of its gate was lowered",
        SLOTS,
        (("own.stage == RESTING or await self.gates.is_over(tr, record.gates)", "own.stage == RESTING"),),
    ),
    Mutant(
        "a session that waits at a gate leaves its pointer behind",
        SLOTS,
        (("await self.gates.leave(tr, record.gates[entry.stage][0], session, entry.place)", "pass"),),
    ),
    Mutant(
        "a turn does not end for sessions that wait at its gate",
        LINE,
        (
            (
                "return record is not None and await self.slots.gates",
                "return False and await self.slots.gates",
            ),
        ),
    ),
    Mutant(
        "timers are not read again after a layer has moved items",
        "layers/leases/timers.py",
        (("if firing.stale else futures", "if False else futures"),),
    ),
    Mutant(
        "an item is lent unseen behind 500 outdated ones",
        SESSION,
        (("                head.rows, more = [], True\n", "                more = True\n"),),
    ),
    Mutant(
        "timers that can't be fired keep their session ready",
        SESSION,
        (("head.wake_at_us = now_us + UNSETTLED_US", "pass"),),
    ),
    Mutant(
        "a worker looks for no shards of a former version",
        QUEUE,
        (("        joined = await self._line.join(tr)\n", "        joined = False\n"),),
        tests=("sessions/test_sessions_joined",),
    ),
    Mutant(
        "a former version goes on with its shards",
        JOINING,
        (("JOINED = 255", "JOINED = 2"),),
        tests=("sessions/test_sessions_joined",),
    ),
    Mutant(
        "the counters of shards are lost",
        JOINING,
        (("            tr.add(key, row.value)", "            tr.set(key, row.value)"),),
        tests=("sessions/test_sessions_joined",),
    ),
)
