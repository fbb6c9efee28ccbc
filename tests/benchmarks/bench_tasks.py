"""Tasks: worked by two processes, enqueued one by one, and how soon they start; beside other libraries."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import ROUNDS, SIZE, Contestant, Sample, cluster_url, compare, heading, say
from tests.benchmarks.processes import cpu_seconds, descendants
from tests.benchmarks.servers import servers

TASKS = {"quick": 40}.get(SIZE, 20_000)
LONG_TASKS = {"quick": 40}.get(SIZE, 5_000)
ONE_BY_ONE = {"quick": 20, "full": 3_000}.get(SIZE, 1_000)
PACED = {"quick": 10, "full": 1_000}.get(SIZE, 300)
BUSY = {"quick": 10, "full": 3_000}.get(SIZE, 1_000)
BUSY_PACE_SECONDS = 0.005
"""More than RQ can do, and less than the others can."""
WORK_SECONDS = 0.001
FEWER_ROUNDS = min(ROUNDS, 3)
"""For the questions that take most of the time."""
PACE_SECONDS = 0.02
IDLE_SECONDS = 1.0 if SIZE == "quick" else 10.0
LONGEST_SECONDS = 300.0
"""How long nothing may happen."""
PROCESSES = 2
THREADS = 8
APPS = "tests.benchmarks.task_apps"
REPOSITORY = Path(__file__).resolve().parents[2]

WHERE_TIME_GOES = """
A Consumer runs handlers of items, without the arguments and the functions of tasks. Of it 20,000 no-op items a second
are wanted embedded, and 12,000 on a cluster. Of the CPU of a no-op task of fdbqueue, half is its lease and its ack. A
quarter is the line that the worker prints. The way into a thread and back takes an eighth, and finding its function and
arguments the rest. A task of 1 ms keeps its process busy, and two processes can't do more than 2,000 of these in a
second: no library can be three times as fast as the best one there."""
WHAT_AN_ENQUEUE_IS = """
One enqueue of fdbqueue is one durable transaction, which reads what the queue has and stores the item, its notes and
its counts. Huey adds one row to a table. On a cluster the transaction costs two round trips."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, its broker, and the commands that start two processes of workers."""

    name: str
    library: str
    where: str
    workers: tuple[tuple[str, ...], ...]
    wanted: float | None = None
    most: int = 20_000
    """How many tasks it gets in a round at most: the slow ones have fewer."""

    @property
    def setting(self) -> str:
        """What tells a process which library it is to use."""
        return f"{self.library}={self.where}"


def main() -> None:
    heading("Tasks")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        brokers = {stand.kind: stand.where for stand in stack.enter_context(servers(folder))}
        redis, sql = brokers.get("contenders_servers:Redis"), brokers.get("contenders_servers:PostgreSQL")
        own = f"file:{folder / 'own'}"
        peers = [*_others(folder, redis, sql), _own("fdbqueue: Tasks, embedded, durable", own, 3.0)]
        peers.append(_consumer("fdbqueue: Consumer, embedded, durable", f"file:{folder / 'items'}"))
        if (url := cluster_url()) is not None:
            peers.append(_own("fdbqueue: Tasks, cluster", url, 1.5))
            peers.append(_consumer("fdbqueue: Consumer, cluster", url))
        for number, told, seconds in (
            (TASKS, "no-op tasks", 0.0),
            (LONG_TASKS, "tasks of 1 ms of work", WORK_SECONDS),
        ):
            compare(
                f"{number:,} {told}, worked by {PROCESSES} processes that find them enqueued",
                [
                    Contestant(one.name, partial(_worked, folder, one, min(number, one.most), seconds), one.wanted)
                    for one in peers
                ],
                rounds=FEWER_ROUNDS,
            )
            _tell_fewer(peers, number)
        say(WHERE_TIME_GOES)
        question = f"{ONE_BY_ONE:,} tasks, enqueued one by one by one thread"
        one_by_one = [Contestant(one.name, partial(_enqueued, one, min(ONE_BY_ONE, one.most))) for one in peers]
        compare(question, one_by_one, rounds=FEWER_ROUNDS)
        _tell_fewer(peers, ONE_BY_ONE)
        say(WHAT_AN_ENQUEUE_IS)
        question = f"{PACED:,} tasks, one each {PACE_SECONDS * 1e3:.0f} ms: a call lasts from its enqueue to its start"
        idle = [Contestant(one.name, partial(_paced, folder, one, PACED, PACE_SECONDS, 0.0)) for one in peers]
        compare(question, idle, rounds=FEWER_ROUNDS)
        question = (
            f"{BUSY:,} tasks of 1 ms of work, one each {BUSY_PACE_SECONDS * 1e3:.0f} ms: from the enqueue to the start"
        )
        able = [one for one in peers if one.library != "rq"]
        busy = [
            Contestant(one.name, partial(_paced, folder, one, BUSY, BUSY_PACE_SECONDS, WORK_SECONDS)) for one in able
        ]
        compare(question, busy, rounds=FEWER_ROUNDS)
        say(
            "\nRQ starts a process for each task, and can't do so many in a second, so it is left out. The P99 of the"
            " last two tables is wanted to be at most that of the best other library. Before a handler of fdbqueue"
            " starts, two commits are on the disk, one after the other: the enqueue's, and the lease's. The worker"
            " hears of the first one by a watch. On a cluster each of the three also takes a round trip and a turn of"
            " the server."
        )
        say(f"\n### CPU of {PROCESSES} idle processes of workers, per second\n\n| contestant | CPU |\n|---|---:|")
        for peer in peers:
            say(f"| {peer.name} | {_idle(folder, peer) * 1e3:.1f} ms |")


def _own(name: str, url: str, wanted: float) -> Peer:
    options = ("--processes", str(PROCESSES), "--concurrency", str(THREADS), "--url", url)
    return Peer(name, "fdbqueue", url, (("-m", "fdbqueue", "worker", f"{APPS}:app", *options),), wanted)


def _consumer(name: str, url: str) -> Peer:
    program = ("-c", f"from {APPS} import app; app()")
    return Peer(name, "consumer", url, (program,) * PROCESSES)


def _tell_fewer(peers: list[Peer], number: int) -> None:
    """Say which libraries had fewer tasks than the question says."""
    fewer = [f"{one.library} {one.most:,}" for one in peers if one.most < number]
    if fewer:
        say(f"\nSome would take too long, and had fewer tasks: {', '.join(fewer)}.")


def _others(folder: Path, redis: str | None, sql: str | None) -> Iterator[Peer]:
    """Yield those that are installed, and whose brokers are; the first one is what all are compared with."""
    threads, processes = str(THREADS), str(PROCESSES)
    huey = ("-m", "huey.bin.huey_consumer", f"{APPS}.app", "-k", "process", "-w", processes, "-q")
    celery = ("-m", "celery", "-A", f"{APPS}:app", "worker", "-c", processes, "-l", "ERROR")
    dramatiq = ("-m", "dramatiq", APPS, "-p", processes, "-t", threads)
    rq = ("-m", "rq.cli", "worker", "-u", f"unix://{redis}", "-q", "bench")
    procrastinate = ("-m", "procrastinate", f"--app={APPS}.app", "worker", "-c", threads)
    known = [
        Peer("Huey, SQLite with fsync", "huey", str(folder / "huey.db"), (huey,)),
        Peer("Celery, Redis with appendfsync", "celery", redis or "", (celery,), most=3_000),
        Peer("Dramatiq, Redis with appendfsync", "dramatiq", redis or "", (dramatiq,)),
        Peer("RQ, Redis with appendfsync", "rq", redis or "", (rq,) * PROCESSES, most=400),
        Peer("Procrastinate, PostgreSQL", "procrastinate", sql or "", (procrastinate,) * PROCESSES, most=2_000),
    ]
    for peer in known:
        if importlib.util.find_spec(peer.library) is None:
            say(f"\nSkipped: {peer.name}, which is not installed: pip install {peer.library}")
        elif peer.where:
            if peer.library == "procrastinate":
                _run(peer, "app.schema_manager.apply_schema()")
            yield peer


def _run(peer: Peer, code: str) -> str:
    """Run code of a client of the library, and return what it prints."""
    program = f"import time\nfrom {APPS} import app, enqueue, fill\n{code}"
    environment = {**os.environ, "FDBQUEUE_BENCH_TASKS": peer.setting}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{peer.name}: {done.stderr[-2000:]}")
    return done.stdout


class Workers:
    """The workers of one library, and what their tasks tell."""

    def __init__(self, folder: Path, peer: Peer) -> None:
        self._fifo = folder / f"fifo {secrets.token_hex(4)}"
        self._peer = peer
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        os.mkfifo(self._fifo)
        self._read = os.open(self._fifo, os.O_RDWR)  # its end never comes
        environment = {**os.environ, "FDBQUEUE_BENCH_TASKS": self._peer.setting, "FDBQUEUE_BENCH_FIFO": str(self._fifo)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        for command in self._peer.workers:
            self._processes.append(
                subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, env=environment, **quiet)  # type: ignore[call-overload]
            )
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        os.close(self._read)
        self._fifo.unlink()

    def told(self, number: int) -> tuple[list[float], float, float]:
        """Wait until so many tasks have started. Return their latencies, and when the first and the last began."""
        data, first, last = b"", 0.0, 0.0
        while len(data) < number * 8:
            if not select.select([self._read], [], [], LONGEST_SECONDS)[0]:
                raise RuntimeError(f"{self._peer.name}: after {len(data) // 8} of {number} tasks nothing happens.")
            data += os.read(self._read, 1 << 16)
            last = time.perf_counter()
            first = first or last
        return [struct.unpack_from("d", data, at)[0] for at in range(0, number * 8, 8)], first, last

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes so far."""
        pids = [process.pid for process in self._processes]
        return cpu_seconds({*pids, *(one.pid for pid in pids for one in descendants(pid))})


def _worked(folder: Path, peer: Peer, number: int, seconds: float) -> Sample:
    """Enqueue tasks, and let workers find them. The time is that between the starts of the first and the last one."""
    _run(peer, f"fill({number}, {seconds})")
    with Workers(folder, peer) as workers:
        _, first, last = workers.told(number)
        return Sample(number, last - first, cpu_seconds=workers.cpu_seconds())


def _enqueued(peer: Peer, number: int) -> Sample:
    """Enqueue tasks, each with a commit of its own."""
    code = (
        f"took = []\nfor _ in range({number}):\n    began = time.perf_counter()\n    enqueue(time.time(), 0.0)\n"
        "    took.append(time.perf_counter() - began)\nprint(took)"
    )
    took = [float(one) for one in _run(peer, code).strip().strip("[]").split(",")]
    with tempfile.TemporaryDirectory() as name, Workers(Path(name), peer) as workers:
        workers.told(number)  # the next question begins with an empty queue
    return Sample(number, sum(took), took)


def _paced(folder: Path, peer: Peer, number: int, pace_seconds: float, work_seconds: float) -> Sample:
    """Enqueue a task now and then, while workers wait."""
    with Workers(folder, peer) as workers:
        _run(peer, "for _ in range(10): enqueue(time.time(), 0.0)")
        workers.told(10)
        _run(
            peer,
            f"for _ in range({number}):\n    enqueue(time.time(), {work_seconds})\n    time.sleep({pace_seconds})",
        )
        latencies, first, last = workers.told(number)
        return Sample(number, last - first or number * pace_seconds, latencies)


def _idle(folder: Path, peer: Peer) -> float:
    """Return the CPU seconds of waiting workers per second."""
    with Workers(folder, peer) as workers:
        _run(peer, "for _ in range(10): enqueue(time.time(), 0.0)")
        workers.told(10)
        before = workers.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        return (workers.cpu_seconds() - before) / IDLE_SECONDS
