"""PostgreSQL and Redis for one run: started on a socket in a folder of their own, and stopped by their process."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from tests.benchmarks.contenders import Stand
from tests.benchmarks.harness import say

STARTED_WITHIN_SECONDS = 30.0
UNPRIVILEGED = "postgres"
"""Who runs PostgreSQL where the benchmark is run by root, whom it refuses; Debian's package makes that user."""


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[list[Stand]]:
    """Yield those of the two that are installed; say what would install the others."""
    with contextlib.ExitStack() as stack:
        stands = []
        for start in (_postgresql, _redis):
            stand = stack.enter_context(start(folder))
            if stand is not None:
                stands.append(stand)
        yield stands


@contextlib.contextmanager
def _postgresql(folder: Path) -> Iterator[Stand | None]:
    programs = _programs_of_postgresql()
    if programs is None:
        say("\nSkipped: PostgreSQL, which is not installed: sudo apt-get install postgresql")
        yield None
        return
    home = folder / "postgresql"
    home.mkdir(mode=0o700)  # whoever can enter may connect
    user = UNPRIVILEGED if os.getuid() == 0 else None
    if user is not None:
        # The folder above is the run's own, and nobody else's to enter.
        folder.chmod(0o711)
        shutil.chown(home, user)
    data = home / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C"],
        check=True,
        user=user,
        stdout=subprocess.DEVNULL,
        cwd=home,
    )
    settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}", "-c", "max_connections=400"]
    command = [str(programs / "postgres"), "-D", str(data), *settings]
    where = f"host={home} user=bench dbname=postgres"

    def answers() -> bool:
        try:
            psycopg.connect(where).close()
        except psycopg.OperationalError:
            return False
        return True

    with _running(command, answers, user=user, log=home / "log", stop=signal.SIGINT):
        marks = ("postgres", str(data))
        yield Stand("PostgreSQL, SKIP LOCKED", "contenders_servers:PostgreSQL", where, server=marks)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[Stand | None]:
    program = shutil.which("redis-server")
    if program is None:
        say("\nSkipped: Redis, which is not installed: sudo apt-get install redis-server")
        yield None
        return
    home = folder / "redis"
    home.mkdir(mode=0o700)  # whoever can enter may connect
    socket = home / "socket"
    durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", str(home), *durable]
    with _running(command, socket.exists, user=None, log=home / "log", stop=signal.SIGTERM):
        yield Stand("Redis list", "contenders_servers:Redis", str(socket), server=("redis-server", str(socket)))


@contextlib.contextmanager
def _running(
    command: Sequence[str], answers: Callable[[], bool], *, user: str | None, log: Path, stop: signal.Signals
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, user=user, cwd=log.parent)
    try:
        deadline = time.monotonic() + STARTED_WITHIN_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(stop)
        process.wait()


def _programs_of_postgresql() -> Path | None:
    """Return the folder of its programs, which Debian keeps off the PATH."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (folder for folder in folders if all((folder / name).exists() for name in ("initdb", "postgres"))), None
    )
