"""Consumers in several processes: each runs the same function at the same time, and their samples are put together."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import fdbqueue
from tests.benchmarks.harness import Sample

_spawning = multiprocessing.get_context("spawn")


class Crowd:
    """Processes that stay, each with the database open.

    Args:
        where: the database's URL, or what `opener` takes.
        size: how many.
        opener: what opens it, an importable function.
    """

    def __init__(self, where: Any, size: int, *, opener: Callable[[Any], Any] | None = None) -> None:
        self.notes: list[Any] = []
        """What the functions of the last run returned beside their samples, in the order of the processes."""
        self._members: list[tuple[Any, Connection]] = []
        for _ in range(size):
            ours, theirs = _spawning.Pipe()
            process = _spawning.Process(target=_serve, args=(opener or _open_and_ask, where, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))
        for _, pipe in self._members:
            if isinstance(answer := pipe.recv(), BaseException):
                raise answer

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let all end."""
        for process, pipe in self._members:
            pipe.send(None)
            process.join()

    def run(self, function: Callable[..., Any], *args: Any, members: int | None = None) -> Sample:
        """Run an importable ``function(db, *args)`` in each process at once, or in the first `members` of them.

        The function returns a sample, or a sample and a note.
        """
        chosen = self._members[:members]
        for _, pipe in chosen:
            pipe.send((function, args))
        started = time.perf_counter()
        samples: list[Sample] = []
        self.notes = []
        for _, pipe in chosen:
            answer = pipe.recv()
            if isinstance(answer, BaseException):
                raise answer
            sample, *notes = answer if isinstance(answer, tuple) else (answer,)
            samples.append(sample)
            self.notes += notes
        used = [sample.cpu_seconds for sample in samples]
        return Sample(
            sum(sample.items for sample in samples),
            time.perf_counter() - started,
            [latency for sample in samples for latency in sample.latencies],
            sum(sample.conflicts for sample in samples),
            None if None in used else sum(seconds for seconds in used if seconds is not None),
        )


def _open_and_ask(url: str) -> Any:
    db = fdbqueue.open(url)
    tr = db.create_transaction()
    tr.get_read_version().wait()
    return db


def _serve(opener: Callable[[Any], Any], where: Any, pipe: Connection) -> None:
    try:
        opened = opener(where)
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        pipe.send(error)
        return
    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        function, args = work
        try:
            pipe.send(function(opened, *args))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            pipe.send(error)
