"""Checks of names, which run before any key is touched."""

from __future__ import annotations

from fdbqueue.lowlevel import check_text
from fdbqueue.stored import shapes

NAME_BYTES = shapes.NAME_BYTES["subscription"]


def check_name(name: object) -> None:
    """Check the name of a subscription.

    Raises:
        TypeError: it is not a str.
        ValueError: it is empty or too long, or has a lone surrogate.
    """
    if not isinstance(name, str):
        raise TypeError(f"A subscription is named by a str, not by {name!r}.")
    check_text(name, "The name of a subscription")
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        raise ValueError(f"The name of a subscription has 1 to {NAME_BYTES} bytes, not {size}.")
