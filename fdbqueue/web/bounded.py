"""Read values as far as a page shows them: decoded, one of some megabytes takes a hundred times that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fdbqueue.stored.codecs import Codec

MOST_CHARACTERS = 20_000
"""The longest text of a value on a page. The rest is left out, and the page says so."""
CHECKED_BYTES = 100_000
"""Values of up to this size are decoded, so that the page says of one that it can't be read."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of an encoded value that is too large to be shown whole."""

    data: bytes
    size_bytes: int
    """The size of the whole value."""


class BoundedCodec:
    """Decodes small values as a codec does, and cuts large ones. It has the codec's name, and encodes nothing."""

    def __init__(self, codec: Codec[Any]) -> None:
        self.name = codec.name
        self._decode = codec.decode

    def encode(self, value: Any) -> bytes:
        raise TypeError("The page enqueues nothing.")

    def decode(self, data: bytes) -> Any:
        value = self._decode(data) if len(data) <= CHECKED_BYTES else None
        if len(data) <= MOST_CHARACTERS:
            return value
        return Beginning(data[: 4 * MOST_CHARACTERS], len(data))  # a character has up to four bytes
