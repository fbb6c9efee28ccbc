"""What nothing durable can be faster than: waits for the disk, and threads that share them and do nothing else."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Iterator

from tests.benchmarks.samples import Sample, Stopwatch, in_turn

PAGE = b"p" * 4096
PAGES = 256
"""Pages of the file, of which one is written at a time: none is new to the file system."""


def one_page(folder: pathlib.Path, calls: int) -> Sample:
    """Write a page and wait until it is on the disk, so many times."""
    with _writer(folder) as write:
        return in_turn(calls, write)


def hand_over(folder: pathlib.Path, threads: int, count: int) -> Sample:
    """Let `threads` do nothing but wait for each other: the last one to come writes a page for all and wakes them."""
    with _writer(folder) as write:
        rounds = _Rounds(threads, write)
        started = threading.Barrier(threads + 1)

        def work() -> None:
            started.wait()
            for _ in range(count // threads):
                rounds.take_part()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        started.wait()
        watch = Stopwatch()
        for worker in workers:
            worker.join()
        return watch.sample(count // threads * threads)


class _Rounds:
    """Threads that all wait for the last of them."""

    def __init__(self, threads: int, write: Callable[[], object]) -> None:
        self._threads = threads
        self._write = write
        self._here: list[threading.Lock] = []
        self._gates = threading.local()

    def take_part(self) -> None:
        gate = self._gate()
        here = self._here
        here.append(gate)
        # Nobody else comes before the last one has come: each thread is in the list once. Two that see it full at
        # the same time are told apart by who stands last.
        if len(here) == self._threads and here[-1] is gate:
            self._here = []
            self._write()
            for other in here:
                if other is not gate:
                    other.release()
        else:
            gate.acquire()

    def _gate(self) -> threading.Lock:
        """Return the calling thread's own lock, which is taken."""
        gate: threading.Lock | None = getattr(self._gates, "gate", None)
        if gate is None:
            gate = self._gates.gate = threading.Lock()
            gate.acquire()
        return gate


@contextlib.contextmanager
def _writer(folder: pathlib.Path) -> Iterator[Callable[[], object]]:
    fd = os.open(folder / "bound", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, PAGE * PAGES, 0)
        os.fsync(fd)

        def write() -> None:
            os.pwrite(fd, PAGE, len(PAGE))
            os.fdatasync(fd)

        yield write
    finally:
        os.close(fd)
