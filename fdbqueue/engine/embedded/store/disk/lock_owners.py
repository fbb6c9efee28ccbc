"""Find the processes that hold a lock, if the system reports them: Linux does, for processes that it shows us."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_STOPPED: Final = (b"T", b"t")


def pids_of_owners(fd: int) -> list[int]:
    """Return the other processes that hold a lock (flock) on an open file; none if the system does not report them."""
    found = os.fstat(fd)
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        rows = [line.split() for line in _LOCKS.read_text().splitlines()]
    except OSError:
        return []
    # Columns: number, kind, advisory, read or write, process, file, … A waiting process has an arrow after the number.
    pids = {int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == file}
    return sorted(pids - {os.getpid()})


def is_stopped(pid: int) -> bool:
    """Return whether a process, or a thread, is stopped by a signal or a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] in _STOPPED


def process_of(thread: int) -> int:
    """Return the process that a thread belongs to; `thread` itself if the system does not report it."""
    try:
        lines = Path(f"/proc/{thread}/status").read_text(errors="replace").splitlines()
    except OSError:
        return thread
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), thread)


def blame(pid: int) -> str:
    """Return a part of an error message: the stopped process that holds a lock, and the remedy."""
    return f"process {pid} has, which is stopped. `kill -CONT {pid}` lets it go on; or end it,"
