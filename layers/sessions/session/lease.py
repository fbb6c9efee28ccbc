"""The lease of a session and its item in progress, and a handle to pass it to another process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from fdbqueue import Position
from fdbqueue.lowlevel import V, pack

from ...leases import Lease, LeaseHandle
from ...leases.lease import check_handles_text, check_place
from .records import SessionName, name_of, pack_name


@dataclass(frozen=True, slots=True, repr=False)
class SessionHandle(LeaseHandle):
    """Proves the lease of a session, without its item. It can be stored, or sent to the process that acks.

    >>> from fdbqueue import Position
    >>> from fdbqueue.layers import SessionHandle
    >>> handle = SessionHandle(Position(7, b"item", rank=1), b"token", session="ann", turn=Position(1, b"turn"))
    >>> str(handle)
    '02616e6e00:0/1:7475726e/1:7:6974656d/746f6b656e'
    >>> SessionHandle.parse(str(handle)) == handle
    True
    """

    session: SessionName = field(kw_only=True)
    """The session."""
    turn: Position = field(kw_only=True)
    """The position of the session's pointer in the line."""
    generation: int = field(default=0, kw_only=True)
    """The session's generation; it counts removals that let later items begin a new one."""

    def __post_init__(self) -> None:
        LeaseHandle.__post_init__(self)
        pack_name(self.session)
        check_place("turn", self.turn)
        if type(self.generation) is not int or self.generation < 0:
            raise TypeError(f"The generation of a handle is a whole number, 0 or more, not {self.generation!r}.")

    def __str__(self) -> str:
        name = pack_name(self.session).hex()
        return f"{name}:{self.generation}/{self.turn.text}/{self.position.text}/{self.token.hex()}"

    @classmethod
    def parse(cls, text: str) -> SessionHandle:
        """Return the handle that `text` describes.

        Raises:
            ValueError: `text` is not a handle. TypeError: it is no text.
        """
        check_handles_text(text)
        try:
            session, turn, position, token = text.split("/")
            name, _, generation = session.partition(":")
            return cls(
                Position.parse(position),
                bytes.fromhex(token),
                session=name_of(bytes.fromhex(name)),
                turn=Position.parse(turn),
                generation=int(generation),
            )
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{text!r} is no handle of a session's lease, which looks like 026100:0/1:7475/1:7:6974/746f."
            ) from error


@dataclass(frozen=True, slots=True)
class TurnDone:
    """An item whose handler has returned."""

    position: Position
    state: Any
    """The session's new state, encoded; `UNCHANGED`: none."""
    result: bytes = b""
    """The encoded result, for the item's completion."""
    stored: bytes = b""
    """The stored item as the consumer read it ahead; b"": it was leased."""

    @property
    def begun(self) -> Begun:
        """The item as the consumer began it."""
        return Begun(pack(self.position), self.stored)


class Begun(NamedTuple):
    """An item that a consumer has begun."""

    packed: bytes
    """Its packed position."""
    stored: bytes
    """The stored item as the consumer read it ahead; b"": unknown, since it was leased."""


@dataclass(frozen=True, slots=True)
class Behind:
    """Items that a consumer finished earlier in this turn, with acks that are pending or just committed."""

    done: tuple[TurnDone, ...] = ()
    """The items, in order."""
    acked: bytes = b""
    """The packed position of the last item in front of these that is known to be acked; b"": none is."""
    own: bytes = b""
    """The stored item of this lease as the consumer read it ahead."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionLease(Lease[V]):
    """The right of one worker to one session for some time, and the item of it to work on."""

    session: SessionName
    """The session."""
    state: Any
    """The session's state, decoded by the codec for states; None: it has none."""
    turn: Position
    """The position of the session's pointer in the line."""
    generation: int = 0
    """The session's generation."""
    behind: Behind | None = field(default=None, repr=False, compare=False)
    """Set by a consumer that works ahead of its acks. A verb of this lease acks these items first."""
    used: list[str] = field(default_factory=list, repr=False, compare=False)
    """The verbs that were called with this lease, for the consumer that made it."""

    @property
    def level(self) -> int:
        """The item's level; smaller is more urgent."""
        return self.position.rank or 0

    @property
    def handle(self) -> SessionHandle:
        """The handle of this lease, to store or send."""
        return SessionHandle(
            self.position, self.token, session=self.session, turn=self.turn, generation=self.generation
        )


SessionRef: TypeAlias = SessionLease | SessionHandle
