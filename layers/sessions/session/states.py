"""The codec of the states of sessions, and the key that says which one has written them.

The first state that is written to a queue stores the codec's name. Another codec is refused while there are states. If
the states are older than this key, their codec is unknown, and every codec is taken. The codec bytes shows every state.
"""

from __future__ import annotations

from typing import Any

from fdbqueue import OtherCodec, Queue
from fdbqueue.engine.keys import below
from fdbqueue.lowlevel import Database, Layout, Transaction, rows, value_of
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.known import RAW, Look, Registration
from fdbqueue.stored.own_values import decoded


class StateCodec:
    """The codec of the states of one queue's sessions.

    Args:
        queue: the queue of the items.
        codec: the codec, as a queue's.
    """

    __slots__ = ("_key", "_own", "_queue", "_states", "encode")

    def __init__(self, queue: Queue[Any], codec: Any) -> None:
        self._queue = queue
        self._states: Queue[Any] = Queue(queue.layout.space["state"], codec=codec)
        self._key = self._states.layout.space.key()
        self._own = Registration(self._states.codec.name, "", ())
        self._states.layout.known.registration = self._own
        self.encode = self._states.encode

    @property
    def name(self) -> str:
        """The codec's name."""
        return self._own.codec

    def decode(self, stored: bytes) -> Any:
        """Decode a state. It raises what the codec raises."""
        return self._states.codec.decode(stored)

    def _name_in(self, value: Any) -> str:
        return read_codec_name(self._queue.layout, self._key, bytes(value))

    async def check_read(self, tr: Transaction | Database) -> None:
        """Refuse to decode states that another codec has written.

        Raises:
            OtherCodec: another one has.

        *Conflicts:* none, it reads by snapshot. *Cost:* one read a second; one a call while no session has a state.
        """
        known = self._states.layout.known
        if known.decodes(tr):
            return
        began = Look.begin()

        async def read(tr: Transaction) -> Any:
            return await value_of(tr.snapshot.get(self._key))

        value = await self._queue.read(tr, read)
        if not value.present():
            return
        if not fits(self.name, written := self._name_in(value)):
            raise self._refusal(written)
        known.has_record = True
        known.note(began, tr)

    async def check_write(self, tr: Transaction) -> None:
        """Refuse to write a state by a codec that has not written the others. Store the name of the first one.

        Raises:
            OtherCodec: another one has; nothing was written.

        *Conflicts:* with the first state that another process writes. *Cost:* one read a second; a second read and a
        write for the first state.
        """
        known = self._states.layout.known
        if known.has_record and known.relies(tr):
            return
        began = Look.begin()
        value = await value_of(tr.get(self._key))
        if value.present() and fits(self.name, self._name_in(value)):
            known.has_record = True
            known.note(began, tr)
            return
        # Whether this transaction commits is not known here. So the next write reads the key again.
        if not await rows(tr, *below(self._key), limit=1):
            tr.set(self._key, self.name.encode())
        elif value.present():
            raise self._refusal(self._name_in(value))

    def _refusal(self, written: str) -> OtherCodec:
        given = f"state_codec={written!r}"
        shown = "" if self.name == RAW else " The state_codec 'bytes' shows them as they are stored."
        return OtherCodec(
            f"The states of the sessions of {self._queue!r} have the codec {written!r}, and not {self.name!r}, which is"
            f" given here. Nothing was changed. Give Sessions {given}.{shown} Another codec can write states when no"
            " session has one."
        )


def read_codec_name(layout: Layout, key: bytes, stored: bytes) -> str:
    """Return the stored name of the codec of states.

    Raises:
        FormatError: it can't be read.
    """
    remedy = "It is the codec of the states: Queue(name, codec=…).register(db, on_codec='replace') removes it."
    return decoded(layout, key, stored, bytes.decode, remedy)
