"""Shared helpers for tests of agents: dialogs as texts, a host without a database, and a reference for both."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.agents import dialog as said
from fdbqueue.agents.dialog import Dialog, End, Ended

GREETING = b"Hi.\nI speak SCS Queue protocol version 0.01.\n"


def sending(type: int, data: bytes, size: int | None = None) -> bytes:
    """All that a client says to send data."""
    size = len(data) if size is None else size
    return GREETING + b"I want to send to any agent of type number %d.\nData size is %d.\nData:\n%b.\nBye.\n" % (
        type,
        size,
        data,
    )


def receiving(type: int) -> bytes:
    """All that a client says to receive data."""
    return GREETING + b"I'm agent of type number %d.\nI want to receive.\nOK.\nOK.\nBye.\n" % type


def confirming(type: int, id: int) -> bytes:
    """All that a client says to confirm data."""
    return (
        GREETING
        + b"I'm agent of type number %d.\nI confirm a success in processing data, which ID is %d.\nBye.\n" % (type, id)
    )


@dataclass
class World:
    """What a host without a database has, and what was done with it."""

    types: frozenset[int] = frozenset({5, 6})
    max_size: int = 1_000
    stores: bool = True
    """Whether it stores data; if not, it fails."""
    has: tuple[int, bytes] | None = (456, b"some\n.\ndata")
    """What it offers, with its ID."""
    locks: bool = True
    ids: frozenset[int] = frozenset({456})
    stored: list[bytes] = field(default_factory=list)
    locked: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)

    def again(self) -> World:
        """The same world, before anything was done."""
        return World(self.types, self.max_size, self.stores, self.has, self.locks, self.ids)


class Host:
    """Answers a dialog's questions from a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dialog = Dialog()
        self.said = bytearray()
        self.end: End | None = None
        self._data = bytearray()
        self._pending: said.Event | None = None

    def feed(self, data: bytes) -> None:
        self.dialog.feed(data)

    def events(self) -> None:
        """Ask for events and answer them until there is none."""
        while self.step():
            pass

    def step(self) -> bool:
        """Ask for the next event, or answer the last one; return False if there is nothing to do."""
        if self.end is not None:
            return False
        event = self._pending
        if event is None:
            event = self._pending = self.dialog.next()
            if isinstance(event, Ended | said.MessagePart):
                self._pending = None
                self._deal(event)
        else:
            self._pending = None
            self._deal(event)
        self.said += self.dialog.output()
        return event is not None

    def _deal(self, event: said.Event) -> None:
        world, dialog = self.world, self.dialog
        match event:
            case Ended(why):
                self.end = why
            case said.TypeNamed(type, _):
                self._yes_if(type in world.types)
            case said.SizeNamed(size):
                self._yes_if(size <= world.max_size)
            case said.MessagePart(data):
                assert data
                self._data += data
            case said.DataComplete():
                if world.stores:
                    world.stored.append(bytes(self._data))
                    dialog.accept()
                else:
                    dialog.fail()
            case said.ReceiveWanted():
                if world.has is None:
                    dialog.refuse()
                else:
                    dialog.offer(len(world.has[1]), world.has[0])
            case said.OfferTaken():
                assert world.has is not None
                middle = len(world.has[1]) // 2
                for part in filter(None, (world.has[1][:middle], world.has[1][middle:])):
                    dialog.send_data(part)
            case said.DataReceived():
                assert world.has is not None
                if world.locks:
                    world.locked.append(world.has[0])
                self._yes_if(world.locks)
            case said.ConfirmWanted(id):
                if id in world.ids:
                    world.confirmed.append(id)
                self._yes_if(id in world.ids)

    def _yes_if(self, good: bool) -> None:
        if good:
            self.dialog.accept()
        else:
            self.dialog.refuse()


def played(world: World, packets: Iterable[bytes]) -> Host:
    """Play packets of a client, one by one, and the end of its input."""
    host = Host(world)
    for packet in packets:
        host.feed(packet)
        host.events()
    host.dialog.end_of_input()
    host.events()
    return host


def reference(world: World, stream: bytes) -> bytes:
    """What the document has the server say to all that a client says, read line by line after the fact.

    It notes in `world` what was done.
    """
    script = _Script(world, stream)
    with contextlib.suppress(_Stop):
        script.play()
    return bytes(script.said)


class _Stop(Exception):
    """The dialog is over."""


class _Script:
    def __init__(self, world: World, stream: bytes) -> None:
        self.world = world
        self.rest = stream
        self.said = bytearray()

    def play(self) -> None:
        world = self.world
        self.wants(rb"hi\.")
        self.said += b"Hi.\n"
        self.wants(rb"i speak scs queue protocol version 0\.01\.")
        self.said += b"OK.\n"
        verb, type = self.wants(rb"(i want to send to any|i'm) agent of type number (\d{1,10})\.")
        self.ok_if(int(type) in world.types)
        if verb != b"i'm":
            self.sends()
        else:
            _, id = self.wants(
                rb"(i want to receive\.|i confirm a success in processing data, which id is (\d{1,10})\.)"
            )
            if id is None:
                self.receives()
            else:
                self.ok_if(int(id) in world.ids)
                world.confirmed.append(int(id))
        self.wants(rb"bye\.")

    def sends(self) -> None:
        size = int(self.wants(rb"data size is (\d{1,10})\.")[0])
        self.ok_if(size <= self.world.max_size)
        self.wants(rb"data:")
        data, self.rest = self.rest[:size], self.rest[size:]
        if len(data) < size or self.rest in (b"", b".", b".\r"):
            raise _Stop
        ended = re.match(rb"\.\r?\n", self.rest)
        if ended:
            self.rest = self.rest[ended.end() :]
        if ended and self.world.stores:
            self.world.stored.append(data)
            self.said += b"OK.\n"
        else:
            self.said += b"Fail!\n"

    def receives(self) -> None:
        if self.world.has is None:
            self.bye()
            return
        id, data = self.world.has
        self.said += b"OK.\nData size is %d. Data ID is %d.\n" % (len(data), id)
        self.wants(rb"ok\.")
        self.said += b"Data:\n" + data + b".\n"
        self.wants(rb"ok\.")
        if not self.world.locks:
            self.bye()
        self.world.locked.append(id)
        self.said += b"Data is locked.\nBye.\n"
        raise _Stop

    def wants(self, pattern: bytes) -> tuple[Any, ...]:
        """The groups in the next line. Any other line is answered by Bye, as Bye is."""
        line, end, rest = self.rest.partition(b"\n")
        if len(line) >= 256:
            self.bye()
        if not end:
            raise _Stop
        self.rest = rest
        found = re.fullmatch(pattern, line.removesuffix(b"\r").lower())
        if found is None or pattern == rb"bye\.":
            self.bye()
        assert found is not None
        return found.groups()

    def ok_if(self, good: bool) -> None:
        if not good:
            self.bye()
        self.said += b"OK.\n"

    def bye(self) -> None:
        self.said += b"Bye.\n"
        raise _Stop
