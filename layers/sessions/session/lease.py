"""The lease of a session and its item in progress, its handle, and its turn: the leased pointer, as it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fdbqueue import FormatError, Position
from fdbqueue.base.typed import filled_by_slots
from fdbqueue.engine.steps import finished
from fdbqueue.lowlevel import UNCHANGED, Notes, Transaction, V, notes_of, rows, started, value_of

from ...leases import Lease, LeaseHandle
from ...leases.lease import check_handles_text, check_place
from .records import WAKER, SessionName, SessionPointer, SessionRecord, name_of, pack_name, pointer_of
from .session import Session, SessionHead

if TYPE_CHECKING:
    from ..line.line import Line


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


class TurnItem(NamedTuple):
    """An item that a consumer has begun."""

    position: Position
    packed: bytes
    """Its packed position."""
    stored: bytes = b""
    """The stored item as the consumer read it ahead; b"": unknown, since it was leased."""
    state: Any = UNCHANGED
    """The session's new state, encoded, once its handler has returned; `UNCHANGED`: none."""
    result: bytes = b""
    """The encoded result of its handler, for its completion."""


class TurnProgress(NamedTuple):
    """How far a consumer is in a turn, ahead of its acks."""

    done: tuple[TurnItem, ...] = ()
    """Items whose handlers have returned, in order, with acks that are pending or just committed."""
    current: TurnItem | None = None
    """The item in progress behind them; None: the last one is done, and no other has begun."""
    acked: bytes = b""
    """The packed position of the last item in front of these that is known to be acked; b"": none is."""

    @property
    def begun(self) -> list[TurnItem]:
        """All these items, in the order in which the consumer began them."""
        return [*self.done] if self.current is None else [*self.done, self.current]

    def without(self, acked: int) -> TurnProgress:
        """Return the same, once the first items are known to be acked."""
        return TurnProgress(self.done[acked:], self.current, self.done[acked - 1].packed) if acked else self


@filled_by_slots
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
    behind: TurnProgress | None = field(default=None, repr=False, compare=False)
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


@dataclass(slots=True)
class Turn:
    """A leased pointer, as a transaction that ends its lease has read it."""

    packed: bytes
    """The pointer's packed position in the line."""
    notes: Notes
    pointer: SessionPointer
    record: SessionRecord
    session: Session

    @property
    def is_unnumbered(self) -> bool:
        """Whether its slot has no entry: it is that of a serial session, or the waker."""
        return self.pointer.slot in (b"", WAKER)


class Compared(NamedTuple):
    """What became of the items that a consumer has begun."""

    acked: int
    """How many are acked already."""
    rows: list[tuple[bytes, bytes]]
    """The keys and stored bytes of those behind them, up to the first that was changed or removed."""
    changed: TurnItem | None
    """The first item that was changed or removed; None: none was."""


async def read_turn(
    tr: Transaction, line: Line, packed: bytes, session: Session, *, limit: int
) -> tuple[Turn | None, SessionHead]:
    """Read a leased pointer, its session's record and its first items, in parallel; None if it is not leased.

    Args:
        limit: how many items; 0: it does not look at them.

    *Conflicts:* with a transaction that ends or extends this lease, and with what an operator does to the session.
    """
    leased = tr.get(line.layout.leased.key(packed))
    recorded: Any = tr.get(session.record_key)
    looking = started(session.look(tr, limit=limit) if limit else finished(SessionHead()))
    value, record = await value_of(leased), session.record_in(await value_of(recorded))
    head = await looking
    if not value.present() or record is None:
        return None, head
    stored = bytes(value)
    try:
        return Turn(packed, notes_of(stored), pointer_of(stored), record, session), head
    except FormatError:
        return None, head


async def look_at_begun(tr: Transaction, turn: Turn, progress: TurnProgress, head: SessionHead) -> Compared:
    """Compare the items that a consumer has begun with what is stored.

    An item that a call by position has changed or removed since is not the consumer's any more. Neither are those that
    the consumer began behind it: it gave them a state that includes that item's.

    By snapshot: only the holder of the lease removes the others, and then also writes the leased pointer, which the
    caller reads. All else that removes or changes a waiting item writes the leased pointer, too.

    Args:
        progress: the items, and the last one in front of them that the consumer knows to be acked.
        head: the session's first items, as this transaction has read them. Others are read one by one.
    """
    begun = progress.begun
    places = [one.packed for one in begun]
    acked = turn.pointer.acked
    first = places.index(acked) + 1 if acked in places else 0
    available = turn.session.layout.available
    stored = {row.key: row.value for row in head.rows}
    keys = [available.key(packed) for packed in places[first:]]
    reads = [started(rows(tr.snapshot, key, key + b"\x00", limit=1)) for key in keys if key not in stored]
    for read in reads:
        stored.update((row.key, row.value) for row in await read)
    if not first and acked not in (b"", progress.acked) and not any(key in stored for key in keys):
        return Compared(len(places), [], None)  # a verb of a later item has acked all of them
    found: list[tuple[bytes, bytes]] = []
    for key, one in zip(keys, begun[first:], strict=True):
        value = stored.get(key, b"")
        if not value or one.stored not in (b"", value):
            return Compared(first, found, one)
        found.append((key, value))
    return Compared(first, found, None)
