"""The processes of a watchdog's commands: their start, their standard error, their end, and their guard."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import IO

STDERR_BYTES = 1_000
"""The size of the kept end of a command's standard error."""
READS = 64
"""The most pieces of standard error that are read after the command's end; together more than a pipe holds."""
GUARD_SECONDS = 2.0
"""How long the guard may take to end."""
_DATA = 3
_START = f'read -r go && exec "$@" <&{_DATA} {_DATA}<&-'
_GUARD = (
    'trap "" HUP INT TERM; live=" "; while read -r what pid; do case $what in'
    ' add) live="$live$pid ";; *) live="${live%% $pid *} ${live#* $pid }";; esac; done;'
    " for pid in $live; do kill -9 -$pid; done"
)


def start(command: Sequence[str], data: IO[bytes], gate: Pipe, errors: Pipe, environment: dict[str, str]) -> Process:
    """Start a shell that waits for a line from the gate, and then becomes the command.

    The command reads `data`, which is a whole file. If it read from a pipe, it would take the watchdog's death for the
    end of its data. Its output goes to the standard error of this process.

    `subprocess` would give the shell the file under this process's number for it. A POSIX shell can only close numbers
    of one digit, so the command would inherit it.
    """
    with _copies(errors.write_end, gate.read_end, data.fileno()) as (error, go, file):
        given = ((2, 1), (error, 2), (go, 0), (file, _DATA))
        pid = os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", _START, "sh", *command],
            environment,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, source, target) for source, target in given),
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these, and a command inherits that
        )
    return Process(pid)


@contextlib.contextmanager
def _copies(*fds: int) -> Iterator[tuple[int, ...]]:
    """Yield copies whose numbers are none that a command has, and close them."""
    with contextlib.ExitStack() as stack:
        copies = []
        for fd in fds:
            copies.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _DATA + 1))
            stack.callback(os.close, copies[-1])
        yield tuple(copies)


def _inheritable() -> Iterator[int]:
    """Yield the other descriptors that a command would inherit. Python opens none, but a C library or a shell may."""
    for name in os.listdir("/dev/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):  # that of this listing is closed
            if fd > _DATA and os.get_inheritable(fd):
                yield fd


class Process:
    """A process that was started. A thread waits for its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, or the negative number of the signal that ended it."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        threading.Thread(target=self._wait, args=(loop,), name=f"wait for {pid}", daemon=True).start()

    async def wait(self) -> None:
        """Wait for its end."""
        await asyncio.shield(self._ended)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        self.returncode = code
        self._ended.set_result(None)


class Pipe:
    """A pipe whose ends are closed at the end of its context.

    A command's pipes are not those of asyncio: these would wait for processes that the command leaves behind.
    """

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


class StandardError:
    """Passes a command's standard error on, and keeps its end."""

    def __init__(self, errors: Pipe) -> None:
        self._fd = errors.read_end
        self._kept = b""
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def text(self) -> str:
        """Stop reading, and return the end as a sentence; "" if there was no output."""
        for _ in range(READS):  # a process that the command left behind may write for ever
            if not self._read():
                break
        self._loop.remove_reader(self._fd)
        text = self._kept.decode("utf-8", "replace").strip().replace("\0", "")
        if not text:
            return ""
        return " Its standard error ended: " + text.encode()[-STDERR_BYTES:].decode("utf-8", "ignore")

    def _read(self) -> bool:
        """Take what there is. Return whether there was anything."""
        part = b""
        with contextlib.suppress(BlockingIOError):
            part = os.read(self._fd, 65_536)
        self._kept = (self._kept + part)[-STDERR_BYTES:]
        with contextlib.suppress(OSError):
            os.write(2, part)
        return bool(part)


class ProcessGuard:
    """A process that kills the commands' process groups when this process ends, however it ends."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._live: list[int] = []

    def add(self, pid: int) -> None:
        self._live.append(pid)
        self._say(f"add {pid}\n")

    def remove(self, pid: int) -> None:
        self._live.remove(pid)
        with contextlib.suppress(OSError):
            self._say(f"end {pid}\n")

    def close(self) -> None:
        """End the guard, which kills the commands that still run."""
        process, self.process = self.process, None
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:  # a forked child of this process holds the other end
            process.kill()
            process.wait()

    def _say(self, line: str) -> None:
        if self.process is not None and self.process.poll() is None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.process.stdin.fileno(), line.encode())
                return
        # There is none yet, or it was killed.
        self.close()
        self.process = subprocess.Popen(["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True)
        if self.process.stdin is not None:
            os.write(self.process.stdin.fileno(), "".join(f"add {pid}\n" for pid in self._live).encode())


async def ends_within(process: Process, seconds: float) -> bool:
    """Wait for a process, at most so many seconds. Return whether it has ended."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), seconds)
    return process.returncode is not None


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a command's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
