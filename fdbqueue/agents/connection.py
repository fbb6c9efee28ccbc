"""One client's connection: passes bytes to and from the dialog, and carries out its events."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue.agents import dialog as said
from fdbqueue.agents.access import EVERYTHING, InFlight, Limits, Rights, names_of
from fdbqueue.agents.dialog import Dialog, End, Ended
from fdbqueue.agents.queues import AgentQueue, AgentUpload, Locked
from fdbqueue.agents.wire import PIECE_BYTES, Wire, peer_of
from fdbqueue.engine import FDBError
from fdbqueue.engine.errors import leaves_in_doubt
from fdbqueue.errors import FdbQueueError, LeaseLost

log = logging.getLogger("fdbqueue.agents")
"""Log lines never contain a byte of a client's data."""
AHEAD_BYTES = 1_024
"""The most bytes that a client may send ahead while the server looks for data."""
UPLOAD_BYTES = 10_000_000
DOWNLOAD_BYTES = 8_000_000
"""The most that one connection has in memory of its data: larger data passes through in pieces."""


@dataclass(slots=True)
class ServerState:
    """The state that all connections of a server share."""

    queue_of: Callable[[int], AgentQueue | None]
    limits: Limits
    in_flight: InFlight
    wait: float
    """How long a client that wants to receive waits for data."""


@dataclass(slots=True)
class _Work:
    """Unfinished work, which the connection undoes if it ends now."""

    queue: AgentQueue | None = None
    upload: AgentUpload | None = None
    locked: Locked | None = None
    moved: int = 0
    """Bytes of the client's data that came since the last 64 KiB."""


class Connection:
    """One client's connection.

    Args:
        shared: the state that all connections share.
        wire: its bytes.
        rights: what the client may do.
        on_gone: called when the connection is closed and nothing of it is left to do.
    """

    def __init__(
        self,
        shared: ServerState,
        wire: Wire,
        rights: Rights = EVERYTHING,
        on_gone: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        self.shared = shared
        self._limits = shared.limits
        self.wire = wire
        self._rights = rights
        self._on_gone = on_gone
        self.dialog = Dialog(line_bytes=shared.limits.line_bytes)
        self.work = _Work()
        self.line_seconds = self.seconds_left = shared.limits.line_seconds
        self._task: asyncio.Task[None] | None = None
        self._serving = False
        self._ending = False
        self._closed = False
        self._taking = False
        # Until the client says something, a timer is enough. Many clients are idle.
        self._silence = asyncio.get_running_loop().call_later(self.line_seconds, self._begin)
        wire.on_input, wire.on_lost = self._begin, self._gone

    @property
    def under_way(self) -> bool:
        """Whether the client is in the middle of its work."""
        return self.dialog.under_way or self._taking

    def hang_up(self, *, at_once: bool = False) -> None:
        """End the connection with Bye. `at_once`: do not even wait until its item is given back."""
        if self._closed:
            if at_once:
                self.wire.abort()
        elif at_once or not self._ending:
            self._ending = True
            if self._task is None:
                self._begin()
            elif self._serving:
                self._task.cancel()

    def _begin(self) -> None:
        """Serve the client from now on: it has said something, is gone, or was silent for too long."""
        self.wire.on_input = None
        self._silence.cancel()
        loop = asyncio.get_running_loop()
        self.line_seconds = max(0.0, self._silence.when() - loop.time())
        self._task = loop.create_task(self._run())

    async def _run(self) -> None:
        self._serving = True  # a task that is cancelled before it runs would not close the connection
        why: object = End.lost
        try:
            if not self._ending:
                why = await self._serve()
        except TimeoutError:
            why = "the client was too slow"
        except asyncio.CancelledError:
            why = "the server stops"
        except (ConnectionError, ssl.SSLError):
            pass
        except LeaseLost:
            why = "the lease was over before the client had the data"
        except (FdbQueueError, FDBError, OSError) as error:
            why = _told(error)
            log.warning("A dialog ended by an error: %s", why)
        except Exception as error:  # noqa: BLE001 - one connection's fault must not end the others
            why = type(error).__name__
            log.error("A dialog ended by a fault of the server: %s", _where(error))
        self._ending = True
        try:
            await self._put_in_order()
        finally:
            log.debug("A connection ended: %s", why)
            self._close()

    async def _serve(self) -> End:
        while True:
            event = await self._next()
            match event:
                case Ended(why):
                    return why
                case said.MessagePart(data):
                    await self._take_part(data)
                case said.TypeNamed(type, sends):
                    self._name(type, sends=sends)
                case said.SizeNamed(size):
                    self._size(size)
                case said.DataComplete():
                    await self._store()
                case said.ReceiveWanted():
                    await self._offer()
                case said.OfferTaken():
                    await self._send_data()
                case said.DataReceived():
                    await self._lock()
                case said.ConfirmWanted(id):
                    await self._confirm(id)

    async def _next(self) -> said.Event:
        """Return the next event; read until there is one."""
        if not self.work.moved:
            self.seconds_left, self.line_seconds = self.line_seconds, self._limits.line_seconds
        while (event := self.dialog.next()) is None:
            await self._flush()
            await self._read()
        return event

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        data = await self.wire.read(self.seconds_left)
        self.seconds_left -= loop.time() - since
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if data:
            self.dialog.feed(data)
        else:
            self.dialog.end_of_input()

    async def _flush(self) -> None:
        """Send the dialog's lines. A client that does not read them is too slow."""
        if output := self.dialog.output():
            await self.wire.write(output, self._limits.data_seconds)

    def _name(self, type: int, *, sends: bool) -> None:
        allowed = self._rights.allow(type, sends=sends)
        if not allowed:
            log.warning(
                "%s was refused: %s may not %s agent type %d.",
                peer_of(self.wire.transport),
                " ".join(map(repr, names_of(self.wire.extra("ssl_object")))),
                "send to" if sends else "receive as",
                type,
            )
        queue = self.shared.queue_of(type) if allowed else None
        if queue is None:
            self.dialog.refuse()
        else:
            self.work.queue = queue
            self.dialog.accept()

    def _size(self, size: int) -> None:
        if size > self._limits.max_size or not self.shared.in_flight.has_room(min(size, UPLOAD_BYTES)):
            self.dialog.refuse()
        else:
            self.work.upload = self._queue.upload(size)
            self.dialog.accept()

    async def _take_part(self, data: bytes) -> None:
        work = self.work
        if not work.moved:
            self.seconds_left = self._limits.data_seconds
        in_flight = self.shared.in_flight
        more = min(len(data), UPLOAD_BYTES - in_flight.held(self))
        if more and not in_flight.take(self, more):
            await self._wait_for_memory(more)
        if work.upload is not None:
            await work.upload.write(data)
        work.moved += len(data)
        if work.moved >= PIECE_BYTES:
            work.moved = 0

    async def _store(self) -> None:
        """Append the data to its queue. Fail! says that it is not in. Where that is not known, there is no answer."""
        self.work.moved = 0
        if self.work.upload is None:
            raise RuntimeError("no upload")
        try:
            await self.work.upload.commit()
            self._release()
        except (FdbQueueError, FDBError, OSError) as error:
            if isinstance(error, FDBError) and leaves_in_doubt(error):
                raise
            log.warning("Data was not stored: %s", _told(error))
            self.dialog.fail()
        else:
            self.dialog.accept()

    async def _offer(self) -> None:
        self._taking = True
        try:
            self.work.locked = await self._queue.take.aio()
        finally:
            self._taking = False
        if self.work.locked is None:
            await self._wait_while_it_stays()
        locked, in_flight = self.work.locked, self.shared.in_flight
        if locked is None or not in_flight.has_room(min(locked.size, DOWNLOAD_BYTES)):
            self.dialog.refuse()
            return
        if locked.in_memory:
            in_flight.take(self, locked.size)
        self.dialog.offer(locked.size, locked.id)

    async def _wait_while_it_stays(self) -> None:
        """Wait for data while the client stays. It may leave meanwhile, or send ahead."""
        await self._flush()
        wire, dialog = self.wire, self.dialog
        task = asyncio.ensure_future(self._queue.wait.aio(self.shared.wait))
        try:
            while not task.done():
                if wire.at_eof:
                    dialog.end_of_input()
                if isinstance(dialog.next(), Ended):
                    break
                if dialog.buffered >= AHEAD_BYTES or wire.at_eof:
                    await asyncio.wait({task})
                else:
                    if not wire.readable:
                        change: asyncio.Future[Any] = wire.change()
                        await asyncio.wait({task, change}, return_when=asyncio.FIRST_COMPLETED)
                    if wire.readable:
                        self._feed(wire.take())
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                self.work.locked = task.result()

    async def _send_data(self) -> None:
        need = min(self._locked.size, DOWNLOAD_BYTES)
        if not self._locked.in_memory and not self.shared.in_flight.take(self, need):
            await self._wait_for_memory(need)
        async for data in self._queue.data(self._locked):
            self.dialog.send_data(data)
            if self.dialog.unsent >= PIECE_BYTES:  # small data goes with the lines around it
                await self._flush()
            self.work.locked = await self._queue.extended(self._locked, least=0.5)
        self._release()

    async def _lock(self) -> None:
        # Until the client is told that the data is locked, the data is given back if anything fails.
        await self._queue.extended(self._locked)
        self.work.locked = None
        self.dialog.accept()

    async def _confirm(self, id: int) -> None:
        if await self._queue.confirm.aio(id):
            self.dialog.accept()
        else:
            self.dialog.refuse()

    @property
    def _queue(self) -> AgentQueue:
        if self.work.queue is None:
            raise RuntimeError("no queue")
        return self.work.queue

    @property
    def _locked(self) -> Locked:
        if self.work.locked is None:
            raise RuntimeError("no lock")
        return self.work.locked

    async def _wait_for_memory(self, size: int) -> None:
        """Wait until other connections have returned memory. A lock is extended meanwhile.

        Raises:
            TimeoutError: they have not in the time in which data must move. LeaseLost: the lease is over.
        """
        in_flight = self.shared.in_flight
        async with asyncio.timeout(self._limits.data_seconds):
            while not in_flight.take(self, size):
                await asyncio.wait({in_flight.freed()}, timeout=self._queue.seconds / 4)
                if self.work.locked is not None:
                    self.work.locked = await self._queue.extended(self._locked, least=0.5)

    def _release(self) -> None:
        self.shared.in_flight.give(self)

    async def _put_in_order(self) -> None:
        """Give back a lease whose data did not arrive, and remove data that did not become an item."""
        self._release()
        work, self.work = self.work, _Work()
        try:
            if work.upload is not None:
                await work.upload.abort()
            if work.locked is not None and work.queue is not None:
                await work.queue.give_back(work.locked)
        except LeaseLost:  # it is back already
            pass
        except (FdbQueueError, FDBError, OSError) as error:
            log.warning("An item comes back only when its lock is over: %s", _told(error))

    def _close(self) -> None:
        self._closed = True
        self.dialog.leave()
        self.wire.finish(self.dialog.output())
        self._gone()

    def _gone(self) -> None:
        if self._closed and self.wire.lost:
            self._on_gone(self)


def _told(error: BaseException) -> str:
    """Return what an error says. The library's own errors have no data in them."""
    return f"FDBError {error.code}" if isinstance(error, FDBError) else f"{type(error).__name__}: {error}"


def _where(error: BaseException) -> str:
    """Return the kind of an unforeseen error and where it was raised. Its text might have data in it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return type(error).__name__ + place
