"""What processes on this machine use, read from /proc: Linux only, and nothing elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs, or ran a moment ago."""

    pid: int
    parent: int
    command: bytes
    """Its command line, the arguments with NUL between them."""

    def own_memory(self) -> int:
        """Return the bytes of memory that are its own, without the pages of files that it shares; 0 if it has ended."""
        try:
            lines = (PROC / str(self.pid) / "status").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def running() -> Iterator[Process]:
    """Yield all processes of this machine."""
    for folder in PROC.glob("[0-9]*"):
        try:
            yield Process(int(folder.name), int(_fields(folder)[1]), (folder / "cmdline").read_bytes())
        except OSError:
            continue  # it has just ended


def descendants(ancestor: int) -> list[Process]:
    """Return the processes that `ancestor` started, and those that these started."""
    children: dict[int, list[Process]] = {}
    for process in running():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [ancestor]
    while parents:
        below = children.get(parents.pop(), [])
        found += below
        parents += [process.pid for process in below]
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that processes have used, with that of the children of theirs which have ended."""
    total = 0
    for pid in pids:
        try:
            total += sum(int(ticks) for ticks in _fields(PROC / str(pid))[11:15])
        except OSError:
            continue  # its parent counts what it used
    return total / _TICKS


def _fields(folder: Path) -> list[str]:
    """Return what stands behind the command's name, which may have spaces of its own."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


@contextmanager
def watching(look: Callable[[], object], *, every: float) -> Iterator[None]:
    """Call `look` again and again, every so many seconds, in a thread of its own, while the block runs.

    Raises:
        Whatever `look` raised, which was its last call then; at the end of the block.
    """
    ended = threading.Event()
    failed: list[Exception] = []

    def go_on() -> None:
        try:
            while not ended.wait(every):
                look()
        except Exception as error:  # noqa: BLE001 - raised in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]
