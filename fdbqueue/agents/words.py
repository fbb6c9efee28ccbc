"""The lines of the SCS Queue protocol, version 0.01, and the addresses of servers. Both sides use these."""

from __future__ import annotations

import re

HI = b"Hi."
VERSION = b"I speak SCS Queue protocol version 0.01."
SEND_TO = b"I want to send to any agent of type number %d."
AGENT = b"I'm agent of type number %d."
SIZE = b"Data size is %d."
RECEIVE = b"I want to receive."
OFFER = b"Data size is %d. Data ID is %d."
CONFIRM = b"I confirm a success in processing data, which ID is %d."
DATA = b"Data:"
DOT = b"."
OK = b"OK."
FAIL = b"Fail!"
LOCKED = b"Data is locked."
BYE = b"Bye."

MAX_TYPE = 2**16
MAX_SIZE = MAX_ID = 2**31
"""The largest numbers that the protocol has, inclusive."""
DEFAULT = "127.0.0.1:4711"
UNIX = "unix:"


def check_number(given: int, name: str, most: int) -> int:
    """Return a number that the protocol has.

    Raises:
        ValueError: it is no integer from 0 to `most`.
    """
    if type(given) is not int or not 0 <= given <= most:
        raise ValueError(f"{name} is a whole number from 0 to {most:,}, not {given!r}.")
    return given


def same(line: bytes, words: bytes) -> bool:
    """Return whether a line without its end is these words; case does not matter.

    >>> same(b"BYE.", BYE), same(b"Bye", BYE)
    (True, False)
    """
    return line.lower() == words.lower()


def numbers(line: bytes, words: bytes, *most: int) -> tuple[int, ...] | None:
    """Return the numbers in a line; None if the line is not these words, or a number is over its maximum.

    >>> numbers(b"data size is 1234. data id is 456.", OFFER, MAX_SIZE, MAX_ID)
    (1234, 456)
    >>> numbers(b"I'm agent of type number 65537.", AGENT, MAX_TYPE) is None
    True
    """
    found = _patterns[words].fullmatch(line)
    if found is None:
        return None
    given = tuple(map(int, found.groups()))
    return given if all(number <= limit for number, limit in zip(given, most, strict=True)) else None


def parse(address: str) -> tuple[str, int] | str:
    """Return host and port of ``HOST:PORT``, or the path of ``unix:PATH``.

    Raises:
        ValueError: the address is neither.

    >>> parse("127.0.0.1:4711"), parse("[::1]:4711"), parse("unix:/run/agents")
    (('127.0.0.1', 4711), ('::1', 4711), '/run/agents')
    """
    if not isinstance(address, str):
        raise TypeError(f"An address is a str such as {DEFAULT!r}, not {address!r}.")
    if address.startswith(UNIX) and len(address) > len(UNIX):
        return address.removeprefix(UNIX)
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ValueError(f"{address!r} is no address: give HOST:PORT, [IPV6]:PORT or unix:PATH.")
    return host, int(port)


_patterns = {
    words: re.compile(re.escape(words).replace(b"%d", rb"([0-9]{1,10})"), re.IGNORECASE)
    for words in (SEND_TO, AGENT, SIZE, OFFER, CONFIRM)
}
