"""Operations on sessions in one transaction: pause, remove, redrive, skip, purge."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from fdbqueue import CodecError, FormatError, OtherCodec, Position
from fdbqueue.engine.api import ReadTransaction
from fdbqueue.lowlevel import KeyValue, Transaction, pack, rows, value_of
from fdbqueue.moves.ends import OutcomeRecord
from fdbqueue.stored.codecs import why_buried
from fdbqueue.stored.items import salvaged_notes
from fdbqueue.stored.settings import check_renamed

from ..line.line import Line
from ..line.mending import is_whole, written_again
from ..session.records import REFUSING, RENEWING, SessionRecord
from ..session.session import Session, SessionMoves

Later = Literal["refuse", "renew"]


class Operating:
    """The operators' transactions on the sessions of one line."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def read(self, tr: ReadTransaction, name: bytes) -> tuple[Session, SessionRecord | None]:
        """Read a session's record.

        Raises:
            QueueRenamed: there is none, and the queue has another name now.

        *Conflicts:* with every change of the record.
        """
        session = self._line.session(name)
        record = session.record_in(await value_of(tr.get(session.record_key)))
        if record is None:
            await check_renamed(tr, self._line.layout)
        if record is not None and record.generation:
            session = self._line.session(name, record.generation)
        return session, record

    async def pause(self, tr: Transaction, name: bytes) -> None:
        """Take a session out of the line, until `resume`."""
        session, record = await self.read(tr, name)
        record = record or SessionRecord()
        if record.paused:
            return
        moves = self._line.moves(tr)
        record = await self._line.slots.withdraw(tr, moves, session, record)
        moves.finish()
        self._line.write(tr, session, replace(record, paused=True))

    async def resume(self, tr: Transaction, name: bytes) -> None:
        """End a pause."""
        session, record = await self._whole(tr, name)
        if record is not None and record.paused:
            await self.go_on(tr, session, replace(record, paused=False))

    async def _whole(self, tr: Transaction, name: bytes) -> tuple[Session, SessionRecord | None]:
        """Read a session's record. If it, a slot or a pointer of the session is damaged or missing, write them again.

        Raises:
            FormatError: a newer version of the library wrote one of them.
        """
        record: SessionRecord | None = None
        try:
            session, record = await self.read(tr, name)
            if record is not None and await is_whole(tr, self._line, session, record):
                return session, record
        except FormatError as error:
            if error.newer:
                raise
        moves = self._line.moves(tr)
        found = await written_again(tr, self._line, moves, name, record)
        moves.finish()
        if found is not None:
            await self.go_on(tr, *found)
        return await self.read(tr, name)

    async def remove(self, tr: Transaction, name: bytes, later: Later) -> None:
        """Mark a session, so that it ends when its present items are done."""
        session, record = await self._whole(tr, name)
        closing = RENEWING if later == "renew" else REFUSING
        if record is not None and record.closing > closing:
            return  # items of the next generation are there already
        await self.go_on(tr, session, replace(record or SessionRecord(), closing=closing))

    async def skip(self, tr: Transaction, name: bytes) -> bool:
        """Unblock a session. If its first item can't be read, that becomes a dead letter."""
        session, record = await self.read(tr, name)
        if record is None or not record.blocked:
            return False
        head = await session.look(tr, limit=1 + record.limit)
        for row in head.rows:
            try:
                await session.queue.item(tr, session.layout.position_of(row.key), row.value)
            except (CodecError, FormatError) as error:
                if isinstance(error, OtherCodec):
                    raise  # this object is not made for the items
                await self._bury(tr, session, row, why_buried(error))
        await self.go_on(tr, session, replace(record, blocked=""))
        return True

    async def redrive(self, tr: Transaction, name: bytes, positions: list[Position] | None, limit: int) -> int:
        """Put dead letters back into their places, with no attempts counted, and unblock the session."""
        session, record = await self.read(tr, name)
        # One that can't be read is left to the newer version of the library that wrote it.
        found = await self._dead(tr, session, positions, limit, readable=True)
        moves = SessionMoves(tr, session)
        for row in found:
            packed = session.layout.dead.packed(row.key)
            notes = session.notes(packed, row.value)
            await OutcomeRecord.reopen(tr, session.home, session.address(packed), notes.as_new())
            moves.leave_dead(packed)
            moves.enter_available(packed, row.value, notes.as_new())
            moves.set_dependent(packed, notes)
        moves.finish()
        if record is not None and record.asleep_until_us and found:
            # It sleeps until its delayed items are due, and has others now.
            waking = self._line.moves(tr)
            if await self._line.slots.woken(tr, waking, record):
                record = replace(record, pointer=b"", asleep_until_us=0)
            waking.finish()
        if record is not None and (found or record.blocked):
            await self.go_on(tr, session, replace(record, blocked=""))
        return len(found)

    async def purge(self, tr: Transaction, name: bytes, positions: list[Position] | None, limit: int) -> int:
        """Remove dead letters for good, also those that can't be read."""
        session, record = await self.read(tr, name)
        found = await self._dead(tr, session, positions, limit)
        moves = SessionMoves(tr, session)
        for row in found:
            packed = session.layout.dead.packed(row.key)
            notes, is_readable = salvaged_notes(row.value)
            moves.leave_dead(packed)
            moves.vanish(packed, row.value, "purged", notes=notes, is_readable=is_readable)
        moves.finish()
        if found and record is not None and not record.pointer:
            await self.go_on(tr, session, record)
        return len(found)

    async def set_concurrency(self, tr: Transaction, name: bytes, limit: int | None) -> None:
        """Set how many items of a session run at once."""
        session, record = await self.read(tr, name)
        await self._line.slots.set_limit(tr, session, record, limit)

    async def go_on(self, tr: Transaction, session: Session, record: SessionRecord) -> None:
        """Write a changed record. A session without a pointer gets one if it may have one, or ends."""
        moves = self._line.moves(tr)
        await self._line.slots.balance(tr, moves, session, record)
        moves.finish()

    async def _dead(
        self, tr: Transaction, session: Session, positions: list[Position] | None, limit: int, *, readable: bool = False
    ) -> list[KeyValue]:
        """Read up to `limit` dead letters, with a conflict for each; `readable`: only those that can be read."""
        dead = session.layout.dead
        found: list[KeyValue] = []
        if positions is None:
            begin = dead.begin
            while page := await rows(tr.snapshot, begin, dead.end, limit=limit):
                found += [row for row in page if not readable or salvaged_notes(row.value)[1]]
                if len(found) >= limit or len(page) < limit:
                    break
                begin = page[-1].key + b"\x00"
        else:
            for key in dict.fromkeys(dead.key(pack(position)) for position in positions[:limit]):
                page = await rows(tr.snapshot, key, key + b"\x00", limit=1)
                found += [row for row in page if not readable or salvaged_notes(row.value)[1]]
        for row in found[:limit]:
            tr.add_read_conflict_key(row.key)
        return found[:limit]

    async def _bury(self, tr: Transaction, session: Session, row: KeyValue, error: str) -> None:
        """Make an item that can't be read a dead letter."""
        moves = SessionMoves(tr, session, self._line.leases.now_us())
        packed = session.layout.available.packed(row.key)
        found = await moves.read_notes({packed: row.value})
        moves.bury(packed, row.value, found[packed], error)
        await moves.settle()
        moves.finish()
