"""Check the arguments of sessions."""

from __future__ import annotations

from fdbqueue.base.deprecation import deprecated

MAX_CONCURRENCY = 256


def check_concurrency(given: object) -> None:
    """Raise an error if this is no number of items that may run at once."""
    check_count(given, "concurrency is how many items of a session run at once", most=MAX_CONCURRENCY)


def check_count(count: object, told: str, *, most: int | None = None) -> None:
    """Raise an error if this is no number from 1 to `most`. `told` begins the message."""
    if type(count) is not int:
        raise TypeError(f"{told}, a whole number, not {count!r}.")
    if count < 1 or (most is not None and count > most):
        raise ValueError(f"{told}, at least 1{'' if most is None else f' and at most {most}'}, not {count}.")


def deprecated_shards(given: object, name: str, *, stacklevel: int = 3) -> None:
    """Warn that the caller spreads ready sessions over shards, which has no effect any more."""
    check_count(given, "shards was over how many lines ready sessions were spread", most=64)
    deprecated(name, since="0.3.0", instead="Sessions without it: there is one line", stacklevel=stacklevel)


def check_choice(given: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise an error if this is none of the choices."""
    if given not in choices:
        raise ValueError(f"{name} is {' or '.join(map(repr, choices))}, not {given!r}.")
