"""The processes that Spark starts, and how much memory they have. Linux only; elsewhere there are none."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

JVM = "jvm"


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """Yield the pid and the command of each process that `root` started, directly or not."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (entry / "stat").read_text(), (entry / "cmdline").read_text()
        except OSError:
            continue  # it has just ended
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
        commands[int(entry.name)] = command.replace("\0", " ").strip()
    found = list(children.get(root, []))
    for pid in found:
        if commands[pid]:
            yield pid, commands[pid]
        found += children.get(pid, [])


def role(command: str) -> str:
    """Return the module that a Python process of Spark runs, such as ``worker``; else `JVM`."""
    module = command.split()[-1]
    return module.rpartition(".")[2] if module.startswith("pyspark.") else JVM


class Peaks(Counter[str]):
    """The most memory that a process of each role had, in MB, without the pages of files that it shares."""

    def measure(self, root: int) -> None:
        """Note the memory that the processes have now."""
        for pid, command in descendants(root):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue  # it has just ended
            if "RssAnon:" in status:
                has = int(status.partition("RssAnon:")[2].split()[0]) // 1_000
                self[role(command)] = max(self[role(command)], has)


def peaks_of(work: Callable[[], object]) -> Peaks:
    """Return the peaks of the processes that this one started, while `work` runs."""
    peaks, ended = Peaks(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peaks.measure(os.getpid())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    return peaks
