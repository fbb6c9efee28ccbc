"""Checks of names and limits, which run before any key is touched."""

from __future__ import annotations

NAME_BYTES = 200


def check_name(name: object) -> None:
    """Check the name of a subscription.

    Raises:
        TypeError: it is not a str.
        ValueError: it is empty or too long.
    """
    if not isinstance(name, str):
        raise TypeError(f"A subscription is named by a str, not by {name!r}.")
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        raise ValueError(f"The name of a subscription has 1 to {NAME_BYTES} bytes, not {size}.")


def check_limit(limit: object, what: str) -> None:
    """Check a limit.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is less than 1.
    """
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"limit is how many {what}, an integer, not {limit!r}.")
    if limit < 1:
        raise ValueError(f"limit is how many {what}, at least 1, not {limit}.")
