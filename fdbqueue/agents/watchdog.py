"""`AgentWatchdog`: runs a command for each item of a queue, and looks after what it started.

Challenge
    An agent is a program in any language. It may crash, or hang, and so may the watchdog. No item may be lost then, no
    command may be left behind, and the report must explain what happened to each item.

Keys
    None of its own. It is a consumer of leases; no server is needed.

Guarantees
    The command gets all of an item's data on its standard input, or is not started: the data are in a file by then.
    Exit code 0 confirms the item; anything else gives it back by the policy of the leases. After its last attempt it is
    a dead letter, with the end of the command's standard error.

    A command that takes longer than its lock is ended, with all processes of its group, before its item is given back.
    If the watchdog itself is killed, its guard kills the commands at once, and the items come back when their leases
    are over, after 30 seconds at most. The guard is a small shell process that waits for the end of its standard input.

Limits
    At least once: a command that succeeded runs again if the watchdog is killed before the commit of the ack. A process
    that leaves the command's process group is not ended.

Source
    The SCS Agent Queue protocol 0.01: "Watchdog Agent checks what is going on and tries to fix it, for example by
    restarting the crashed agent; the message is unlocked for processing."
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import IO, Any, Literal, TypeAlias, TypeVar

import msgspec

from fdbqueue.agents.processes import Pipe, Process, ProcessGuard, StandardError, ends_within, signal_group, start
from fdbqueue.base.position import Position
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT, FDBError
from fdbqueue.errors import FdbQueueError, LeaseLost
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.common.composing import QueueWithLeases
from fdbqueue.layers.common.handlers import call_back, item_fields, not_awaited
from fdbqueue.layers.common.waiting import Stop
from fdbqueue.layers.consumer import ACKED, Consumer, Snooze
from fdbqueue.layers.leases import Backoff, Disposition, Lease, Leases, exponential
from fdbqueue.layers.leases.lease import not_negative, positive
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.subscriptions import Subscription
from fdbqueue.lowlevel import Database, Steps, only_database, run_async, verb
from fdbqueue.stored.policies import Policy

T = TypeVar("T")
What: TypeAlias = Literal["started", "confirmed", "failed", "killed", "returned", "lost"]

LEASE_SECONDS = 30.0
"""The longest lease of an item. It is extended while its command runs, and ends so long after the watchdog's death."""
TERM_SECONDS = 5.0
"""How long a command that is asked to end may take before it is killed."""
NOT_STARTED = (126, 127)
"""A shell's exit codes for a command that can't be started."""

RESTART = exponential(first=0.1, longest=10.0)
"""The usual wait before the next command, after so many failures in a row."""

_log = logging.getLogger("fdbqueue.agents")


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """What happened to one item."""

    what: What
    """The command was started; it succeeded, and the item is confirmed; it failed; it took longer than its lock; the
    item was given back without counting an attempt; or its lease was lost to another consumer."""
    item: Position
    attempt: int
    """The attempt number, starting at 1."""
    why: str = ""
    """Why, as a sentence; for "started", why the attempt before failed."""
    fate: Disposition | None = None
    """Where the item is now, if this attempt failed."""
    pid: int | None = None
    """The command's process."""
    seconds: float = 0.0
    """How long the command ran."""


@dataclass(slots=True)
class AgentReport:
    """The report of a watchdog so far."""

    started: int = 0
    """Commands that were started."""
    confirmed: int = 0
    """Items whose command succeeded, and that have left the queue."""
    failed: int = 0
    """Attempts whose command failed."""
    killed: int = 0
    """Attempts whose command took longer than its lock."""
    dead: int = 0
    """Failed and killed attempts that were the last ones of their items."""
    returned: int = 0
    """Items that were given back without counting an attempt."""
    lost: int = 0
    """Items that another consumer took meanwhile."""

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name):,} {field.name}" for field in fields(self))


class AgentWatchdog:
    """Runs a command for each item: the item's data are its standard input, and exit code 0 confirms the item.

    The command finds FDBQUEUE_ITEM, FDBQUEUE_ATTEMPT, FDBQUEUE_SIZE, FDBQUEUE_ERROR (of the attempt before) and
    FDBQUEUE_HEADERS (JSON) in its environment, and the trace in the item's headers as TRACEPARENT and TRACESTATE. Its
    output and its standard error go to the standard error of this process. Its verbs make their own transactions: they
    take a database and refuse a transaction.

    Args:
        source: leases items for the commands, as for a `Consumer`. Its policy decides what happens to items whose
            command fails.
        command: the program and its arguments, as `subprocess.run` takes them; no shell.
        processes: how many commands run at once.
        lock: how many seconds a command may take. After that it gets SIGTERM, and SIGKILL five seconds later.
        grace: how many seconds running commands have to end after `stop`. After that they are killed, and their items
            are given back.
        backoff: the wait before the next command after so many failures in a row; see `fdbqueue.layers.leases`. Items
            wait by the policy of the leases.
        consumer: the consumer's name in its leases; host name and process id by default.
        signals: whether blocking `run` and `drain` stop at SIGTERM and SIGINT, as for a `Consumer`.
        on_event: called with each `AgentEvent`. Its exceptions are logged.

    Raises:
        TypeError, ValueError: an argument is wrong.

    >>> import fdbqueue
    >>> from fdbqueue.layers import Leases
    >>> leases = Leases(fdbqueue.Queue(("agents", 5)), max_attempts=1)
    >>> with fdbqueue.open("memory:") as db:
    ...     report = leases.enqueue_many(db, [b"fine", b"bad"])
    ...     print(AgentWatchdog(leases, ["grep", "-q", "fine"]).drain(db))
    ...     [dead.error for dead in leases.dead.browse(db)]
    2 started, 1 confirmed, 1 failed, 0 killed, 1 dead, 0 returned, 0 lost
    ['The command ended with exit code 1.']
    """

    def __init__(
        self,
        source: Leases | QueueWithLeases | Subscription,
        command: Sequence[str],
        *,
        processes: int = 1,
        lock: float = 30.0,
        grace: float = 30.0,
        backoff: Backoff = RESTART,
        consumer: str | None = None,
        signals: bool = True,
        on_event: Callable[[AgentEvent], object] | None = None,
    ) -> None:
        self.command = _checked(command)
        positive(lock, "lock")
        not_negative(grace, "grace")
        if type(processes) is not int or processes < 1:
            raise ValueError(f"processes is how many commands run at once, at least 1, not {processes!r}.")
        if not callable(backoff):
            raise TypeError(f"backoff is a function, as exponential(first=0.1) makes one, not {backoff!r}.")
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event is called with each event, and {on_event!r} can't be.")
        not_awaited(on_event, "on_event")
        self.report = AgentReport()
        self._lock = lock
        self._backoff = backoff
        self._on_event = on_event
        self._consumer = _StoppingConsumer(
            source,
            self._handle,
            concurrency=processes,
            duration=min(max(lock, TERM_SECONDS), LEASE_SECONDS),
            prefetch=0,
            grace=grace,
            consumer=consumer,
            signals=signals,
        )
        own = self._consumer.source
        if isinstance(own, Sessions):
            raise TypeError(
                "AgentWatchdog takes Leases, or a Subscription, not Sessions. Use Consumer(sessions, handler) with a"
                " handler that runs the command."
            )
        self.leases: Leases = own if isinstance(own, Leases) else own.leases
        self._blobs = Blobs(self.leases)
        self.guard = ProcessGuard()
        self._failures = 0
        self._db: Any = None

    def __repr__(self) -> str:
        return f"AgentWatchdog({self._consumer.source!r}, {list(self.command)!r})"

    @verb
    async def run(self, db: Database) -> AgentReport:
        """Run the command for each item, and wait for more, until `stop` is called.

        Signals, cancellation and errors are those of `Consumer.run`.

        Raises:
            ValueError: there is no such command.
        """
        return await self._run(db, self._consumer.run.steps)

    @verb
    async def drain(self, db: Database) -> AgentReport:
        """Run the command for each item until none is available, otherwise like `run`. Delayed items stay."""
        return await self._run(db, self._consumer.drain.steps)

    def stop(self) -> None:
        """End gracefully: start no command, and give the running ones their grace. Call it from any thread."""
        self._consumer.stop()

    async def _run(self, db: Database, run: Callable[[Database], Steps[Any]]) -> AgentReport:
        only_database(db, "An AgentWatchdog", "In a transaction use Leases.lease(tr).")
        if not self.can_start():
            raise ValueError(f"There is no command {self.command[0]!r} that could be started.")
        self._db = db
        try:
            await run(db)
        finally:
            self.guard.close()
        return self.report

    async def _handle(self, lease: Lease) -> object:
        """Run the command for one item, and settle the item."""
        wait = Policy(None, self._backoff).delay_us_in_any_case(self._failures) / 1e6 if self._failures else 0.0
        if self._failures and await self._consumer.rests(wait):
            self._tell("returned", lease, "The watchdog stopped.")
            raise Snooze(0.0)
        if self._failures and not await self._consumer.may_begin():
            self._tell("returned", lease, "The queue is paused, or another consumer's now.")
            raise Snooze(0.0)
        try:
            with tempfile.TemporaryFile() as data:
                size = await self._copy(lease, data)
                outcome = await self._command(lease, data, size)
        except LeaseLost as error:
            self._tell("lost", lease, str(error))
            return ACKED
        except OSError as error:  # no room for the data or for a process: the item is not at fault
            await self._put_off(lease, f"The command could not be started: {error}.")
            return ACKED
        except FdbQueueError as error:
            outcome = _CommandEnd("failed", f"The data could not be read: {error}")
        except asyncio.CancelledError:
            self._tell("returned", lease, "The watchdog stopped.")
            raise
        await self._settle(lease, outcome)
        return ACKED

    async def _copy(self, lease: Lease, data: IO[bytes]) -> int:
        """Write an item's data to a file, and return its size."""
        if isinstance(lease.value, bytes):
            data.write(lease.value)
        else:
            async for piece in self._blobs.read(self._db, lease):
                data.write(piece)
        size = data.tell()
        data.seek(0)
        return size

    async def _command(self, lease: Lease, data: IO[bytes], size: int) -> _CommandEnd:
        """Run the command to its end, at most for its lock. No process of its group is left when this returns."""
        with Pipe() as gate, Pipe() as errors:
            process = start(self.command, data, gate, errors, _environment(lease, size))
            return await self._to_its_end(lease, process, gate, errors)

    async def _to_its_end(self, lease: Lease, process: Process, gate: Pipe, errors: Pipe) -> _CommandEnd:
        began = time.monotonic()
        end = StandardError(errors)
        try:
            self.guard.add(process.pid)
            # The shell waits for this line: the guard knows the process before the command begins.
            os.write(gate.write_end, b"go\n")
            self._tell("started", lease, lease.error, pid=process.pid)
            in_time = await ends_within(process, self._lock)
            if not in_time:
                signal_group(process.pid, signal.SIGTERM)
                await ends_within(process, TERM_SECONDS)
        finally:
            # Also what the command left behind, unless it succeeded.
            if process.returncode != 0:
                signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            self.guard.remove(process.pid)
            tail = end.text()
        seconds = time.monotonic() - began
        if not in_time:
            why = f"The command took longer than its lock of {self._lock:g} seconds and was killed."
            return _CommandEnd("killed", why + tail, process.pid, seconds, process.returncode)
        if process.returncode == 0:
            return _CommandEnd("confirmed", "", process.pid, seconds, 0)
        return _CommandEnd("failed", _told(process.returncode) + tail, process.pid, seconds, process.returncode)

    async def _settle(self, lease: Lease, outcome: _CommandEnd) -> None:
        """Ack the item, or give it back."""
        if outcome.what == "failed" and outcome.code in NOT_STARTED and not self.can_start():
            await self._put_off(lease, f"The command {self.command[0]!r} is gone.{outcome.why}")
            return
        terms: dict[str, Any] = {"pid": outcome.pid, "seconds": outcome.seconds}
        try:
            if outcome.what == "confirmed":
                await _patiently(lambda: self.leases.ack.aio(self._db, lease))
                self._tell("confirmed", lease, **terms)
                self._failures = 0
                return
            fate = await _patiently(lambda: self.leases.nack.aio(self._db, lease, error=outcome.why))
        except LeaseLost as error:
            self._tell("lost", lease, str(error), **terms)
            return
        self._failures += 1
        self.report.dead += fate is Disposition.dead
        self._tell(outcome.what, lease, outcome.why, fate=fate, **terms)

    async def _put_off(self, lease: Lease, why: str) -> None:
        """Give an item back whose command could not be started. That is no attempt."""
        with contextlib.suppress(LeaseLost):
            await _patiently(lambda: self.leases.snooze.aio(self._db, lease, delay=1.0))
        self._failures += 1
        self._tell("returned", lease, why)

    def can_start(self) -> bool:
        return shutil.which(self.command[0]) is not None

    def _tell(self, what: What, lease: Lease, why: str = "", **terms: Any) -> None:
        setattr(self.report, what, getattr(self.report, what) + 1)
        event = AgentEvent(what, lease.position, lease.attempt, why, **terms)
        if self._on_event is None:
            extra = item_fields(self.leases.queue, lease)
            _log.log(
                logging.WARNING if what in ("failed", "killed", "lost") else logging.DEBUG, "%s", event, extra=extra
            )
            return
        try:
            call_back(self._on_event, event)
        except Exception:  # noqa: BLE001 - whatever it raises must not keep items from being settled
            _log.exception("The function for events of %r failed for %s.", self, event)


@dataclass(frozen=True, slots=True)
class _CommandEnd:
    """How a command ended."""

    what: Literal["confirmed", "failed", "killed"]
    why: str
    pid: int | None = None
    seconds: float = 0.0
    code: int | None = None


class _StoppingConsumer(Consumer):
    """A consumer whose handlers can rest until it is stopped."""

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self._rest = Stop()

    def stop(self) -> None:
        super().stop()
        self._rest.ask()

    async def may_begin(self) -> bool:
        """Return whether a handler that has rested may begin its work."""
        run = self._run
        try:
            return run is not None and await run.handling.may_begin()
        except FdbQueueError:
            return False  # the run meets the same error, and ends with it

    async def rests(self, seconds: float) -> bool:
        """Wait so many seconds, or until this consumer is stopped. Return whether it is stopped."""
        await run_async(self._rest.rest([], seconds))
        return self._rest.asked


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call of the database again while it times out. The lease ends the repetition: then the call raises."""
    while True:
        try:
            return await call()
        except FDBError as error:
            if error.code != TRANSACTION_TIMED_OUT:
                raise
            _log.warning("The database did not answer in time. The watchdog tries again.")


def _told(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"The command was ended by {signal.Signals(-code).name}."
    return f"The command ended with exit code {code}."


def _environment(lease: Lease, size: int) -> dict[str, str]:
    own = {
        "ITEM": lease.position.text,
        "ATTEMPT": str(lease.attempt),
        "SIZE": str(size),
        "ERROR": lease.error.replace("\0", ""),
        "HEADERS": msgspec.json.encode(dict(lease.headers), enc_hook=str).decode().replace("\0", ""),
    }
    carried = {name.upper(): lease.headers.get(name) for name in ("traceparent", "tracestate")}
    traced = {name: text for name, text in carried.items() if isinstance(text, str) and "\0" not in text}
    return {**os.environ, **traced, **{f"FDBQUEUE_{name}": text for name, text in own.items()}}


def _checked(command: object) -> tuple[str, ...]:
    if isinstance(command, str | bytes) or not isinstance(command, Sequence):
        raise TypeError(f"A command is a list of a program and its arguments, as in ['grep', 'x'], not {command!r}.")
    words = tuple(command)
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        raise ValueError(f"A command is a program and its arguments, all of them texts, not {list(words)!r}.")
    return words
