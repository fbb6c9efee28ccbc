"""The lines of the SCS Queue protocol, version 0.01, and the addresses of servers. Both sides use these.

Each line is said once, below: its words, and the numbers in them with their maxima. `docs/agent-protocol.md` has the
same lines, and a test compares them.
"""

from __future__ import annotations

import re

from fdbqueue.base.arguments import HostPort, host_and_port

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


class AgentLine:
    """A line of the protocol.

    Args:
        words: the line, with %d for each number.
        numbers: the names of the numbers, in their order, and the largest value of each.

    >>> OFFER.said(1234, 456), OFFER.numbers(b"data size is 1234. data id is 456.")
    (b'Data size is 1234. Data ID is 456.', (1234, 456))
    >>> AGENT.numbers(b"I'm agent of type number 65537.") is None, BYE.fits(b"BYE."), BYE.fits(b"Bye")
    (True, True, False)
    """

    __slots__ = ("_pattern", "most", "words")

    def __init__(self, words: bytes, **numbers: int) -> None:
        self.words = words
        self.most = numbers
        self._pattern = re.compile(re.escape(words).replace(b"%d", rb"([0-9]{1,10})"), re.IGNORECASE)

    def said(self, *numbers: int) -> bytes:
        """Return the line with its numbers, without its end.

        Raises:
            ValueError: a number is none that the protocol has.
        """
        given = zip(numbers, self.most.items(), strict=True)
        return self.words % tuple(check_number(number, name, most) for number, (name, most) in given)

    def fits(self, line: bytes) -> bool:
        """Return whether a line without its end is this one; case does not matter."""
        return self.numbers(line) is not None

    def numbers(self, line: bytes) -> tuple[int, ...] | None:
        """Return the numbers in a line; None if the line is not this one, or a number is over its maximum."""
        found = self._pattern.fullmatch(line)
        if found is None:
            return None
        given = tuple(map(int, found.groups()))
        return given if all(number <= most for number, most in zip(given, self.most.values(), strict=True)) else None


HI = AgentLine(b"Hi.")
VERSION = AgentLine(b"I speak SCS Queue protocol version 0.01.")
SEND_TO = AgentLine(b"I want to send to any agent of type number %d.", type=MAX_TYPE)
AGENT = AgentLine(b"I'm agent of type number %d.", type=MAX_TYPE)
SIZE = AgentLine(b"Data size is %d.", size=MAX_SIZE)
RECEIVE = AgentLine(b"I want to receive.")
OFFER = AgentLine(b"Data size is %d. Data ID is %d.", size=MAX_SIZE, id=MAX_ID)
CONFIRM = AgentLine(b"I confirm a success in processing data, which ID is %d.", id=MAX_ID)
DATA = AgentLine(b"Data:")
DOT = AgentLine(b".")
OK = AgentLine(b"OK.")
FAIL = AgentLine(b"Fail!")
LOCKED = AgentLine(b"Data is locked.")
BYE = AgentLine(b"Bye.")
LINES = (HI, VERSION, SEND_TO, AGENT, SIZE, RECEIVE, OFFER, CONFIRM, DATA, DOT, OK, FAIL, LOCKED, BYE)


def parse(address: str) -> HostPort | str:
    """Return host and port of ``HOST:PORT``, or the path of ``unix:PATH``.

    Raises:
        ValueError: the address is neither.

    >>> parse("127.0.0.1:4711"), parse("[::1]:4711"), parse("unix:/run/agents")
    (HostPort(host='127.0.0.1', port=4711), HostPort(host='::1', port=4711), '/run/agents')
    """
    if not isinstance(address, str):
        raise TypeError(f"An address is a str such as {DEFAULT!r}, not {address!r}.")
    if address.startswith(UNIX) and len(address) > len(UNIX):
        return address.removeprefix(UNIX)
    found = host_and_port(address)
    if found is None or (":" in found.host and not address.startswith("[")):
        raise ValueError(f"{address!r} is no address: give HOST:PORT, [IPV6]:PORT or unix:PATH.")
    return found
