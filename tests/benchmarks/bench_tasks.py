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

from tests.benchmarks.harness import SIZE, Contestant, Sample, cluster_url, compare, heading, say
from tests.benchmarks.processes import cpu_seconds, descendants
from tests.benchmarks.servers import servers

TASKS = {"quick": 40, "full": 20_000}.get(SIZE, 5_000)
ONE_BY_ONE = {"quick": 20, "full": 3_000}.get(SIZE, 1_000)
PACED = {"quick": 10, "full": 1_000}.get(SIZE, 300)
PACE_SECONDS = 0.02
IDLE_SECONDS = 1.0 if SIZE == "quick" else 10.0
LONGEST_SECONDS = 300.0
"""How long nothing may happen."""
PROCESSES = 2
THREADS = 8
APPS = "tests.benchmarks.task_apps"
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, its broker, and the commands that start two processes of workers."""

    name: str
    library: str
    where: str
    workers: tuple[tuple[str, ...], ...]
    wanted: float | None = None

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
        peers = [*_others(folder, redis, sql), _own("fdbqueue, embedded, durable", f"file:{folder / 'own'}", 3.0)]
        if (url := cluster_url()) is not None:
            peers.append(_own("fdbqueue, cluster", url, 1.5))
        for told, seconds in (("no-op tasks", 0.0), ("tasks of 1 ms of work", 0.001)):
            question = f"{TASKS:,} {told}, worked by {PROCESSES} processes that find them enqueued"
            compare(
                question, [Contestant(one.name, partial(_worked, folder, one, seconds), one.wanted) for one in peers]
            )
        say(
            "\nOf the CPU of a no-op task of fdbqueue, half is its lease and its ack. A quarter is the line that the"
            " worker prints. The way into a thread and back takes an eighth, and finding its function and"
            " arguments the rest. A task of 1 ms keeps its thread busy, and two processes can't do more than 2,000 of"
            " these in a second: no library can be three times as fast as the best one there."
        )
        question = f"{ONE_BY_ONE:,} tasks, enqueued one by one by one thread"
        compare(question, [Contestant(one.name, partial(_enqueued, one)) for one in peers])
        say(
            "\nOne enqueue of fdbqueue is one durable transaction, which reads what the queue has and stores the item,"
            " its notes and its counts. Huey adds one row to a table. On a cluster the transaction costs two"
            " round trips."
        )
        question = f"{PACED:,} tasks, one each {PACE_SECONDS * 1e3:.0f} ms: a call lasts from its enqueue to its start"
        compare(question, [Contestant(one.name, partial(_paced, folder, one)) for one in peers])
        say(f"\n### CPU of {PROCESSES} idle processes of workers, per second\n\n| contestant | CPU |\n|---|---:|")
        for peer in peers:
            say(f"| {peer.name} | {_idle(folder, peer) * 1e3:.1f} ms |")


def _own(name: str, url: str, wanted: float) -> Peer:
    options = ("--processes", str(PROCESSES), "--concurrency", str(THREADS), "--url", url)
    return Peer(name, "fdbqueue", url, (("-m", "fdbqueue", "worker", f"{APPS}:app", *options),), wanted)


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
        Peer("Celery, Redis with appendfsync", "celery", redis or "", (celery,)),
        Peer("Dramatiq, Redis with appendfsync", "dramatiq", redis or "", (dramatiq,)),
        Peer("RQ, Redis with appendfsync", "rq", redis or "", (rq,) * PROCESSES),
        Peer("Procrastinate, PostgreSQL", "procrastinate", sql or "", (procrastinate,) * PROCESSES),
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
    program = f"import time\nfrom {APPS} import app, enqueue\n{code}"
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


def _worked(folder: Path, peer: Peer, seconds: float) -> Sample:
    """Enqueue tasks, and let workers find them. The time is that between the starts of the first and the last one."""
    _run(peer, f"for _ in range({TASKS}): enqueue(time.time(), {seconds})")
    with Workers(folder, peer) as workers:
        _, first, last = workers.told(TASKS)
        return Sample(TASKS, last - first, cpu_seconds=workers.cpu_seconds())


def _enqueued(peer: Peer) -> Sample:
    """Enqueue tasks, each with a commit of its own."""
    code = (
        f"took = []\nfor _ in range({ONE_BY_ONE}):\n    began = time.perf_counter()\n    enqueue(time.time(), 0.0)\n"
        "    took.append(time.perf_counter() - began)\nprint(took)"
    )
    took = [float(one) for one in _run(peer, code).strip().strip("[]").split(",")]
    with tempfile.TemporaryDirectory() as name, Workers(Path(name), peer) as workers:
        workers.told(ONE_BY_ONE)  # the next question begins with an empty queue
    return Sample(ONE_BY_ONE, sum(took), took)


def _paced(folder: Path, peer: Peer) -> Sample:
    """Enqueue a task now and then, while workers wait."""
    with Workers(folder, peer) as workers:
        _run(peer, "for _ in range(10): enqueue(time.time(), 0.0)")
        workers.told(10)
        _run(peer, f"for _ in range({PACED}):\n    enqueue(time.time(), 0.0)\n    time.sleep({PACE_SECONDS})")
        latencies, first, last = workers.told(PACED)
        return Sample(PACED, last - first or PACED * PACE_SECONDS, latencies)


def _idle(folder: Path, peer: Peer) -> float:
    """Return the CPU seconds of waiting workers per second."""
    with Workers(folder, peer) as workers:
        _run(peer, "for _ in range(10): enqueue(time.time(), 0.0)")
        workers.told(10)
        before = workers.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        return (workers.cpu_seconds() - before) / IDLE_SECONDS
