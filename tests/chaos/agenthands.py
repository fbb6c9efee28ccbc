"""Processes of a round with agents: servers, and clients that send, receive and confirm, or cut their connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fdbqueue import Queue
from fdbqueue.agents import AgentClient, AgentServer, words
from fdbqueue.layers.blobs import Blob, Blobs
from fdbqueue.layers.leases import Leases
from tests.chaos.hand import DURATION_S, Hand
from tests.chaos.history import OK, History, content, value_of
from tests.chaos.kinds import MAX_ATTEMPTS

TYPE = 5
"""The agent type of the round's queue."""
CAST = ("server", "server", "agent", "agent", "agent")
PATIENCE_S = 5.0
"""How long a client waits for an answer: longer than a server is stopped for."""
REMEMBERED = 20
LARGE_BYTES = 200_000


class AgentHost(Hand):
    """Runs a server on a unix socket of its own. The successor of a killed process takes the socket over."""

    def work(self, stop: Path) -> None:
        asyncio.run(self._serve(stop))

    async def _serve(self, stop: Path) -> None:
        name, _, _ = self.by.partition(".")
        listen = f"unix:{stop.parent / name}-{self.number}.socket"
        queue = {TYPE: self.leases}
        async with AgentServer(self.db, queue.get, lock=DURATION_S, wait=0.1, listen=listen):
            while not stop.exists():  # noqa: ASYNC240 - it is in memory, or on a local disk
                self.tools.clock.maybe_jump()
                await asyncio.sleep(0.05)


class Agent(Hand):
    """A client: every dialog is with any of the servers."""

    VERBS: ClassVar[dict[str, int]] = {
        "send": 8,
        "send large": 1,
        "receive": 6,
        "confirm": 6,
        "cut a send": 2,
        "cut a receive": 2,
        "cut a confirm": 1,
    }

    def work(self, stop: Path) -> None:
        self.folder = stop.parent
        self.held: list[tuple[int, str]] = []
        super().work(stop)

    def _address(self) -> str | None:
        sockets = sorted(self.folder.glob("*.socket"))
        if not sockets:
            time.sleep(0.1)
            return None
        return str(self.dice.choice(sockets))

    def _call(self, verb: str, asked: dict[str, Any], act: Callable[[AgentClient], dict[str, Any] | None]) -> bool:
        address = self._address()
        if address is None:
            return False
        if self.call(verb, asked, lambda: act(AgentClient(f"unix:{address}", timeout=PATIENCE_S))):
            return True
        time.sleep(0.02)  # the server may be down
        return False

    def _value(self, size: int) -> tuple[dict[str, Any], bytes]:
        name = self.name()
        return {"name": name, "count": 1, "size": size, "headers": None}, value_of(name, 0, size)

    def send(self, size: int = 40) -> None:
        asked, value = self._value(size)
        self._call("agent send", asked, lambda client: client.send(TYPE, value))

    def send_large(self) -> None:
        self.send(LARGE_BYTES)

    def receive(self) -> None:
        def act(client: AgentClient) -> dict[str, Any]:
            received = client.receive(TYPE)
            if received is None:
                return {}
            got = received.id, content(received.data).hex()
            self.held = [*self.held, got][-REMEMBERED:]
            return {"received": got}

        if self._call("agent receive", {}, act) and self.held and self.dice.random() < 0.7:
            self._confirm(self.held[-1])

    def confirm(self) -> None:
        """Confirm again, or late."""
        if self.held:
            self._confirm(self.dice.choice(self.held))

    def _confirm(self, got: tuple[int, str]) -> None:
        self._call("agent confirm", {"confirms": got}, lambda client: client.confirm(TYPE, got[0]))

    def cut_a_send(self) -> None:
        asked, value = self._value(self.dice.choice([40, 40, 5_000]))
        told = (words.SEND_TO.said(TYPE), words.SIZE.said(len(value)), words.DATA.said(), value + words.DOT.said())
        lines = [words.HI.said(), words.VERSION.said(), *told]
        self._cut("agent cut send", asked, lines)

    def cut_a_receive(self) -> None:
        told = (words.AGENT.said(TYPE), words.RECEIVE.said(), words.OK.said(), words.OK.said())
        lines = [words.HI.said(), words.VERSION.said(), *told]
        self._cut("agent cut receive", {}, lines)

    def cut_a_confirm(self) -> None:
        if self.held:
            got = self.dice.choice(self.held)
            lines = [words.HI.said(), words.VERSION.said(), words.AGENT.said(TYPE), words.CONFIRM.said(got[0])]
            self._cut("agent cut confirm", {"confirms": got}, lines)

    def _cut(self, verb: str, asked: dict[str, Any], lines: list[bytes]) -> None:
        """Say a part of a dialog, ahead of the answers, and cut the connection."""
        address = self._address()
        if address is None:
            return
        said = b"\n".join(lines) + b"\n"
        said = said[: self.dice.randint(0, len(said))]
        # What ends before its last line does nothing. The line itself counts without its end, which may still come.
        whole = said.startswith(b"\n".join(lines))

        def act() -> dict[str, Any]:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
                one.settimeout(PATIENCE_S)
                one.connect(address)
                one.sendall(said)
                if self.dice.random() < 0.5:
                    one.recv(self.dice.choice([1, 40, 4_000]))
            return {"whole": whole}

        self.call(verb, asked, act)


def drain_agents(db: Any, queue: Queue[bytes], history: History, *, clock: Callable[[], float]) -> None:
    """Take all items out that are left, and tell what they were."""
    leases = Leases(queue, max_attempts=MAX_ATTEMPTS, clock=clock)
    blobs = Blobs(leases)
    while True:
        while leases.reclaim(db).more:
            continue
        redriven = leases.dead.redrive(db)
        lease = leases.lease(db)
        if lease is None and not redriven:
            return
        while lease is not None:
            value: bytes | Blob = lease.value
            number = history.begin("agent drain", {})
            data = blobs.read(db, lease).read() if isinstance(value, Blob) else value
            history.end(number, OK, {"drained": content(data).hex()})
            leases.ack(db, lease)
            lease = leases.lease(db)
