"""The registry of the recipients that fetch copies of a smart queue's items."""

from __future__ import annotations

import msgspec

from fdbqueue.lowlevel import Layout, Transaction, value_of
from fdbqueue.stored.own_values import decoded

MOST_RECIPIENTS = 32
"""Each recipient takes space in the notes of every item that it must confirm."""


class RecipientRegistry(msgspec.Struct, forbid_unknown_fields=True):
    """The value stored under ``("recipients",)``."""

    last: int = 0
    """The highest number assigned so far."""
    numbers: dict[str, int] = {}
    """Numbers by name. A number is assigned only once."""


_decoder = msgspec.msgpack.Decoder(RecipientRegistry)
_encoder = msgspec.msgpack.Encoder()


class Recipients:
    """The registry of one queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    async def read(self, tr: Transaction) -> RecipientRegistry:
        """Read the registry.

        This is a plain read on purpose. Otherwise an enqueue could miss a registration that commits before it, and
        leave that recipient out. Registrations are rare, and only they write the key.
        """
        value = await value_of(tr.get(self._layout.recipients_key))
        if not value.present():
            return RecipientRegistry()
        return decoded(self._layout, self._layout.recipients_key, bytes(value), _decoder.decode, what="recipients")

    def write(self, tr: Transaction, registry: RecipientRegistry) -> None:
        """Write the registry."""
        tr.set(self._layout.recipients_key, _encoder.encode(registry))

    async def numbers(self, tr: Transaction) -> list[int]:
        """Return the numbers of all registered recipients."""
        return sorted((await self.read(tr)).numbers.values())


def recipient_parts(layout: Layout, numbers: list[int]) -> tuple[bytes, ...]:
    """Return the parts that name these recipients in the notes of an item."""
    return tuple(layout.part_of(space[number]) for number in numbers for space in (layout.copies, layout.unsent))
