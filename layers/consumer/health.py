"""Say whether a consumer, or a worker, is alive, to a probe: in a file, or by HTTP.

A consumer is alive if its event loop has turned within some seconds, and if the database has answered it: a lease call
has ended, or a small read has, which the consumer makes every few seconds. A handler that blocks the event loop, and a
database that does not answer, make it not alive. A long handler and an empty or paused queue do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any

from fdbqueue.base.arguments import host_and_port

BEAT_SECONDS = 1.0
"""How often the event loop says that it turns."""
ASK_SECONDS = 5.0
"""How often the database is asked."""
TURN_SECONDS = 15.0
"""How long a loop may not turn before the consumer is not alive."""
ANSWER_SECONDS = 30.0
"""How long the database may not answer."""
FILE = "file:"


class Health:
    """Whether one consumer is alive.

    Args:
        about: what is told beside it, such as the consumer's name.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(self, about: dict[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._about = about
        self._clock = clock
        self._turned = self._answered = clock()

    @property
    def is_alive(self) -> bool:
        """Whether the loop turns and the database answers."""
        return self._since(self._turned) <= TURN_SECONDS and self._since(self._answered) <= ANSWER_SECONDS

    def told(self) -> dict[str, Any]:
        """Return what a probe is told."""
        return {
            "alive": self.is_alive,
            **self._about,
            "turned_s": round(self._since(self._turned), 3),
            "answered_s": round(self._since(self._answered), 3),
        }

    def turned(self) -> None:
        """Note that the event loop turns."""
        self._turned = self._clock()

    def answered(self) -> None:
        """Note that the database has answered."""
        self._answered = self._clock()

    def _since(self, at: float) -> float:
        return max(0.0, self._clock() - at)

    async def beat(self, ask: Callable[[], Coroutine[Any, Any, object]], wrote: Callable[[], None]) -> None:
        """Note that the event loop turns, and that the database answers, until the task is cancelled.

        Args:
            ask: reads something of the database.
            wrote: called after each beat.
        """
        asking: asyncio.Task[object] | None = None
        ask_at = self._clock()
        try:
            while True:
                self.turned()
                if asking is not None and asking.done():
                    if not asking.cancelled() and asking.exception() is None:
                        self.answered()
                    asking = None
                if asking is None and self._clock() >= ask_at:
                    ask_at = self._clock() + ASK_SECONDS
                    asking = asyncio.get_running_loop().create_task(ask())
                wrote()
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)


class Probe:
    """Where a consumer says whether it is alive.

    Args:
        where: ``file:PATH``, or a port of the loopback interface, or ``HOST:PORT``.

    Raises:
        TypeError, ValueError: it is something else.
    """

    def __init__(self, where: object) -> None:
        if isinstance(where, bool) or not isinstance(where, str | int):
            raise TypeError(f"health is 'file:PATH', a port or 'HOST:PORT', not {where!r}.")
        self.path = ""
        self.host, self.port = "127.0.0.1", 0
        if isinstance(where, str) and where.startswith(FILE):
            self.path = os.path.expanduser(where.removeprefix(FILE))
            if not self.path:
                raise ValueError("health='file:' names no file. Give file:PATH.")
            return
        if isinstance(where, str):
            self.host, where = host_and_port(where) or ("", -1)
        if not 0 <= where <= 65_535:
            raise ValueError("health is 'file:PATH', a port from 0 to 65535, or 'HOST:PORT', as '0.0.0.0:8080'.")
        self.port = where

    def open(self, health: Health) -> AbstractContextManager[Callable[[], None]]:
        """Answer probes in the body of a ``with``. It gives the function to call after each beat.

        Raises:
            OSError: the file can't be written, or the port is taken.
        """
        return self._in_file(health) if self.path else self._at_port(health)

    @contextlib.asynccontextmanager
    async def answering(self, health: Health, ask: Callable[[], Coroutine[Any, Any, object]]) -> AsyncIterator[None]:
        """Answer probes, and look whether the database answers, in the body of an ``async with``.

        Args:
            health: what probes are told.
            ask: reads something of the database.

        Raises: as `open`.
        """
        with self.open(health) as wrote:
            beating = asyncio.get_running_loop().create_task(health.beat(ask, wrote))
            try:
                yield
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)

    @contextlib.contextmanager
    def _in_file(self, health: Health) -> Iterator[Callable[[], None]]:
        aside = f"{self.path}.{os.getpid()}"

        def write() -> None:
            with open(aside, "w", encoding="utf-8") as file:
                json.dump(health.told(), file)
                file.write("\n")
            os.replace(aside, self.path)  # a probe never sees half a file

        write()
        try:
            yield write
        finally:
            for path in (self.path, aside):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    @contextlib.contextmanager
    def _at_port(self, health: Health) -> Iterator[Callable[[], None]]:
        from fdbqueue.base.http import asgi, serving  # slow to import

        def answer(_: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
            told = health.told()
            start("200 OK" if told["alive"] else "503 Service Unavailable", [("Content-Type", "application/json")])
            return [json.dumps(told).encode() + b"\n"]

        with serving(asgi(answer), self.host, self.port, name="fdbqueue-health") as self.port:
            yield _nothing


def _nothing() -> None:
    """Write nothing: the server asks."""
