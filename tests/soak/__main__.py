"""Run all that production runs for a while, break some of it, and see that memory stays flat and nothing is lost.

``python -m tests.soak --minutes 60 --url fdb:PATH`` starts a producer, consumers with metrics and middleware, and the
web page with metrics. Consumers are killed, stopped and started again. The page and the metrics are read all the time,
and dead letters are purged by the page's own form. At the end all items must have left, and `check` must find nothing.

Memory is the anonymous memory of each process that lives from the beginning to the end: the mapped pages of an embedded
folder belong to the page cache. It may grow by 3% and 3 MB from the second third of the time to the last.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import fdbqueue
from tests.soak.worker import bank, orders

SAMPLE_SECONDS = 2.0
KILL_SECONDS = 12.0
STOPPED_SECONDS = 3.0
PURGE_SECONDS = 20.0
END_SECONDS = 120.0
GROWTH, GROWTH_MB = 0.03, 3.0
NAME = '["soak", "orders"]'
BANK = '["soak", "bank"]'
WHERE = "color = 'red'"
PAGES = (
    "",
    f"queue?queue={urllib.parse.quote(NAME)}",
    f"items?queue={urllib.parse.quote(NAME)}&state=available&where={urllib.parse.quote(WHERE)}",
    f"items?queue={urllib.parse.quote(NAME)}&state=dead",
    f"dead?queue={urllib.parse.quote(NAME)}",
    f"sessions?queue={urllib.parse.quote(BANK)}",
    f"parts?queue={urllib.parse.quote(NAME)}",
)


class Process:
    """A process of the soak, and its memory over time."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self.samples: list[tuple[float, float]] = []
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def sample(self, at: float) -> None:
        """Note its anonymous memory, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        if found:
            self.samples.append((at, int(found[1]) / 1024))

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Stop it as a service manager does; return its exit code."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def thirds(self) -> list[float]:
        """Return the median memory of each third of the time."""
        size = len(self.samples) // 3
        return [statistics.median(mb for _, mb in self.samples[at : at + size]) for at in (0, size, 2 * size)]

    def is_flat(self) -> bool:
        """Return whether its memory did not grow from the second third to the last."""
        _, middle, last = self.thirds()
        return last <= middle * (1 + GROWTH) + GROWTH_MB


class Soak:
    """One run.

    Args:
        url: the database; it gets the queues ("soak", ...), which must not be there yet.
        seed: what is killed, and when.
        folder: for addresses and logs.
    """

    def __init__(self, url: str, seed: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        web = [sys.executable, "-m", "fdbqueue", "web", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        self.web = Process("web page", [*web, "--allow-changes", "--url", url], folder / "web.log")
        self.steady = [self._worker("consume", f"consumer-{number}") for number in range(2)]
        self._killed = [self._worker("consume", f"killed-{number}") for number in range(2)]
        self.producer = self._worker("produce", "producer")

    def _worker(self, work: str, name: str) -> Process:
        told = str(self._folder / f"{name}.address")
        command = [sys.executable, "-m", "tests.soak.worker", self._url, work, name, told]
        return Process(name, command, self._folder / f"{name}.log")

    @property
    def _living(self) -> list[Process]:
        return [self.web, *self.steady, self.producer]

    def run(self, seconds: float) -> None:
        """Run for so long."""
        began = time.monotonic()
        due = {
            "sample": began + 5.0,
            "kill": began + KILL_SECONDS,
            "purge": began + PURGE_SECONDS,
            "tell": began + 60.0,
        }
        self._page = self._address("web.log", r"page is at (http\S+)/\.")
        while (now := time.monotonic()) < began + seconds:
            if now >= due["sample"]:
                for process in self._living:
                    if process.process.poll() is not None:
                        raise SystemExit(f"{process.name} has ended with {process.process.returncode}: {self._folder}")
                    process.sample(now - began)
                due["sample"] = now + SAMPLE_SECONDS
            if now >= due["kill"]:
                self._break()
                due["kill"] = now + self._dice.uniform(0.5, 1.5) * KILL_SECONDS
            if now >= due["purge"]:
                self._purge()
                due["purge"] = now + PURGE_SECONDS
            if now >= due["tell"]:
                told = ", ".join(f"{one.name} {one.samples[-1][1]:.1f}" for one in self._living)
                print(f"{(now - began) / 60:.0f} min, MB: {told}; {dict(self.counts)}", flush=True)
                due["tell"] = now + 60.0
            self._look()

    def _address(self, log: str, pattern: str) -> str:
        for _ in range(600):
            path = self._folder / log
            found = re.search(pattern, path.read_text()) if path.exists() else None
            if found:
                return found[1]
            time.sleep(0.1)
        raise SystemExit(f"{log} does not say where it listens: {self._folder}")

    def _break(self) -> None:
        victim = self._dice.choice(self._killed)
        if self._dice.random() < 0.3:
            victim.process.send_signal(signal.SIGSTOP)  # perhaps it holds the writer's lock, and all others wait
            time.sleep(STOPPED_SECONDS)
            victim.process.send_signal(signal.SIGCONT)
            self.counts["stopped"] += 1
        else:
            victim.kill()
            victim.start()
            self.counts["killed"] += 1

    def _look(self) -> None:
        addresses = [f"{self._page}/{page}" for page in PAGES]
        addresses.append(self._address("web.log", r"metrics at (http\S+/metrics)\."))
        addresses += [f"http://{(self._folder / f'{one.name}.address').read_text()}/metrics" for one in self.steady]
        for address in addresses:
            try:
                with self._opener.open(address, timeout=30) as answer:
                    answer.read()
                self.counts["looks"] += 1
            except urllib.error.HTTPError as error:
                error.close()
                self.counts[f"page {error.code}"] += 1
            time.sleep(0.05)

    def _purge(self) -> None:
        """Purge all dead letters as a person does: by the preview, and its confirmation."""
        address = f"{self._page}/items?queue={urllib.parse.quote(NAME)}&state=dead"
        with self._opener.open(address, timeout=30) as answer:
            page = answer.read().decode()
        token = re.search(r'name="csrf" value="(\w+)"', page)
        if token is None:
            return
        form = {"csrf": token[1], "queue": NAME, "change": "purge", "state": "dead", "all": "yes"}
        for step, more in (("preview", {}), ("apply", {"most": "1000"})):
            data = urllib.parse.urlencode({**form, **more}).encode()
            request = urllib.request.Request(f"{self._page}/{step}", data, {"Origin": self._page})
            try:
                with self._opener.open(request, timeout=60) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                error.close()
                self.counts[f"purge {error.code}"] += 1
                return
        self.counts["purges"] += 1

    def finish(self) -> list[str]:
        """Stop the producer, wait until the queues are empty, end all, and return what is wrong."""
        wrong = [f"the producer ended with {code}" for code in (self.producer.end(),) if code]
        with fdbqueue.open(self._url) as db:
            wrong += self._left(db)
            for process in (self.web, *self.steady, *self._killed):
                if (code := process.end()) not in (0, -15, 143):
                    wrong.append(f"{process.name} ended with {code}")
            for queue in (orders().queue, bank().queue):
                wrong += [f"check: {problem}" for problem in fdbqueue.check(db, queue).problems[:5]]
            plain, sessions = orders().stats(db), bank().stats(db)
            print(f"enqueued {plain.enqueued:,} and {sessions.enqueued:,} in sessions; {dict(self.counts)}", flush=True)
            for stats in (plain, sessions):
                gone = stats.dequeued + stats.purged + stats.dead
                if gone != stats.enqueued:
                    wrong.append(f"{stats.enqueued:,} items were enqueued, and {gone:,} ended: {stats}")
            orders().queue.clear(db)
            bank().queue.clear(db)
        wrong += [f"{one.name} grew: {one.thirds()}" for one in self._living if not one.is_flat()]
        return wrong

    def _left(self, db: Any) -> list[str]:
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until:
            plain, sessions = orders().stats(db), bank().stats(db)
            left = plain.available + plain.leased + plain.delayed + sessions.available + sessions.delayed
            if not left:
                return []
            time.sleep(0.5)
        return [f"{left:,} items are left after {END_SECONDS:.0f} s: {plain}, {sessions}"]

    def kill(self) -> None:
        """End what is left."""
        for process in (*self._living, *self._killed):
            if process.process.poll() is None:
                process.kill()

    def table(self) -> str:
        """Return the memory of each process by thirds of the time."""
        rows = ["| process | first third | second | last | flat |", "|---|---:|---:|---:|---|"]
        for one in self._living:
            cells = " | ".join(f"{mb:.1f} MB" for mb in one.thirds())
            rows.append(f"| {one.name} | {cells} | {'yes' if one.is_flat() else 'NO'} |")
        return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run all of production for a while.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--url", default="file:", help="file: for a temporary folder, or fdb:CLUSTER_FILE")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="what is killed, and when; printed")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fdbqueue soak "))
    url = given.url if given.url != "file:" else f"file:{folder / 'db'}"
    os.environ["PYTHONWARNINGS"] = "ignore"
    # With an arena for each thread, glibc keeps free memory in many places, and grows by 1 MB a minute.
    os.environ.setdefault("MALLOC_ARENA_MAX", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with fdbqueue.open(url) as db:
        orders().queue.clear(db)
        bank().queue.clear(db)
        orders().enqueue(db, {"number": 0, "kind": "usual"})
        bank().enqueue(db, {"number": 0, "kind": "usual"}, session="customer 0")
    print(f"seed {given.seed}, {given.minutes:g} minutes, {url}", flush=True)
    soak = Soak(url, given.seed, folder)
    try:
        soak.run(given.minutes * 60)
        wrong = soak.finish()
        print(soak.table())
    finally:
        soak.kill()
    for problem in wrong:
        print(f"WRONG: {problem}")
    print(f"NOT OK; the logs are in {folder}" if wrong else "OK")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
