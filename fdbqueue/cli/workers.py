"""Processes of one command: start them, start them again if they die, and stop them together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from fdbqueue.cli.errors import ENGINE, USAGE

LOOK_SECONDS = 0.5
"""How often changed files are looked for."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
"""The waits before a process that died is started again double from the one to the other."""
HEALTHY_SECONDS = 10.0
"""A process that lived for so long is started again after the shortest wait."""
REFUSALS = (USAGE, ENGINE)
"""How the first process ends if its arguments or its database are wrong."""
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

    def _note(self, number: int, _: Any) -> None:
        if number != signal.SIGCHLD:
            self._stops += 1

    def _look(self) -> bool:
        """Do what there is to do now. Return whether a process runs, or will."""
        now = time.monotonic()
        if self._told < self._stops:
            self._told = self._stops
            self._end()
        elif not self._stops and self._changed():
            typer.echo("A file has changed: the workers start again.", err=True)
            self._end()
            for child in self._children:
                child.wait, child.again_at = FIRST_WAIT_SECONDS, now
        for child in self._children:
            code = child.process.poll()
            if code is None or self._stops:
                continue
            if child.again_at is None:
                if child.first and code in REFUSALS and self._watched is None and now - child.began < HEALTHY_SECONDS:
                    # It has told why, and another one would tell the same.
                    self._refused, self._stops, self._told = code, 1, 1
                    self._end()
                    break
                if now - child.began > HEALTHY_SECONDS:
                    child.wait = FIRST_WAIT_SECONDS
                child.again_at = now + child.wait
                child.wait = min(LONGEST_WAIT_SECONDS, child.wait * 2)
                told = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
                typer.echo(f"The worker {child.process.pid} {told}. Another one starts soon.", err=True)
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
