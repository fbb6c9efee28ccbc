"""What a benchmark measures, and what is told of it."""

from __future__ import annotations

import resource
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """What one round of one contestant did."""

    items: int
    seconds: float
    latencies: list[float] = field(default_factory=list)
    """Seconds of single calls, where calls are what is measured."""
    conflicts: int = 0
    cpu_seconds: float | None = None
    """CPU time of the processes that called; None: not measured."""
    server_cpu_seconds: float | None = None
    """CPU time of the server's processes; None: not measured, or there is no server."""

    @property
    def rate(self) -> float:
        return self.items / self.seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """What the rounds of one contestant come to, at one point of a question."""

    name: str
    at: float | None
    """Where on the question's axis; None if it has none."""
    rate: float
    """Items per second, the median over the rounds."""
    lowest: float
    highest: float
    call: float | None
    """Seconds of a call, the median of all."""
    slow_call: float | None
    """The same, P99."""
    conflicts: float
    """Per item."""
    cpu: float | None
    """Seconds of CPU per item, in the processes that called."""
    server_cpu: float | None
    """The same, in the server's."""
    ratio: float | None = None
    """The median over the rounds of the ratio to the first contestant's rate."""
    wanted: float | None = None
    """What the ratio is to be at least."""


def figures(
    name: str,
    samples: Sequence[Sample],
    *,
    at: float | None = None,
    ratio: float | None = None,
    wanted: float | None = None,
) -> Figures:
    """Return what rounds come to."""
    rates = [sample.rate for sample in samples]
    latencies = sorted(latency for sample in samples for latency in sample.latencies)
    items = max(1, sum(sample.items for sample in samples))
    return Figures(
        name,
        at,
        statistics.median(rates),
        min(rates),
        max(rates),
        quantile(latencies, 0.5),
        quantile(latencies, 0.99),
        sum(sample.conflicts for sample in samples) / items,
        _each([sample.cpu_seconds for sample in samples], items),
        _each([sample.server_cpu_seconds for sample in samples], items),
        ratio,
        wanted,
    )


def _each(seconds: Sequence[float | None], items: int) -> float | None:
    known = [one for one in seconds if one is not None]
    return sum(known) / items if len(known) == len(seconds) else None


def quantile(values: Sequence[float], duty_cycle: float) -> float | None:
    """Return the value below which `duty_cycle` of `values` lie; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(duty_cycle * len(ordered)))]


class Stopwatch:
    """Measures the time that passes, and the CPU time of this process, all its threads together."""

    def __init__(self) -> None:
        self._cpu = own_cpu_seconds()
        self._started = time.perf_counter()

    def sample(self, items: int, latencies: list[float] | None = None, *, conflicts: int = 0) -> Sample:
        """Return what was measured since this was made."""
        seconds = time.perf_counter() - self._started
        return Sample(items, seconds, latencies or [], conflicts, own_cpu_seconds() - self._cpu)


def own_cpu_seconds() -> float:
    """Return the CPU time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_threads(threads: int, calls: int, call: Callable[[int], object]) -> Sample:
    """Make `calls` calls from each of `threads` threads, and time each."""

    def work(number: int) -> list[float]:
        latencies = []
        for n in range(calls):
            started = time.perf_counter()
            call(number * calls + n)
            latencies.append(time.perf_counter() - started)
        return latencies

    watch = Stopwatch()
    with ThreadPoolExecutor(threads) as pool:
        latencies = [latency for taken in pool.map(work, range(threads)) for latency in taken]
    return watch.sample(threads * calls, latencies)


def in_turn(calls: int, call: Callable[[], object]) -> Sample:
    """Make `calls` calls one after the other in this thread, and time each."""
    latencies = []
    watch = Stopwatch()
    for _ in range(calls):
        before = time.perf_counter()
        call()
        latencies.append(time.perf_counter() - before)
    return watch.sample(calls, latencies)


def for_seconds(
    threads: int,
    seconds: float,
    call: Callable[[], object | None],
    *,
    connect: Callable[[], object] = lambda: None,
    disconnect: Callable[[], object] = lambda: None,
) -> Sample:
    """Call from each of `threads` threads, until so many seconds have passed or a call returns None.

    Each thread connects before all begin, and disconnects at its end; neither is measured.
    """
    begin, ended = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def work() -> list[float]:
        latencies = []
        try:
            connect()
            begin.wait()
            now = time.perf_counter()
            end = now + seconds
            while now < end and call() is not None:
                before, now = now, time.perf_counter()
                latencies.append(now - before)
            ended.wait()
        except BaseException:
            begin.abort()
            ended.abort()
            raise
        disconnect()
        return latencies

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for _ in range(threads)]
        try:
            begin.wait()
            watch = Stopwatch()
            ended.wait()
            sample = watch.sample(0)
        except threading.BrokenBarrierError:
            sample = Sample(0, 0.0)  # a thread's error comes next
        sample.latencies = [latency for one in running for latency in one.result()]
    sample.items = len(sample.latencies)
    return sample
