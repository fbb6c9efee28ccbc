"""A consumer in the lifespan of a FastAPI application, under a real uvicorn that is told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases


class Server:
    """A uvicorn in a process of its own."""

    def __init__(self, repository: Path, url: str, space: Subspace, application: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(repository),
            "PYTHONUNBUFFERED": "1",
            "SHOP_URL": url,
            "SHOP_SPACE": space.key().hex(),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", f"tests.helpers.shop:{application}", "--port", "0"],
            cwd=repository,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        self.address = self._read_until(r"running on (http://\S+)")
        self._rest = threading.Thread(target=self._read_until, args=("$nothing",), daemon=True)
        self._rest.start()

    def _read_until(self, pattern: str) -> str:
        assert self._process.stderr is not None
        while line := self._process.stderr.readline():
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        return ""

    def end(self, *signals: signal.Signals) -> int:
        """Send signals, and return the exit code."""
        for number in signals:
            self._process.send_signal(number)
        code = self._process.wait(60)
        self._rest.join(60)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._rest.join()
        if self._process.stderr is not None:
            self._process.stderr.close()


@pytest.mark.slow
@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_stopped_by_a_signal_loses_no_accepted_order(
    db: Any, url: str, space: Subspace, repository: Path, number: signal.Signals
) -> None:
    orders = Leases(Queue(space["orders"], codec="str"))
    taken: list[str] = []
    many = threading.Event()

    def post() -> None:
        with httpx.Client(base_url=server.address) as client:
            for order in range(100_000):
                try:
                    client.post(f"/orders/{order}").raise_for_status()
                except httpx.TransportError:
                    return  # it does not listen any more
                taken.append(str(order))
                if len(taken) == 50:
                    many.set()

    bare = Server(repository, url, space, "bare")
    server = Server(repository, url, space, "app")
    try:
        assert server.address, "".join(server.lines)
        own_code = bare.end(number)
        poster = threading.Thread(target=post)
        poster.start()
        assert many.wait(60), "".join(server.lines)
        assert server.end(number) == own_code
        poster.join(60)
        assert not poster.is_alive()
    finally:
        bare.kill()
        server.kill()
    handled = {space["handled"].unpack(row.key)[0] for row in db.get_range_startswith(space["handled"].key())}
    waiting = {item.value for item in orders.queue.browse(db)}
    stats = orders.stats(db)
    assert set(taken) <= handled | waiting
    assert handled & waiting == set()
    assert (stats.leased, stats.dequeued) == (0, len(handled))
    printed = "".join(server.lines)
    assert "Application shutdown complete" in printed
    assert "Traceback" not in printed
