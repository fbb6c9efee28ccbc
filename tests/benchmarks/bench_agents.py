"""Agents: dialogs a second of an agent server, beside beanstalkd's ``put``, ``reserve`` and ``delete``.

One dialog is one connection, on both sides, as the protocol of agents has it. Both servers wait for the disk at each
write (beanstalkd ``-f 0``). The clients are the same threads with plain sockets. They say all lines of a dialog at
once, and read until the server closes. All agents have one type, and share its queue. beanstalkd makes an item
available again when the connection that reserved it closes, so each of its clients has a tube of its own. It does not
write a reservation to the disk: two of its three dialogs wait for the disk, and all three of an agent.

One client is bound by the transactions. Two contestants show the bound: a transaction that sets one key, durably, in
this process; and a bare asyncio server that makes one such transaction for each dialog.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fdbqueue
from tests.benchmarks import bare_server as bare_server_module
from tests.benchmarks.harness import SIZE, Contestant, Sample, compare, heading, in_threads, say
from tests.helpers.agents import confirming, receiving, sending

TYPE = 5
DATA = b"x" * 100
LARGE = b"x" * 65_536
TRIPLES = {"quick": 20, "full": 1_000}.get(SIZE, 300)
"""How many times something is sent, received and confirmed, by all clients together."""
STARTED_WITHIN_SECONDS = 30.0

Triple = Callable[[int, bytes], None]
"""Sends data, receives it and confirms it, in three dialogs, as one client."""


def main() -> None:
    heading("Agents")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        own = stack.enter_context(agent_server(Path(folder)))
        peer = stack.enter_context(beanstalkd(Path(folder)))
        for clients, wanted in ((1, 0.3), (64, 0.5)):
            contestants = [Contestant("agents", partial(measured, partial(with_agents, own), clients, DATA), wanted)]
            if peer is not None:
                first = Contestant("beanstalkd", partial(measured, partial(with_beanstalkd, peer), clients, DATA))
                contestants.insert(0, first)
            if clients == 1:
                db = stack.enter_context(fdbqueue.open(f"file:{Path(folder) / 'bare'}"))
                contestants.append(Contestant("a bare transaction", partial(measured, partial(bare, db), 1, DATA)))
                least = stack.enter_context(bare_server(Path(folder)))
                served = partial(with_bare_server, least)
                contestants.append(Contestant("a bare asyncio server", partial(measured, served, 1, DATA)))
            compare(f"dialogs of {len(DATA)} bytes, {clients} clients at once", contestants)
            if clients == 1:
                say(
                    "\nThe last two rows are the bound for one client: a transaction that sets one key, durably, in the"
                    " client's own process; and a bare asyncio server that makes such a transaction for each dialog. It"
                    " reads no line, leases nothing and keeps no order."
                )
        large = Contestant("agents", partial(measured, partial(with_agents, own), 64, LARGE))
        compare("dialogs of 64 KiB, 64 clients at once", [large])


def measured(triple: Triple, clients: int, data: bytes) -> Sample:
    """Let clients send, receive and confirm at once. An item of the sample is a dialog."""
    each = max(1, TRIPLES // clients)
    taken = in_threads(clients, each, lambda number: triple(number // each, data))
    return replace(taken, items=3 * taken.items, latencies=[seconds / 3 for seconds in taken.latencies])


def dialog(port: int, script: bytes) -> bytes:
    """Say all of a dialog, and return all that the server says."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(script)
        answers = bytearray()
        while piece := connection.recv(262_144):
            answers += piece
    return bytes(answers)


def with_agents(port: int, number: int, data: bytes) -> None:
    """Send, receive and confirm."""
    expect(dialog(port, sending(TYPE, data)), b"OK.\nBye.\n")
    answers = expect(dialog(port, receiving(TYPE)), b"Data is locked.\nBye.\n")
    id = int(answers.split(b"Data ID is ", 1)[1].split(b".", 1)[0])
    expect(dialog(port, confirming(TYPE, id)), b"OK.\nBye.\n")


def bare(db: Any, number: int, data: bytes) -> None:
    """Set a key and commit, three times."""
    for _ in range(3):
        tr = db.create_transaction()
        tr[b"key"] = data
        tr.commit().wait()


def with_bare_server(port: int, number: int, data: bytes) -> None:
    """Have a key set in three dialogs."""
    for _ in range(3):
        expect(dialog(port, data), bare_server_module.ANSWER)


def with_beanstalkd(port: int, number: int, data: bytes) -> None:
    """Put, reserve and delete."""
    tube = b"%d" % number
    put = dialog(port, b"use %b\r\nput 0 0 60 %d\r\n%b\r\nquit\r\n" % (tube, len(data), data))
    expect(put, b"\r\n", b"INSERTED ")
    answers = dialog(port, b"watch %b\r\nignore default\r\nreserve-with-timeout 0\r\nquit\r\n" % tube)
    id = expect(answers, b"\r\n", b"RESERVED ").split(b"RESERVED ", 1)[1].split(b" ", 1)[0]
    expect(dialog(port, b"delete %b\r\nquit\r\n" % id), b"DELETED\r\n")


def expect(answers: bytes, end: bytes, part: bytes = b"") -> bytes:
    """Return answers that end so, and have this part."""
    if not (answers.endswith(end) and part in answers):
        raise RuntimeError(f"the server said {answers[-200:]!r}")
    return answers


@contextlib.contextmanager
def agent_server(folder: Path) -> Iterator[int]:
    """Start a server on a folder; yield its port."""
    port = free_port()
    url, listen = f"file:{folder / 'db'}", f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "fdbqueue", "agents", "serve", "--url", url, "--listen", listen, "--wait", "0"]
    with running(command, port):
        yield port


@contextlib.contextmanager
def bare_server(folder: Path) -> Iterator[int]:
    """Start the least server on a folder; yield its port."""
    port = free_port()
    with running([sys.executable, "-m", bare_server_module.__name__, f"file:{folder / 'least'}", str(port)], port):
        yield port


@contextlib.contextmanager
def beanstalkd(folder: Path) -> Iterator[int | None]:
    """Start beanstalkd on a folder; yield its port, or None where it is not installed."""
    program = shutil.which("beanstalkd")
    if program is None:
        say("\nSkipped: beanstalkd, which is not installed: sudo apt-get install beanstalkd")
        yield None
        return
    port = free_port()
    (folder / "beanstalkd").mkdir()
    with running([program, "-l", "127.0.0.1", "-p", str(port), "-b", str(folder / "beanstalkd"), "-f", "0"], port):
        yield port


@contextlib.contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    """Run a server until the end, from the moment when it answers."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + STARTED_WITHIN_SECONDS
            while not listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} did not start: {log.read()[-2_000:]!r}")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait()


def listens(port: int) -> bool:
    """Return whether a server listens."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
