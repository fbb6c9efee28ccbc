"""Tasks and schedules without one of their guards: their tests notice each."""

from __future__ import annotations

from tests.chaos.mutants import Mutant

LANE = "layers/tasks/_lane.py"
RUNNING = "layers/tasks/_running.py"
ARGUMENTS = "layers/tasks/_arguments.py"
TASKS = "layers/tasks/_tasks.py"
TASK = "layers/tasks/_task.py"
SCHEDULES = "layers/schedules/schedules.py"
BUCKET = "layers/middleware/token_bucket.py"
HANDLERS = "layers/common/handlers.py"
CONSUMER = "layers/consumer/_handling.py"

MUTANTS = (
    Mutant(
        "an enqueue does not conflict with one of an equal call",
        LANE,
        (("rows(tr, span.begin, span.end)", "rows(tr.snapshot, span.begin, span.end)"),),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "the end of a unique call is not noted",
        LANE,
        (("        await mark(tr, at.layout, at.packed, delayed=delayed, beside=(part,))\n", ""),),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "a call that was started keeps out others",
        LANE,
        (('if not found or found[0].state == "leased":', "if not found:"),),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "a period does not end",
        LANE,
        (("if self.leases.now_us() < record.until_us:", "if record:"),),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "the end of a period that began again is that of the first one",
        LANE,
        (
            (
                ("                OutcomeRecord.remove(tr, home, packed, OutcomeRecord.read(home, key, bytes(noted))"
                ".until_us)\n"),
                "                pass\n",
            ),
        ),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "two workers move a schedule without a conflict",
        SCHEDULES,
        (
            (
                "stored = await value_of(tr.get(self._key(plan.name)))",
                "stored = await value_of(tr.snapshot.get(self._key(plan.name)))",
            ),
        ),
        tests=("tasks/test_schedules",),
    ),
    Mutant(
        "a schedule moves in a transaction of its own",
        SCHEDULES,
        (
            ("        tr.set(self._key(plan.name), _encode(moved))\n", "        self._later = moved\n"),
            (
                "record = await self.queue.transact(db, partial(self._fire, plan=plan))\n",
                ("record = await self.queue.transact(db, partial(self._fire, plan=plan))\n"
                "                if hasattr(self, '_later'):\n"
                "                    db[self._key(plan.name)] = _encode(self.__dict__.pop('_later'))\n"),
            ),
        ),
        tests=("tasks/test_schedules",),
    ),
    Mutant(
        "a worker follows its own rule",
        SCHEDULES,
        (("        times = record.rule.times\n", "        times = record.code.times\n"),),
        tests=("tasks/test_schedules",),
    ),
    Mutant(
        "an operator's change comes before ticks that were enqueued already",
        SCHEDULES,
        (("after_us = max(self._now_us(), record.last_us)", "after_us = self._now_us()"),),
        tests=("tasks/test_schedules", "tasks/test_schedules_model"),
    ),
    Mutant(
        "each start undoes what an operator has changed",
        SCHEDULES,
        (("if was is None or was.code != plan.rule:", "if was is None or was.rule != plan.rule:"),),
        tests=("tasks/test_schedules",),
    ),
    Mutant(
        "a time that the clock repeats is a tick of its second hour",
        "layers/schedules/schedules.py",
        (("if tick > at_us), NEVER_US)", "if tick), NEVER_US)"),),
        tests=("tasks/test_ticks",),
    ),
    Mutant(
        "a task is not known by its aliases",
        TASKS,
        (("self.tasks |= dict.fromkeys((options.name, *options.aliases), task)", "self.tasks[options.name] = task"),),
        tests=("tasks/test_versions",),
    ),
    Mutant(
        "two tasks have one name",
        TASKS,
        (("            if name in self.tasks:\n", "            if name == 0:\n"),),
        tests=("tasks/test_refusals",),
    ),
    Mutant(
        "arguments that do not fit are not a dead letter",
        RUNNING,
        (
            (
                "if lease.attempt > retries:\n                raise GiveUp(told)",
                "if not told:\n                raise GiveUp(told)",
            ),
        ),
        tests=("tasks/test_versions",),
    ),
    Mutant(
        "what follows may be unknown when a task begins",
        RUNNING,
        (("                self._check_following(one)  # before it has any effect\n", "                pass\n"),),
        tests=("tasks/test_results",),
    ),
    Mutant(
        "a call that kills its workers is tried for ever",
        RUNNING,
        (("if lease.attempt > retries + 1:", "if lease.attempt < 0:"),),
        tests=("tasks/test_attempts",),
    ),
    Mutant(
        "an error around a task fails the attempt by the consumer's own policy",
        CONSUMER,
        (("        if self._consequence is not None and not isinstance(", "        if False and not isinstance("),),
        tests=("tasks/test_attempts",),
    ),
    Mutant(
        "a call that its last transaction has ended is acked again",
        RUNNING,
        (("done = ACKED if running.acked else running.done(", "done = running.done("),),
        tests=("tasks/test_running",),
    ),
    Mutant(
        "a body is committed without the ack",
        RUNNING,
        (("        await self.lane.holder.ack.steps(tr, self.lease, result=self.done(result))\n", ""),),
        tests=("tasks/test_running",),
    ),
    Mutant(
        "a rate is taken though another one is empty",
        BUCKET,
        (("                raise Empty(number, wait)  # it rolls back", "                return  # it rolls back"),),
        tests=("tasks/test_limits",),
    ),
    Mutant(
        "a full bucket is cleared beside a take of it",
        BUCKET,
        (("                tr.add_read_conflict_key(row.key)", "                pass"),),
        tests=("common/test_token_bucket",),
    ),
    Mutant(
        "buckets of many names stay for ever",
        BUCKET,
        (("            await self._clear_full(tr, now_us)\n", "            pass\n"),),
        tests=("common/test_token_bucket",),
    ),
    Mutant(
        "a limit is that of each call",
        TASK,
        (("            (one.limit, \"\" if one.by is None else short_key_of(one.by, self.arguments, call.bound))\n",
          "            (one.limit, secrets.token_hex(8))\n"),),
        tests=("tasks/test_limits",),
    ),
    Mutant(
        "equal calls with a limit are in two sessions",
        TASK,
        (("secrets.token_hex(8) if own is None else own.key", "secrets.token_hex(8)"),),
        tests=("tasks/test_unique",),
    ),
    Mutant(
        "what comes back as another value is stored",
        ARGUMENTS,
        (("if (found := getattr(back, name)) != value:", "if (found := getattr(back, name)) is value is None:"),),
        tests=("tasks/test_arguments",),
    ),
    Mutant(
        "arguments that are unknown are left out",
        ARGUMENTS,
        (("kw_only=True, forbid_unknown_fields=True", "kw_only=True"),),
        tests=("tasks/test_arguments",),
    ),
    Mutant(
        "a call waits for a thread that never comes free",
        HANDLERS,
        (("                raise Snooze(STUCK_SECONDS)\n", "                pass\n"),),
        tests=("tasks/test_attempts",),
    ),
)  # fmt: skip
