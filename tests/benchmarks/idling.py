"""A thousand calls that wait: what they cost, how soon one of them gets an item, and how many wake for it."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.benchmarks.harness import quantile, say

WAITING = 1_000
ENQUEUED = 20


def idle(
    question: str,
    waits: Sequence[Callable[[], Awaitable[object]]],
    enqueue: Callable[[int], Awaitable[object]],
    looks: Callable[[], Sequence[int]],
    bare: Sequence[float],
    *,
    settled: float = 5.0,
    wanted: tuple[str, str] = ("", ""),
) -> None:
    """Let calls wait, enqueue items one by one, and print what came of it.

    Args:
        question: over the table.
        waits: each waits for an item.
        enqueue: enqueues the n-th item.
        looks: how often each of those who wait has looked so far.
        bare: seconds of bare watches and reads.
        settled: seconds until all of them stand still.
        wanted: of the share of a core, and of how many wake.
    """
    shares: list[float] = []
    reached: list[float] = []
    woken: list[int] = []

    async def timed(wait: Callable[[], Awaitable[object]]) -> float:
        if await wait() is None:
            raise RuntimeError("an item was missing")
        return time.perf_counter()

    async def all_of_them() -> None:
        waiting = {asyncio.ensure_future(timed(wait)) for wait in waits}
        await asyncio.sleep(settled)
        before, started = _cpu_seconds(), time.perf_counter()
        await asyncio.sleep(15)
        shares.append((_cpu_seconds() - before) / (time.perf_counter() - started))
        for number in range(ENQUEUED):
            seen = looks()
            began = time.perf_counter()
            await enqueue(number)
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            reached.append(done.pop().result() - began)
            await asyncio.sleep(0.2)
            woken.append(sum(now > then for now, then in zip(looks(), seen, strict=True)))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(all_of_them())
    say(f"\n### {question}\n")
    say("| what | measured | wanted |\n|---|---:|---:|")
    say(f"| share of a core while idle | {shares[0]:.2%} | {wanted[0]} |")
    say(f"| one enqueue reaches a waiting consumer, median | {statistics.median(reached) * 1e3:.2f} ms | |")
    say(f"| the same, P99 | {(quantile(reached, 0.99) or 0) * 1e3:.2f} ms | |")
    say(f"| a bare watch and read, median | {statistics.median(bare) * 1e3:.2f} ms | |")
    say(f"| ratio | {statistics.median(reached) / statistics.median(bare):.2f} | {'<= 4' if wanted[0] else ''} |")
    say(f"| processes that wake for an enqueue, median | {statistics.median(woken)} | {wanted[1]} |")


def watch_and_read(db: Any, key: bytes) -> float:
    """Return how long it takes until a watch fires and its key is read."""
    tr = db.create_transaction()
    watch = tr.watch(key)
    tr.commit().wait()
    time.sleep(0.05)
    began = time.perf_counter()
    db[key] = os.urandom(8)
    watch.wait()
    _ = bytes(db[key])
    return time.perf_counter() - began


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
