"""The terms of items beside their values: headers, the time they become available, the end of their life."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

from fdbqueue.cli.options import CodecName
from fdbqueue.cli.values import from_json
from fdbqueue.errors import CodecError, ItemTooLarge
from fdbqueue.layers.leases.times import not_negative, positive, visible_at
from fdbqueue.stored.items import envelope

SHORTEST_SECONDS = 1e-6

HeadersText = Annotated[
    str | None,
    typer.Option("--headers", metavar="JSON", help='Headers of the items: \'{"color": "red"}\'.'),
]
Delay = Annotated[float | None, typer.Option("--delay", "-d", help="Seconds until the items become available.")]
At = Annotated[
    float | None, typer.Option("--at", help="Time at which the items become available, in seconds since 1970.")
]
Ttl = Annotated[
    float | None, typer.Option("--ttl", help="Seconds after which the items are removed, unless they are leased then.")
]


@dataclass(frozen=True, slots=True)
class ItemTerms:
    """The terms of an item.

    Raises:
        ValueError, ItemTooLarge: an item can't have such terms.
    """

    headers: Mapping[str, Any] | None = None
    delay: float | None = None
    at: float | None = None
    ttl: float | None = None
    ttl_at: float | None = None
    """The end of its life, in seconds since 1970, instead of `ttl`."""

    def __post_init__(self) -> None:
        visible_at(0, self.delay, self.at)
        if self.ttl is not None:
            positive(self.ttl, "ttl")
        if self.ttl_at is not None:
            not_negative(self.ttl_at, "ttl_at")
            if self.ttl is not None:
                raise ValueError("Give ttl or ttl_at, not both.")
        envelope(b"", self.headers)

    def over(self, others: ItemTerms) -> ItemTerms:
        """Return these terms, with the others' terms for those that these lack. Headers are merged one by one."""
        waits = self if self.delay is not None or self.at is not None else others
        lives = self if self.ttl is not None or self.ttl_at is not None else others
        headers = {**(others.headers or {}), **(self.headers or {})}
        return ItemTerms(headers or None, waits.delay, waits.at, lives.ttl, lives.ttl_at)

    def arguments(self, now: float) -> dict[str, Any]:
        """Return the terms as the library's verbs take them; `now` is in seconds since 1970."""
        # An item whose life is over is enqueued and expires at once. So the counters include it.
        ttl = self.ttl if self.ttl_at is None else max(self.ttl_at - now, SHORTEST_SECONDS)
        return {"headers": self.headers, "delay": self.delay, "at": self.at, "ttl": ttl}


def terms_of(headers: str | None, delay: float | None, at: float | None, ttl: float | None) -> ItemTerms:
    """Return the terms that the options describe."""
    with _refused("--headers"):
        decoded = None if headers is None else msgspec.json.decode(headers, type=dict[str, Any])
        named = ItemTerms(None if decoded is None else from_json(decoded, CodecName.msgpack))
    with _refused(None):
        return ItemTerms(named.headers, delay, at, ttl)


@contextmanager
def _refused(hint: str | None) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, RecursionError, CodecError, ItemTooLarge, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error
