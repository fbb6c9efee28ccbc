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
        url: the database's.
        size: how many.
    """

    def __init__(self, url: str, size: int) -> None:
        self._members: list[tuple[Any, Connection]] = []
        for _ in range(size):
            ours, theirs = _spawning.Pipe()
            process = _spawning.Process(target=_serve, args=(url, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))
        for _, pipe in self._members:
            pipe.recv()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._members:
            pipe.send(None)
            process.join()

    def run(self, function: Callable[..., Sample], *args: Any) -> Sample:
        """Run an importable ``function(db, *args)`` in each process at once."""
        for _, pipe in self._members:
            pipe.send((function, args))
        started = time.perf_counter()
        samples: list[Sample] = []
        for _, pipe in self._members:
            answer = pipe.recv()
            if isinstance(answer, BaseException):
                raise answer
            samples.append(answer)
        return Sample(
            sum(sample.items for sample in samples),
            time.perf_counter() - started,
            [latency for sample in samples for latency in sample.latencies],
            sum(sample.conflicts for sample in samples),
        )


def _serve(url: str, pipe: Connection) -> None:
    db = fdbqueue.open(url)
    tr = db.create_transaction()
    tr.get_read_version().wait()
    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        function, args = work
        try:
            pipe.send(function(db, *args))
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            pipe.send(error)
