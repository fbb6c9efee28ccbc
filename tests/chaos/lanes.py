"""Several chaos runs side by side, each in a process of its own: while a round waits, others use the processor."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.chaos.run import Report, run

FAILED = "run"
ENDED_WITHIN_SECONDS = 600.0
_spawning = multiprocessing.get_context("spawn")


def side_by_side(lanes: int, url: str, seed: str, seconds: float, tell: Callable[[str], None], **terms: Any) -> Report:
    """Run chaos in each lane, on a database of its own unless the URL names one; return what all of them found.

    Args:
        lanes: how many runs. Each has a seed of its own, made of the run's seed and the lane's number.
        url: as that of `run`.
        seed: as that of `run`.
        seconds: how long each takes.
        tell: told after every round of every lane.
        terms: as those of `run`.
    """
    report = Report(seed, url, asked_for=())
    open_ends: dict[Connection, int] = {}
    processes = []
    try:
        for lane in range(lanes):
            ours, theirs = _spawning.Pipe(duplex=False)
            process = _spawning.Process(target=_play, args=(theirs, url, f"{seed}.{lane}", seconds, terms))
            process.start()
            theirs.close()
            processes.append(process)
            open_ends[ours] = lane
        while open_ends:
            for end in wait(list(open_ends)):
                assert isinstance(end, Connection)
                _hear(end, open_ends, report, tell)
    finally:
        for lane in open_ends.values():
            processes[lane].terminate()  # which it takes for an end that its processes and its server share
        for process in processes:
            process.join(ENDED_WITHIN_SECONDS)
            if process.is_alive():
                process.kill()
    return report


def _hear(end: Connection, open_ends: dict[Connection, int], report: Report, tell: Callable[[str], None]) -> None:
    """Take what a lane says: a line, its report at its end, or why it has none."""
    try:
        said = end.recv()
    except EOFError:
        said = ValueError(f"The run in lane {open_ends[end]} ended without a report.")
    if isinstance(said, str):
        tell(f"lane {open_ends[end]}: {said}")
        return
    del open_ends[end]
    end.close()
    if isinstance(said, Report):
        report.add(said)
    else:
        report.verdict.violations.setdefault(FAILED, []).append(str(said))


def _play(end: Connection, url: str, seed: str, seconds: float, terms: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        end.send(run(url, seed, seconds, end.send, **terms))
    except Exception:  # noqa: BLE001 - the other lanes go on, and the report tells of it
        end.send(ValueError(traceback.format_exc()))
