"""A FoundationDB server of a run's own, behind a proxy: it can be killed, and its connections cut and delayed.

The server tells its clients the proxy's address for its own, so that nothing goes past the proxy.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.chaos.proxy import Proxy

PROGRAM_VARIABLE = "FDBQUEUE_CHAOS_SERVER"
SERVER_KILLED, CUT, DELAYED = "server killed and started again", "connections cut", "connections delayed"
STARTED_WITHIN_SECONDS = 180.0


def find_program() -> str | None:
    """Return the server's program: the one that the environment names, or the one on the path; None: there is none."""
    return os.environ.get(PROGRAM_VARIABLE) or shutil.which("fdbserver")


class Server:
    """A server with its data in a folder of its own, and its proxy."""

    def __init__(
        self, program: str, folder: Path, proxy: Proxy, public: int, own: int, options: Sequence[str] = ()
    ) -> None:
        self._options = options
        self.program = program
        self._folder = folder
        self._proxy = proxy
        self._addresses = ("-p", f"127.0.0.1:{public}", "-l", f"127.0.0.1:{own}")
        self.cluster_file = folder / "fdb.cluster"
        self.cluster_file.write_text(f"chaos:chaos@127.0.0.1:{public}\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server's process."""
        folder = self._folder
        files = ("-C", str(self.cluster_file), "-d", str(folder / "data"), "-L", str(folder))
        sizes = ("--memory", "2GiB", "--storage-memory", "512MiB", "--cache-memory", "64MiB")
        self._process = subprocess.Popen(
            [self.program, *self._addresses, *files, *sizes, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """Kill the server's process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def say(self, command: str) -> str:
        """Give fdbcli a command; return what it says."""
        beside = Path(self.program).with_name("fdbcli")
        cli = str(beside) if beside.exists() else "fdbcli"
        line = [cli, "-C", str(self.cluster_file), "--timeout", "5", "--exec", command]
        return subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout

    def configure(self, engine: str = "memory") -> None:
        """Make a new database, once the server answers."""
        deadline = time.monotonic() + STARTED_WITHIN_SECONDS
        while True:
            said = self.say(f"configure new single {engine}")
            if "Database created" in said or "already exists" in said:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start within {STARTED_WITHIN_SECONDS:.0f} s: {said}")
            time.sleep(0.2)

    def faults(self) -> tuple[Callable[[random.Random], str], ...]:
        """Return what can be done to it."""
        return (self._kill, self._cut, self._cut, self._delay)

    def _kill(self, dice: random.Random) -> str:
        self.stop()
        time.sleep(dice.uniform(0, 1))
        self.start()
        return SERVER_KILLED

    def _cut(self, dice: random.Random) -> str:
        self._proxy.cut()
        return CUT

    def _delay(self, dice: random.Random) -> str:
        self._proxy.delay(dice.uniform(0.005, 0.1), lasting=dice.uniform(0.5, 2))
        return DELAYED


@contextlib.contextmanager
def running(program: str, *options: str, engine: str = "memory") -> Iterator[Server]:
    """Run a server with a new database for a while."""
    public, own = _free_ports()
    with tempfile.TemporaryDirectory(prefix="fdbqueue-chaos-server-") as folder, Proxy(public, own) as proxy:
        server = Server(program, Path(folder), proxy, public, own, options)
        server.start()
        try:
            server.configure(engine)
            yield server
        finally:
            server.stop()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(two.getsockname()[1])
