"""Access rules: the agent types that a certificate may send to and receive from.

The rules are a TOML file, with a table for each common name or fingerprint::

    [press]                              # the common name of a client's certificate
    send = [5]
    receive = []

    ["sha256:9f86d081...15b0f00a08"]     # or the SHA-256 fingerprint of the certificate
    receive = [5, "100-199"]

    ["*"]                                # every certificate that the authority signed
    send = ["*"]

A client may do what any table for it allows. To confirm is to receive.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdbqueue.agents.words import MAX_SIZE, MAX_TYPE
from fdbqueue.base.arguments import path_of

_VERBS = ("send", "receive")
_ALL = range(MAX_TYPE + 1)


@dataclass(frozen=True, slots=True)
class Rights:
    """The agent types that a client may use."""

    send: tuple[range, ...] = (_ALL,)
    receive: tuple[range, ...] = (_ALL,)

    def allow(self, type: int, *, sends: bool) -> bool:
        """Return whether the client may send to agents of this type, or be one."""
        return any(type in types for types in (self.send if sends else self.receive))


EVERYTHING = Rights()
"""The rights of all clients where there is no file."""


class Access:
    """The rules of a file.

    Args:
        rules: the tables of the file.

    Raises:
        ValueError: a table is not as described above.

    >>> access = Access({"press": {"send": [5]}, "*": {"receive": ["7-9"]}})
    >>> access.of(["press"]).allow(5, sends=True), access.of(["press"]).allow(8, sends=False)
    (True, True)
    >>> access.of(["thief"]).allow(5, sends=True)
    False
    """

    def __init__(self, rules: Mapping[str, Mapping[str, Iterable[int | str]]]) -> None:
        self._rules = {name: _rights(name, rule) for name, rule in rules.items()}

    @classmethod
    def read(cls, path: str | Path) -> Access:
        """Read a file.

        Raises:
            ValueError: it is not as described above. OSError: it can't be read.
        """
        file = path_of(path, "a file of rights")
        try:
            return cls(tomllib.loads(file.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def of(self, names: Iterable[str]) -> Rights:
        """Return the rights of a client with these names."""
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise TypeError(f"names are those of a client, a list of texts, not {names!r}.")
        given = [*names, "*"]
        if not all(isinstance(name, str) for name in given):
            raise TypeError(f"names are those of a client, a list of texts, not {given[:-1]!r}.")
        found = [rights for name in given if (rights := self._rules.get(name))]
        return Rights(
            tuple(types for rights in found for types in rights.send),
            tuple(types for rights in found for types in rights.receive),
        )


def names_of(connection: ssl.SSLObject) -> list[str]:
    """Return the names of a client's certificate: its common names, and its fingerprint."""
    certificate: Mapping[str, Any] = connection.getpeercert() or {}
    raw = connection.getpeercert(binary_form=True)
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    # A common name is free text. One that looks like another kind of name in the file counts as none.
    names = [name for name in names if name != "*" and not name.startswith("sha256:")]
    return [*names, f"sha256:{hashlib.sha256(raw).hexdigest()}"] if raw else []


def types_in(given: Iterable[int | str]) -> tuple[range, ...]:
    """Return agent types as ranges, from numbers and texts such as "7", "7-9" and "*".

    Raises:
        ValueError: one of them is no agent type.

    >>> types_in([5, "7-9"])
    (range(5, 6), range(7, 10))
    """
    return tuple(_range(one) for one in given)


def _range(given: object) -> range:
    if given == "*":
        return _ALL
    text = str(given) if type(given) in (int, str) else ""
    first, dash, last = text.partition("-")
    ends = (first, last if dash else first)
    if not all(end.isascii() and end.isdecimal() and int(end) <= MAX_TYPE for end in ends) or int(ends[0]) > int(
        ends[1]
    ):
        raise ValueError(f"{given!r} is no agent type: give a number from 0 to {MAX_TYPE:,}, FIRST-LAST, or *.")
    return range(int(ends[0]), int(ends[1]) + 1)


def _rights(name: str, rule: object) -> Rights:
    if not isinstance(rule, Mapping):
        raise ValueError(f"{name!r} is no table. Write [{name}], and below it send = [5] and receive = [5].")
    unknown = sorted(set(rule) - set(_VERBS))
    if unknown:
        raise ValueError(f"[{name}] has {unknown[0]!r}; a table has send and receive.")
    if name.startswith("sha256:") and not (len(name) == 71 and set(name[7:]) <= set("0123456789abcdef")):
        raise ValueError(f"[{name}] is no fingerprint: sha256: and 64 small hexadecimal digits.")
    for verb in _VERBS:
        if not isinstance(rule.get(verb, []), list):
            raise ValueError(f"{verb} of [{name}] is no list of agent types, but {rule[verb]!r}.")
    try:
        return Rights(types_in(rule.get("send", [])), types_in(rule.get("receive", [])))
    except ValueError as error:
        raise ValueError(f"[{name}]: {error}") from error


# Limits of a server: for one client, and for all clients together.


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server.

    Raises:
        ValueError: a limit is not more than 0, or `max_size` is larger than any data of the protocol.
    """

    max_size: int = 64 * 1024 * 1024
    """The largest data that it takes, in bytes, up to 2 GiB. Larger data is refused before it is sent."""
    connections: int = 1_000
    """Connections at the same time. One more gets Bye at once."""
    in_flight: int = 256 * 1024 * 1024
    """Bytes of data that all connections together have in memory. One that would exceed it gets Bye, or waits if its
    data is already on the way. If no other data is in memory, one is always admitted."""
    line_bytes: int = 256
    """The length of a line."""
    line_seconds: float = 30.0
    """The time that a client has for what it is to say next."""
    data_seconds: float = 60.0
    """The time in which each 64 KiB of data must move, in either direction."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) not in (int, float) or not value > 0:
                raise ValueError(f"{name} is a number over 0, not {value!r}.")
        if self.max_size > MAX_SIZE:
            raise ValueError(
                f"max_size is at most {MAX_SIZE:,} bytes, the largest data of the protocol, not {self.max_size:,}."
            )


class InFlight:
    """The data that connections have in memory.

    A connection reserves what it really has in memory, and not what its client has announced: a client that announces
    data and sends none would keep others out. The first of the connections that hold memory always gets more, so that
    it comes to its end. So connections that wait for each other's memory never wait for ever.

    Args:
        most: bytes in all.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self.used = 0
        self._held: dict[object, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes could be reserved now."""
        return not self._held or self.used + size <= self._most

    def held(self, holder: object) -> int:
        """Return how many bytes a connection has reserved."""
        return self._held.get(holder, 0)

    def take(self, holder: object, size: int) -> bool:
        """Reserve so many more bytes for a connection, if there are so many, or if it holds memory the longest."""
        if self.used + size > self._most and next(iter(self._held), holder) is not holder:
            return False
        self._held[holder] = self.held(holder) + size
        self.used += size
        return True

    def give(self, holder: object) -> None:
        """Return all that a connection has reserved."""
        self.used -= self._held.pop(holder, 0)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def freed(self) -> asyncio.Future[None]:
        """Return a future that is done when a connection has returned its memory."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter
