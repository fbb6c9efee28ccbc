"""``fdbqueue worker``: runs the tasks of a program, in one process or several."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import logging
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

import fdbqueue
from fdbqueue.base.arguments import host_and_port
from fdbqueue.cli.errors import ENGINE, USAGE, end_if, refuse, system_errors, tell
from fdbqueue.cli.input import encode_json
from fdbqueue.cli.opening import opened
from fdbqueue.cli.serving import check_free, listening, metrics_server
from fdbqueue.layers.consumer.health import FILE, Probe
from fdbqueue.layers.tasks import Tasks, Worker

if TYPE_CHECKING:
    from fdbqueue.observe.serving import MetricsServer


LOOK_SECONDS = 0.5
"""How often changed files are looked for."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
"""The waits before a process that died is started again double from the one to the other."""
HEALTHY_SECONDS = 10.0
"""A process that lived for so long is started again after the shortest wait."""
REFUSALS = (USAGE, ENGINE)
"""How the first process ends if its arguments or its database are wrong."""
REFUSED_SECONDS = 60.0
"""By when it has ended so, on a machine however busy."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(slots=True)
class Child:
    """One process, or the place of one that died."""

    number: int
    process: subprocess.Popen[bytes]
    began: float
    wait: float = FIRST_WAIT_SECONDS
    first: bool = True
    """Whether it is the first process in this place."""
    again_at: float | None = None
    """When it is started again, if it has ended by then; None: it runs."""


class Supervisor:
    """Processes that run the same command.

    Args:
        arguments: the arguments of ``fdbqueue``, to which the number of each process is added, from 0 on.
        number: how many processes.
        watched: the folder whose Python files start them again when they change; None: none does.
    """

    def __init__(self, arguments: list[str], number: int, *, watched: str | None = None) -> None:
        self._command = [sys.executable, "-m", "fdbqueue", *arguments]
        self._number = number
        self._watched = watched
        self._files = dict(self._times())
        self._children: list[Child] = []
        self._stops = 0
        self._told = 0
        self._refused = 0
        """The exit code of the process that could not begin."""

    def run(self) -> int:
        """Run the processes until SIGTERM or SIGINT. Return the exit code."""
        awake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heard}
        wakeup = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        try:
            self._children = [Child(one, self._start(one), time.monotonic()) for one in range(self._number)]
            while self._look():
                select.select([awake], [], [], self._seconds())
                if select.select([awake], [], [], 0)[0]:
                    os.read(awake, 1_000)
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self._children:
                if child.process.poll() is None:
                    child.process.kill()
                    child.process.wait()
            os.close(awake)
            os.close(wakes)
        if self._refused:
            return self._refused
        ran = [child.process.returncode for child in self._children if child.again_at is None]
        return int(any(code not in self._clean for code in ran))

    @property
    def _clean(self) -> tuple[int, ...]:
        """How a process ends that was told to: also by the signal, if it had no handler yet."""
        return (0, -signal.SIGTERM) if self._stops else (0,)

    def _note(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self._stops += 1

    def _look(self) -> bool:
        """Do what there is to do now. Return whether a process runs, or will."""
        now = time.monotonic()
        if self._told < self._stops:
            self._told = self._stops
            self._end()
        elif not self._stops and self._changed():
            tell("A file has changed: the workers start again.")
            self._end()
            for child in self._children:
                child.wait, child.again_at = FIRST_WAIT_SECONDS, now
        for child in self._children:
            code = child.process.poll()
            if code is None or self._stops:
                continue
            if child.again_at is None:
                if child.first and code in REFUSALS and self._watched is None and now - child.began < REFUSED_SECONDS:
                    # It has told why, and another one would tell the same.
                    self._refused, self._stops, self._told = code, 1, 1
                    self._end()
                    break
                if now - child.began > HEALTHY_SECONDS:
                    child.wait = FIRST_WAIT_SECONDS
                child.again_at = now + child.wait
                child.wait = min(LONGEST_WAIT_SECONDS, child.wait * 2)
                told = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
                tell(f"The worker {child.process.pid} {told}. Another one starts soon.")
            elif now >= child.again_at:
                child.process, child.began, child.again_at = self._start(child.number), now, None
                child.first = False
        return not self._stops or any(child.process.poll() is None for child in self._children)

    def _seconds(self) -> float | None:
        dead = [child.again_at for child in self._children if child.process.poll() is not None]
        due = [again_at - time.monotonic() for again_at in dead if again_at is not None]
        if self._watched is not None:
            due.append(LOOK_SECONDS)
        return None if self._stops or not due else max(0.0, min(due))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        # Its standard input ends when this process dies. A terminal's signals go to this process only.
        return subprocess.Popen([*self._command, "--child", str(number)], stdin=subprocess.PIPE, start_new_session=True)

    def _end(self) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()

    def _changed(self) -> bool:
        if self._watched is None:
            return False
        before, self._files = self._files, dict(self._times())
        return before != self._files

    def _times(self) -> Iterator[tuple[str, float]]:
        for path in Path(self._watched).rglob("*.py") if self._watched is not None else ():
            try:
                yield str(path), path.stat().st_mtime
            except OSError:
                continue  # it was just removed


FIELDS = ("task", "item", "attempt", "seconds")


def worker(
    app: str,
    processes: int = 1,
    concurrency: int = 16,
    queues: str | None = None,
    grace: float = 30.0,
    reload: bool = False,
    health: str | None = None,
    metrics: str | None = None,
    url: str | None = None,
    as_json: bool = False,
    child: int | None = None,
) -> None:
    """Run the tasks of a program until SIGTERM or Ctrl-C, and enqueue the ticks of its schedules.

    The module is looked for in the present folder first. Prints a line for each attempt of a task, as JSON with --json.
    A signal ends it gracefully: no task begins, running tasks have --grace seconds, and what they can't finish goes
    back to the queue. A second signal ends it at once. It starts the processes that run the tasks, and starts one that
    dies again, after 1 to 30 seconds.

    Each of several processes has its own --health and --metrics: the first one as given, the next ones at the next
    ports, or in the files PATH.1, PATH.2 and so on.

    Args:
        app (argument, MODULE:APP): The Tasks: a module, and its name there.
        processes (-p, min=1): How many processes run tasks.
        concurrency (-c, min=1): How many tasks run at once in each process.
        queues (-q, NAME,NAME): Only these queues. Default: all.
        grace (min=0): Seconds that running tasks have to end after a signal.
        reload: Start again when a Python file below this folder changes.
        health (WHERE): Say there whether it is alive: file:PATH, PORT or HOST:PORT.
        metrics (HOST:PORT): Serve its figures there to Prometheus.
        child (hidden): Which of the processes this is.

    Example: fdbqueue worker shop.tasks:app --processes 4
    """
    sys.path.insert(0, os.getcwd())
    named = None if queues is None else [name for name in queues.split(",") if name]
    terms: dict[str, Any] = {"queues": named, "concurrency": concurrency, "grace": grace}
    number = processes - 1 if child is None else child  # if the first and the last can have a place, all can
    _probed(health, 0)
    terms |= {"health": _probed(health, number), "metrics": _served(metrics, number)}
    for one in range(processes) if child is None else [child]:
        _check_free(health, metrics, one)
    if child is None:
        options = ["--concurrency", str(concurrency), "--grace", str(grace)] + (["--json"] if as_json else [])
        for option, value in (("queues", queues), ("url", url), ("health", health), ("metrics", metrics)):
            options += [] if value is None else [f"--{option}", value]
        if not reload:
            Worker(found(app), **terms)  # a mistake is told once
        code = Supervisor(["worker", app, *options], processes, watched=os.getcwd() if reload else None).run()
        end_if(code, code)
        return
    working = Worker(found(app), **terms)
    set_up_log(as_json=as_json)
    threading.Thread(target=_end_with_parent, name="fdbqueue-parent", daemon=True).start()
    with system_errors(), opened(url, create=True) as db:
        db.options.set_transaction_timeout(0)  # a worker waits for a database that does not answer
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the worker takes it, to end gracefully
        report = working.run(db)
    logging.getLogger("fdbqueue.layers.tasks").info("Stopped: %s.", report)


def found(name: str) -> Tasks:
    """Return the `Tasks` that ``module:name`` names.

    Raises:
        BadParameter: there are none.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        refuse(f"{name!r} is not MODULE:APP, as shop.tasks:app", "MODULE:APP")
    try:
        app: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            refuse(f"there is no module {error.name!r} here", "MODULE:APP")
        for line in _why_not_imported(module, error):
            tell(line)
        raise typer.Exit(USAGE) from error
    for part in attribute.split("."):
        if not hasattr(app, part):
            near = difflib.get_close_matches(part, [one for one in dir(app) if not one.startswith("_")], n=1)
            meant = f": perhaps you mean {near[0]!r}" if near else ""
            refuse(f"{module} has no {part!r}{meant}", "MODULE:APP")
        app = getattr(app, part)
    if not isinstance(app, Tasks):
        refuse(f"{attribute!r} of {module} is {app!r}, and not Tasks", "MODULE:APP")
    return app


def _why_not_imported(module: str, error: Exception) -> Iterator[str]:
    """Yield a sentence with the file, the line and the error, and then the lines of the user's own code."""
    not_theirs = ("<", f"{Path(fdbqueue.__file__).parent}{os.sep}", importlib.__file__)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(not_theirs)]
    own = [one for one in frames if not one.filename.startswith(tuple(installed))] or frames
    where = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
    shown = traceback.format_list(own)
    first, *rest = (str(error) or "no reason is given").splitlines()
    if isinstance(error, SyntaxError):
        where, first = f"{error.filename}, line {error.lineno}: ", error.msg
        shown += traceback.format_exception_only(error)[:-1]
    yield f"Error: {module} can't be imported: {where}{type(error).__name__}: {first}"
    yield from rest
    yield from "".join(shown).splitlines()


def _check_free(health: str | None, metrics: str | None, number: int) -> None:
    """End the command with a sentence if another program has a port that one of several processes needs."""
    if metrics is not None and (server := _served(metrics, number)) is not None:
        with listening("metrics", server.address, "--metrics"):
            check_free(*(host_and_port(server.address) or ("", 0)))
    if health is not None and not (probe := Probe(_probed(health, number))).path:
        with listening("health", f"{probe.host}:{probe.port}", "--health"):
            check_free(probe.host, probe.port)


def _probed(where: str | None, number: int) -> str | int | None:
    """Return where one of several processes says whether it is alive: the first one, 0, as given.

    Raises:
        BadParameter: probes can't find it there.
    """
    if where is None:
        return None
    own = _numbered(where, number)
    given = int(own) if own.isascii() and own.isdigit() else own
    try:
        Probe(given)
    except ValueError as error:
        refuse(str(error), "--health")
    return given


def _served(where: str | None, number: int) -> MetricsServer | None:
    """Return what serves the figures of one of several processes; otherwise as `_probed`."""
    return None if where is None else metrics_server(_numbered(where, number))


def _numbered(where: str, number: int) -> str:
    if where.startswith(FILE):
        return f"{where}.{number}" if number else where
    host, colon, port = where.rpartition(":")
    return f"{host}{colon}{int(port) + number}" if port.isascii() and port.isdigit() and int(port) else where


def _end_with_parent() -> None:
    """Stop this process when the one that started it has died: then its standard input ends."""
    while os.read(0, 1_000):  # a buffered read would hold a lock that the end of the interpreter needs
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class _Lines(logging.Formatter):
    """A line for each record, or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(message)s")
        self._as_json = as_json
        self._second, self._text = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record. Its text but for the milliseconds is made once a second."""
        if (second := int(record.created)) != self._second:
            self._second, self._text = second, time.strftime(self.default_time_format, time.localtime(second))
        return f"{self._text},{record.msecs:03.0f}"

    def format(self, record: logging.LogRecord) -> str:
        if not self._as_json:
            return super().format(record)
        fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        shown = {"at": record.created, "process": record.process, "level": record.levelname.lower()}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return encode_json({**shown, "message": record.getMessage(), **fields})


class _ToOutput(logging.StreamHandler[TextIO]):
    """Writes lines to the standard output: those of one turn of the event loop at once.

    A write lets other threads run first. One for each line would take longer than a short task.
    """

    _writes_in: asyncio.AbstractEventLoop | None = None
    """The event loop that will write."""

    def flush(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another thread, or the worker has ended
            self._write()
            return
        if self._writes_in is not loop:
            self._writes_in = loop
            loop.call_soon(self._write)

    def _write(self) -> None:
        self._writes_in = None
        try:
            super().flush()
        except (OSError, ValueError):
            self.handleError(logging.makeLogRecord({"msg": "lines that a worker prints"}))


def set_up_log(*, as_json: bool) -> None:
    handler = _ToOutput(sys.stdout)
    handler.setFormatter(_Lines(as_json=as_json))
    log = logging.getLogger("fdbqueue")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
