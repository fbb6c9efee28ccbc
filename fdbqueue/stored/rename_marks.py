"""Marks of a rename: calls with a queue's old name are refused, and the error has the new name.

A mark is stored under two keys that calls read anyway. Each enqueue reads the queue's type, and calls that take items
look for a pause. So a queue that was never renamed pays nothing. The old name keeps its marks until it is cleared. The
new name has them until all items are there (`renaming.py`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from fdbqueue.engine.api import ReadTransaction, Transaction
from fdbqueue.engine.steps import value_of
from fdbqueue.errors import FormatError, QueueRenamed
from fdbqueue.stored.codecs import UNREADABLE
from fdbqueue.stored.layout import Layout, name_of
from fdbqueue.stored.names import name_text

_BEGIN = b"renamed"


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the marks of a rename say."""

    old: bytes = msgspec.field(name="o")
    """The prefix of the old name."""
    new: bytes = msgspec.field(name="n")
    """The prefix of the new name."""
    at_us: int = msgspec.field(name="t")
    """When the rename began."""
    done: bool = msgspec.field(default=False, name="d")
    """Whether all items are under the new name."""
    type: bytes = msgspec.field(default=b"", name="k")
    """The type that the queue had; b"" for none."""
    paused: bytes = msgspec.field(default=b"", name="p")
    """The pause that the queue had; b"" for none."""

    @property
    def text(self) -> str:
        """The rename as a sentence."""
        old, new = (name_text(name_of(prefix)) for prefix in (self.old, self.new))
        return f"{old} was renamed to {new}" if self.done else f"{old} is being renamed to {new}"


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Mark)


def pack_mark(mark: Mark) -> bytes:
    """Return the bytes to store."""
    return _BEGIN + _encode(mark)


def mark_of(stored: bytes) -> Mark | None:
    """Return the mark in a stored type or pause; None if it has none.

    Raises:
        FormatError: this version of the library can't read it.
    """
    if not stored.startswith(_BEGIN):
        return None
    try:
        return _decoder.decode(stored[len(_BEGIN) :])
    except UNREADABLE as error:
        raise FormatError(
            f"A mark of a rename can't be read, or is of a newer version of fdbqueue: {error}. Update fdbqueue here."
        ) from error


def keys_of_marks(layout: Layout) -> list[bytes]:
    """Return the keys that get the mark: of the queue, and of the line of its sessions (`layers/sessions`)."""
    line = Layout(layout.space["line"])
    return [layout.type_key, layout.paused_key, line.type_key, line.paused_key]


def refuse_renamed(stored: bytes) -> None:
    """Refuse a call that has read a queue's type or pause.

    Raises:
        QueueRenamed: it is a mark.
    """
    mark = mark_of(stored)
    if mark is not None:
        raise refusal(mark)


def refusal(mark: Mark) -> QueueRenamed:
    """Return the error of a call that meets a mark."""
    old, new = name_of(mark.old), name_of(mark.new)
    if mark.done:
        remedy = f"Use the new name. To use the old one for another queue, clear it: Queue({old!r}).clear(db)."
    else:
        remedy = (
            "Wait until that has ended, and use the new name. If its process was killed, finish it:"
            f" fdbqueue.rename(db, {old!r}, {new!r})."
        )
    return QueueRenamed(f"The queue {mark.text}. Nothing was changed. {remedy}", name=new)


async def check_renamed(tr: Transaction, layout: Layout) -> None:
    """Refuse the old name of a queue; for calls that read, when they find nothing. One read by snapshot.

    A rename takes all items away, so a call that finds some has the right name. It need not look.

    Raises:
        QueueRenamed: the queue has another name now, or will have it in a moment.
    """
    await refuse_old_name(tr.snapshot, layout)


async def refuse_old_name(tr: ReadTransaction, layout: Layout) -> None:
    """Refuse the old name of a queue; for calls that write records of their own under it. One read.

    Raises:
        QueueRenamed: as `check_renamed`.

    *Conflicts:* with a rename that begins, except by snapshot.
    """
    value: Any = await value_of(tr.get(layout.type_key))
    if value.present():
        refuse_renamed(bytes(value))


async def renamed(tr: Transaction, layout: Layout) -> str:
    """Return a sentence about the queue's new name; "" if it has none. One read by snapshot."""
    value: Any = await value_of(tr.snapshot.get(layout.type_key))
    mark = mark_of(bytes(value)) if value.present() else None
    return "" if mark is None or mark.old != layout.prefix else f"The queue {mark.text}."
