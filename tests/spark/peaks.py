"""How much memory Spark's processes have, by what they do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from tests.benchmarks.processes import Process, descendants, watching


def role(process: Process) -> str:
    """Return the module that a Python process of Spark runs, such as ``worker``; ``jvm`` for any other process."""
    last = process.command.rstrip(b"\0").rpartition(b"\0")[2].decode(errors="replace")
    return last.rpartition(".")[2] if last.startswith("pyspark.") else "jvm"


class Peaks(Counter[str]):
    """The most memory that a process of each role had, in MB, without the pages of files that it shares."""

    def look(self, ancestor: int) -> None:
        """Note the memory that the processes have now that `ancestor` started."""
        for process in descendants(ancestor):
            self[role(process)] = max(self[role(process)], process.own_memory() // 1_000_000)


def peaks_of(work: Callable[[], object]) -> Peaks:
    """Return the peaks of the processes that this one started, while `work` runs."""
    peaks = Peaks()
    with watching(lambda: peaks.look(os.getpid()), every=0.05):
        work()
    return peaks
