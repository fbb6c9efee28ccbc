"""Messages that tests of smart checks share, and how to look at what became of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fdbqueue import Position, Queue
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import EVERYTHING, OWN_KEY, OWN_TYPE, Messages, MessageType, SmartQueue, keyed
from fdbqueue.layers.smart.types import Answer, Asked, Decision
from fdbqueue.stored.settings import SMART
from tests.helpers.clock import Clock


@dataclass
class Note:
    """A message whose answer a test writes into it: what it says to whom."""

    text: str
    to: dict[str, str]
    """By the newcomer's text: "ignore", "take over", …; don't care for others."""

    def check(self, new: Any) -> Answer:
        answer = self.to.get(getattr(new, "text", ""), "don't care")
        if answer == "take over":
            self.text = new.text
            answer = "ignore"
        return Decision(answer)


def note(text: str, **to: str) -> Note:
    """Return a message that says `to` whom what."""
    return Note(text, to)


@dataclass
class Progress:
    """How far a file is copied: the newest report is enough."""

    file: str
    percent: int

    def check(self, new: Any) -> Answer:
        self.percent = new.percent
        return Decision.ignore


@dataclass
class Order:
    """Is confirmed by its number, also while somebody works on it."""

    number: int
    text: str = ""

    def check(self, new: Any, asked: Asked) -> Answer:
        if isinstance(new, Confirmation):
            return Decision.ignore_and_delete
        return Decision.queue if asked.state == "leased" else Decision.dont_care


@dataclass
class Confirmation:
    """Of an order."""

    number: int


def number_of(message: Any) -> int:
    number: int = message.number
    return number


def file_of(message: Any) -> str:
    file: str = message.file
    return file


NOTE = MessageType("note", Note, sees=EVERYTHING)
PROGRESS = MessageType("progress", Progress, key=file_of, sees=OWN_KEY)
ORDER = MessageType("order", Order, key=number_of, sees=OWN_TYPE)
CONFIRMATION = MessageType("confirmation", Confirmation, key=number_of, sees=keyed("order"))
ALL = (NOTE, PROGRESS, ORDER, CONFIRMATION)


def smart_queue(space: Any, *given: MessageType, clock: Callable[[], float] | None = None, **terms: Any) -> SmartQueue:
    """Return a smart queue of some types, all of the above by default."""
    queue = Queue(space, codec=Messages(*(given or ALL)))
    return SmartQueue(Leases(queue, clock=clock or Clock()), **terms)


def contents(smart: SmartQueue, db: Any) -> list[Any]:
    """Return the messages that are available, and that nothing is wrong."""
    assert smart.check(db).problems == smart.check(db.create_transaction()).problems == ()
    return [item.value for item in smart.queue.browse(db)]


def rows_of(smart: SmartQueue, db: Any) -> list[tuple[bytes, bytes]]:
    """Return all that the queue owns, to compare."""
    begin, end = smart.queue.layout.whole_range()
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range(begin, end)]


def as_another_process(queue: Queue[Any]) -> Queue[Any]:
    """Return the queue as a process has it that made no `SmartQueue` of it."""
    return Queue(queue.layout.space, codec=queue.codec, order=queue.order)


def enqueue_unchecked(smart: SmartQueue, db: Any, message: Any) -> Position:
    """Append a message as older versions of the library do, which do not know that a queue is smart."""
    key = smart.queue.layout.type_key
    tr = db.create_transaction()
    is_marked = tr[key].present()
    del tr[key]
    position: Position = as_another_process(smart.queue).enqueue(tr, message)
    if is_marked:
        tr[key] = SMART
    tr.commit().wait()
    return position


def position_of(smart: SmartQueue, db: Any, message: Any) -> Position:
    """Enqueue a message that nobody minds, and return its position."""
    position = smart.enqueue(db, message).position
    assert position is not None
    return position
