"""A TCP proxy on loopback that cuts connections, and delays what goes through them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

PIECE_BYTES = 65_536


class Proxy:
    """Stands between clients and a server, in a thread of its own.

    Args:
        port: where clients come.
        behind: the server's own port.
    """

    def __init__(self, port: int, behind: int) -> None:
        self._port = port
        self._behind = behind
        self._delay_seconds = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._up.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self) -> None:
        """End all connections, in the middle of whatever they carry."""
        self._loop.call_soon_threadsafe(self._cut)

    def delay(self, seconds: float, *, lasting: float) -> None:
        """Delay every piece by so many seconds, for some time."""
        self._loop.call_soon_threadsafe(self._set_delay, seconds)
        self._loop.call_soon_threadsafe(self._loop.call_later, lasting, self._set_delay, 0.0)

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _set_delay(self, seconds: float) -> None:
        self._delay_seconds = seconds

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self._port))
        self._up.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        except OSError:  # the server is down
            writer.transport.abort()
            return
        ends = {writer, behind_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._pump(reader, behind_writer), self._pump(behind_reader, writer))
        except asyncio.CancelledError:  # the proxy closes; nobody waits for this task
            return
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(self._delay_seconds)
                writer.write(piece)
                await writer.drain()
        writer.close()
