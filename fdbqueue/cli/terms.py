"""What is said of items beside their values: headers, when they become available, when their life ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

from fdbqueue.errors import CodecError, ItemTooLarge
from fdbqueue.items import envelope
from fdbqueue.layers.leasing.times import positive, visible_at

HeadersText = Annotated[
    str | None,
    typer.Option("--headers", metavar="JSON", help='Kept beside each of these items: \'{"color": "red"}\'.'),
]
Delay = Annotated[float | None, typer.Option("--delay", "-d", help="Seconds until the items become available.")]
At = Annotated[
    float | None, typer.Option("--at", help="When they become available, in seconds since 1970, instead of --delay.")
]
Ttl = Annotated[
    float | None, typer.Option("--ttl", help="Seconds after which they are removed, unless somebody has them then.")
]


@dataclass(frozen=True, slots=True)
class Terms:
    """What is said of an item.

    Raises:
        ValueError, ItemTooLarge: no item can have such terms.
    """

    headers: Mapping[str, Any] | None = None
    delay: float | None = None
    at: float | None = None
    ttl: float | None = None

    def __post_init__(self) -> None:
        visible_at(0, self.delay, self.at)
        if self.ttl is not None:
            positive(self.ttl, "ttl")
        envelope(b"", self.headers)

    def over(self, others: Terms) -> Terms:
        """Return these terms and, where they say nothing, others; headers one by one."""
        waits = self if self.delay is not None or self.at is not None else others
        headers = {**(others.headers or {}), **(self.headers or {})}
        return Terms(headers or None, waits.delay, waits.at, others.ttl if self.ttl is None else self.ttl)

    def arguments(self) -> dict[str, Any]:
        """Return them as the library's verbs take them."""
        return {"headers": self.headers, "delay": self.delay, "at": self.at, "ttl": self.ttl}


def terms_of(headers: str | None, delay: float | None, at: float | None, ttl: float | None) -> Terms:
    """Return the terms that options write down."""
    with _refused("--headers"):
        named = Terms(None if headers is None else msgspec.json.decode(headers, type=dict[str, Any]))
    with _refused(None):
        return Terms(named.headers, delay, at, ttl)


@contextmanager
def _refused(hint: str | None) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, RecursionError, CodecError, ItemTooLarge, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error
