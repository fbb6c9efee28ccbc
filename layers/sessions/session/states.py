"""The states of sessions, and their codec.

The first state that is written to a queue stores the codec's name. Another codec is refused while there are states. If
the states are older than this key, their codec is unknown, and every codec is taken. The codec bytes shows every state.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from fdbqueue import CodecError, OtherCodec, Queue
from fdbqueue.engine.keys import below
from fdbqueue.lowlevel import Database, Layout, Transaction, rows, started, value_of
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.codecs import reason_of
from fdbqueue.stored.known import RAW, Look, Registration
from fdbqueue.stored.settings import check_renamed
from fdbqueue.verbs.editing import Unchanged

from .session import Session

STATE_BYTES = 90_000
"""The most bytes of an encoded state."""
State: TypeAlias = bytes | Unchanged | None
"""An encoded state; None removes it."""


class States:
    """The states of one queue's sessions.

    Args:
        queue: the queue of the items.
        codec: the codec, as a queue's.
    """

    __slots__ = ("_key", "_own", "_queue", "_states")

    def __init__(self, queue: Queue[Any], codec: Any) -> None:
        self._queue = queue
        self._states: Queue[Any] = Queue(queue.layout.space["state"], codec=codec)
        self._key = self._states.layout.space.key()
        self._own = Registration(self._states.codec.name, "", ())
        self._states.layout.known.registration = self._own

    def encoded(self, state: object) -> State:
        """Encode a state.

        Raises:
            CodecError: the codec does not take it. ValueError: it is too large.
        """
        if state is None or isinstance(state, Unchanged):
            return state
        try:
            encoded = self._states.encode(state)
        except CodecError as error:
            raise CodecError(
                f"The state_codec of {self._queue!r} does not take this state: {error} Give Sessions the codec for it,"
                " as state_codec='json'."
            ) from error
        if len(encoded) > STATE_BYTES:
            raise ValueError(
                f"The state of a session has at most {STATE_BYTES:,} bytes, not {len(encoded):,}. Keep the rest under"
                " keys of your own, written in the ack's transaction."
            )
        return encoded

    async def decoded(self, tr: Transaction | Database, stored: bytes | None) -> Any:
        """Decode a stored state; None if there is none.

        Raises:
            CodecError: it does not decode. OtherCodec: another codec has written the states.
        """
        if stored is None:
            return None
        await self.check_read(tr)
        return self._decode(stored)

    def _decode(self, stored: bytes) -> Any:
        try:
            return self._states.codec.decode(stored)
        except Exception as error:  # a codec may be code that is not ours
            raise CodecError(
                f"The state of a session of {self._queue!r} does not decode with the codec {self._own.codec!r}:"
                f" {reason_of(error)}. Give Sessions the state_codec that wrote it."
            ) from error

    async def read(self, tr: Transaction, key: bytes) -> Any:
        """Read a session's state, and decode it.

        Raises:
            CodecError, OtherCodec: it can't be decoded.
        """
        reading, checking = tr.get(key), started(self.check_read(tr))
        renamed = started(check_renamed(tr.snapshot, self._queue.layout))
        value = await value_of(reading)
        if not value.present():
            await renamed
            return None
        await checking
        return self._decode(bytes(value))

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
        if not fits(self._own.codec, written := self._name_in(value)):
            raise self._refusal(written)
        known.has_record = True
        known.note(began, tr)

    async def check_write(self, tr: Transaction, state: State) -> None:
        """Refuse to write an encoded state by a codec that has not written the others. Store the name of the first one.

        Raises:
            OtherCodec: another one has; nothing was written.

        *Conflicts:* with the first state that another process writes. *Cost:* one read a second; a second read and a
        write for the first state.
        """
        known = self._states.layout.known
        if not isinstance(state, bytes) or (known.has_record and known.relies(tr)):
            return
        began = Look.begin()
        value = await value_of(tr.get(self._key))
        if value.present() and fits(self._own.codec, self._name_in(value)):
            known.has_record = True
            known.note(began, tr)
            return
        # Whether this transaction commits is not known here. So the next write reads the key again.
        if not await rows(tr, *below(self._key), limit=1):
            tr.set(self._key, self._own.codec.encode())
        elif value.present():
            raise self._refusal(self._name_in(value))

    def _refusal(self, written: str) -> OtherCodec:
        given = f"state_codec={written!r}"
        own = self._own.codec
        shown = "" if own == RAW else " The state_codec 'bytes' shows them as they are stored."
        return OtherCodec(
            f"The states of the sessions of {self._queue!r} have the codec {written!r}, and not {own!r}, which is"
            f" given here. Nothing was changed. Give Sessions {given}.{shown} Another codec can write states when no"
            " session has one."
        )


def write_state(tr: Transaction, session: Session, state: State) -> None:
    """Write an encoded state."""
    if state is None:
        tr.clear(session.state_key)
    elif not isinstance(state, Unchanged):
        tr.set(session.state_key, state)


def read_codec_name(layout: Layout, key: bytes, stored: bytes) -> str:
    """Return the stored name of the codec of states.

    Raises:
        FormatError: it can't be read.
    """
    remedy = "It is the codec of the states: Queue(name, codec=…).register(db, on_codec='replace') removes it."
    return layout.decode(key, stored, bytes.decode, remedy)
