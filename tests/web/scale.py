"""How long the web page takes to its first byte, with many queues and one long one.

    python -m tests.web.scale /tmp/scale --items 1000000

It fills the folder, unless it is filled already, serves the page as a process of its own, and prints a table. Run it on
a machine that has nothing else to do; it prints the load average beside the figures.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import fdbqueue
from fdbqueue.layers import Leases

LONG = "long"
QUEUES = 1_000
DEAD = 10_000
BATCH = 1_000
PAGES = {
    "all queues": "/",
    "a queue": f"/queue?{urlencode({'queue': LONG})}",
    "items, a search that finds nothing": f"/items?{urlencode({'queue': LONG, 'text': 'there is no such text'})}",
    "dead letters": f"/dead?{urlencode({'queue': LONG})}",
}


@dataclass(frozen=True, slots=True)
class Times:
    """The milliseconds to the first byte of one page."""

    page: str
    median: float
    p99: float
    cpu: float
    """Of processor time, in the mean: what a busy machine does not change much."""


def fill(url: str, items: int, *, queues: int = QUEUES, dead: int = DEAD) -> None:
    """Make many small queues, and a long one with dead letters of two kinds."""
    with fdbqueue.open(url) as db:
        long = Leases(fdbqueue.Queue(LONG, codec="json"), max_attempts=1)
        if long.stats(db).enqueued >= items:
            return
        for number in range(queues):
            fdbqueue.Queue(("many", number), codec="json").enqueue_many(db, [{"n": n} for n in range(3)])
        long.enqueue_many(db, ({"sku": f"cup {n}", "color": "red"} for n in range(items)))
        for begin in range(0, dead, BATCH):
            leases = long.lease_many(db, limit=BATCH)
            long.nack_many(db, leases, error=f"ValueError: no such sku {begin % 3}")


def served(url: str) -> tuple[subprocess.Popen[str], int]:
    """Start the page; return its process and its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fdbqueue", "web", "--listen", "127.0.0.1:0", "--url", url],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    line = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    assert found, line
    return process, int(found[1])


def first_byte(port: int, path: str) -> float:
    """Return the milliseconds until a page begins to arrive, over a new connection."""
    begun = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    took = (time.perf_counter() - begun) * 1_000
    answer.read()
    connection.close()
    assert answer.status == 200, f"{path}: {answer.status}"
    return took


def measured(url: str, requests: int = 50) -> list[Times]:
    """Load each page several times, in turns, from a server that has been asked once."""
    process, port = served(url)
    try:
        first_byte(port, "/")
        found: dict[str, list[float]] = {name: [] for name in PAGES}
        used = dict.fromkeys(PAGES, 0.0)
        for name, path in PAGES.items():
            before = cpu_seconds(process.pid)
            for _ in range(requests):
                found[name].append(first_byte(port, path))
            used[name] = (cpu_seconds(process.pid) - before) * 1_000 / requests
    finally:
        process.terminate()
        process.wait(20)
        assert process.stderr
        process.stderr.close()
    return [_times(name, times, used[name]) for name, times in found.items()]


def _times(page: str, found: Iterable[float], cpu: float) -> Times:
    ordered = sorted(found)
    return Times(page, statistics.median(ordered), ordered[-(-99 * len(ordered) // 100) - 1], cpu)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, as Linux counts it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the queues are, or will be")
    parser.add_argument("--items", type=int, default=10**6)
    parser.add_argument("--requests", type=int, default=50)
    given = parser.parse_args()
    url = f"file:{given.folder}?durability=relaxed"
    begun = time.perf_counter()
    fill(url, given.items)
    print(f"filled in {time.perf_counter() - begun:,.0f} s")
    loads = [os.getloadavg()[0]]
    times = measured(url, given.requests)
    loads.append(os.getloadavg()[0])
    print(f"{QUEUES:,} queues, {given.items:,} items in one; {given.requests} requests each")
    print(f"{os.cpu_count()} cores, load average {loads[0]:.1f} before and {loads[1]:.1f} after\n")
    print("| page | P50 | P99 | processor time |")
    print("| --- | --- | --- | --- |")
    for one in times:
        print(f"| {one.page} | {one.median:,.0f} ms | {one.p99:,.0f} ms | {one.cpu:,.0f} ms |")


if __name__ == "__main__":
    main()
