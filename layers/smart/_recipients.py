"""Recipients: who is registered to fetch copies of a smart queue's items."""

from __future__ import annotations

import msgspec

from fdbqueue import FormatError
from fdbqueue.lowlevel import UNREADABLE, Layout, Steps, Transaction

MOST_RECIPIENTS = 32
"""Each has a place in the notes of every item that it is to confirm."""


class Registry(msgspec.Struct, forbid_unknown_fields=True):
    """What is stored under ``("recipients",)``."""

    last: int = 0
    """The highest number that was given."""
    numbers: dict[str, int] = {}
    """By name. A number is never given again."""


_decoder = msgspec.msgpack.Decoder(Registry)
_encoder = msgspec.msgpack.Encoder()


class Recipients:
    """The registry of one queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def read(self, tr: Transaction) -> Steps[Registry]:
        """Read it.

        A plain read, on purpose: an enqueue that does not see a registration which commits before it would leave that
        recipient out. Registrations are rare, and only they write the key.
        """
        value = yield tr.get(self._layout.recipients_key)
        if not value.present():
            return Registry()
        try:
            return _decoder.decode(bytes(value))
        except UNREADABLE as error:
            raise FormatError(
                f"The recipients of {self._layout.describe()} can't be read, or are of a newer version: {error}."
            ) from error

    def write(self, tr: Transaction, registry: Registry) -> None:
        """Write it."""
        tr.set(self._layout.recipients_key, _encoder.encode(registry))

    def numbers(self, tr: Transaction) -> Steps[list[int]]:
        """Return the numbers of all who are registered."""
        return sorted((yield from self.read(tr)).numbers.values())


def recipient_parts(layout: Layout, numbers: list[int]) -> tuple[bytes, ...]:
    """Return what an item has in its notes that these recipients are to confirm."""
    return tuple(layout.part_of(space[number]) for number in numbers for space in (layout.copies, layout.unsent))
