"""The server's side of a connection, without input and output: bytes in, events and bytes out.

The host feeds what it reads, and asks for the next event. Most events are questions. The host answers each of them
before the dialog goes on, and sends the `output`::

    dialog.feed(received)                     # any piece of the stream, or end_of_input()
    while (event := dialog.next()) is not None:
        match event:
            case SizeNamed(size): dialog.accept() if size < limit else dialog.refuse()
            ...
    send(dialog.output())

`_talk` is the three dialogs, line by line as the document has them. It is a generator: it yields what it waits for.
(Source: SCS Agent Queue, protocol 0.01.)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from fdbqueue.agents import words
from fdbqueue.agents.words import AgentLine


@dataclass(frozen=True, slots=True)
class TypeNamed:
    """The client named its agent type. Accept or refuse."""

    type: int
    sends: bool
    """Whether it wants to send to such agents. Otherwise it is one of them."""


@dataclass(frozen=True, slots=True)
class SizeNamed:
    """The client named the size of the data that it will send. Accept or refuse."""

    size: int


@dataclass(frozen=True, slots=True)
class MessagePart:
    """The next piece of the client's data. It needs no answer."""

    data: bytes


@dataclass(frozen=True, slots=True)
class DataComplete:
    """All data is there, with its terminator. Accept, refuse, or fail."""


@dataclass(frozen=True, slots=True)
class ReceiveWanted:
    """The client wants data. Offer, or refuse."""


@dataclass(frozen=True, slots=True)
class OfferTaken:
    """The client wants the offered data. Give it to `send_data`, in pieces."""


@dataclass(frozen=True, slots=True)
class DataReceived:
    """The client said that it has the data. Accept, or refuse."""


@dataclass(frozen=True, slots=True)
class ConfirmWanted:
    """The client has processed the data with this ID. Accept, or refuse."""

    id: int


class End(StrEnum):
    """Why a dialog is over."""

    done = "done"
    """All lines were said."""
    left = "the client said Bye."
    lost = "the connection was lost"
    refused = "refused"
    """The host refused."""
    wrong = "a line that has no place there"
    line = "a line that is too long"


@dataclass(frozen=True, slots=True)
class Ended:
    """The dialog is over. Send the output and close the connection."""

    why: End


Question: TypeAlias = TypeNamed | SizeNamed | DataComplete | ReceiveWanted | OfferTaken | DataReceived | ConfirmWanted
Event: TypeAlias = Question | MessagePart | Ended


class _Wish(StrEnum):
    """What the dialog waits for, if not for an answer."""

    line = "line"
    part = "part"
    terminator = "terminator"


_Steps: TypeAlias = Generator[_Wish | Question, Any, None]
"""Steps of a dialog: they yield what they wait for."""


class _Over(Exception):
    """Ends the dialog with Bye."""

    def __init__(self, why: End) -> None:
        self.why = why


class Dialog:
    """One connection's dialog.

    Args:
        line_bytes: the length of a line that ends the dialog.
    """

    def __init__(self, *, line_bytes: int = 256) -> None:
        self._line_bytes = line_bytes
        self._input = bytearray()
        self._output = bytearray()
        self._input_ended = False
        self._owed = 0  # bytes of data that the client sends, or is sent
        self._said_bye = False
        self._success = False
        self._asked = False  # whether the host has the question that it is to answer
        self.under_way = False
        """Whether the client has begun to send or was offered data, or confirms: the host should let it finish."""
        self._end: End | None = None
        self._steps = self._talk()
        self._wish: _Wish | Question = next(self._steps)

    def feed(self, data: bytes) -> None:
        """Take the next bytes from the client."""
        if self._end is None:
            self._input += data

    def end_of_input(self) -> None:
        """Note that the client sends no more. It may still read."""
        self._input_ended = True

    @property
    def buffered(self) -> int:
        """The number of bytes that the client has sent ahead."""
        return len(self._input)

    @property
    def unsent(self) -> int:
        """The number of bytes to send now."""
        return len(self._output)

    def output(self) -> bytes:
        """Return the bytes to send now, once."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def next(self) -> Event | None:
        """Return the next event; None if more input or an answer is needed first."""
        while self._end is None:
            wish = self._wish
            if not isinstance(wish, _Wish):
                if not self._asked:
                    self._asked = True
                    return wish
                if not (isinstance(wish, ReceiveWanted) and self._gone()):
                    return None
                continue
            if wish is _Wish.part:
                if self._input:
                    return self._part()
                if self._input_ended:
                    self._finish(End.lost)
                    continue
                return None
            told = self._take_line() if wish is _Wish.line else self._take_terminator()
            if told is not None:
                self._advance(told)
            elif self._end is None:
                if not self._input_ended:
                    return None
                self._finish(End.lost)
        return Ended(self._end)

    def accept(self) -> None:
        """Answer the question with yes."""
        self._answer(True)

    def refuse(self) -> None:
        """Answer the question with Bye."""
        self._answer(None)

    def fail(self) -> None:
        """Answer `DataComplete`: the data is certainly not in the queue."""
        self._answer(False)

    def offer(self, size: int, id: int) -> None:
        """Answer `ReceiveWanted` with data."""
        self._answer((size, id))

    def send_data(self, data: bytes) -> None:
        """Answer `OfferTaken` with the next piece of data. The last one completes the size of the offer."""
        if self._end is not None:
            return
        self._owed -= len(data)
        if self._owed < 0:
            raise ValueError(f"{-self._owed} bytes more than the size of the offer.")
        self._output += data
        if not self._owed:
            self._answer(True)

    def leave(self) -> None:
        """End the dialog from the server's side with Bye.

        In the middle of data it says nothing. It also says nothing while the host stores or confirms: the outcome is
        unknown, and Bye would deny it.
        """
        if self._end is None:
            if not isinstance(self._wish, OfferTaken | DataComplete | ConfirmWanted):
                self._say_bye()
            self._finish(End.refused)

    def _talk(self) -> _Steps:
        yield from self._expect(words.HI)
        self._say(words.HI)
        yield from self._expect(words.VERSION)
        self._say(words.OK)
        line, numbers = yield from self._expect(words.SEND_TO, words.AGENT)
        yield from self._ask(TypeNamed(numbers[0], sends=line is words.SEND_TO))
        if line is words.SEND_TO:
            yield from self._sending()
        else:
            line, numbers = yield from self._expect(words.RECEIVE, words.CONFIRM)
            yield from self._receiving() if line is words.RECEIVE else self._confirming(numbers[0])
        self.under_way = False
        yield from self._expect()  # a second dialog, for example

    def _sending(self) -> _Steps:
        _, [self._owed] = yield from self._expect(words.SIZE)
        yield from self._ask(SizeNamed(self._owed))
        yield from self._expect(words.DATA)
        self.under_way = True
        while self._owed:
            yield _Wish.part
        stored = (yield _Wish.terminator) and (yield DataComplete())
        if stored is None:
            raise _Over(End.refused)
        self._say(words.OK if stored else words.FAIL)
        self._success = bool(stored)

    def _receiving(self) -> _Steps:
        offer = yield ReceiveWanted()
        if offer is None:
            raise _Over(End.refused)
        self.under_way = True
        self._say(words.OK)
        self._say(words.OFFER, *offer)
        yield from self._expect(words.OK)
        self._say(words.DATA)
        self._owed = offer[0]
        if self._owed:
            yield OfferTaken()
        self._say(words.DOT)
        yield from self._expect(words.OK)
        if (yield DataReceived()) is None:
            raise _Over(End.refused)
        self._say(words.LOCKED)
        raise _Over(End.done)  # the client's Bye changes nothing

    def _confirming(self, id: int) -> _Steps:
        self.under_way = True
        yield from self._ask(ConfirmWanted(id))
        self._success = True

    def _expect(self, *wanted: AgentLine) -> Generator[_Wish | Question, Any, tuple[AgentLine, tuple[int, ...]]]:
        """Wait for one of these lines, and return it with its numbers. Any other line ends the dialog."""
        said = yield _Wish.line
        for line in wanted:
            if (numbers := line.numbers(said)) is not None:
                return line, numbers
        raise _Over(End.wrong)

    def _ask(self, question: Question) -> _Steps:
        """Ask, and say OK to a yes and Bye to a no."""
        if (yield question) is None:
            raise _Over(End.refused)
        self._say(words.OK)

    def _answer(self, answer: object) -> None:
        if self._end is not None:
            return  # the client left while the host was thinking
        if isinstance(self._wish, _Wish) or not self._asked:
            raise RuntimeError("There is no question to answer.")
        self._advance(answer)

    def _advance(self, told: object) -> None:
        self._asked = False
        try:
            self._wish = self._steps.send(told)
        except _Over as over:
            self._say_bye()
            self._finish(over.why)

    def _finish(self, why: End) -> None:
        self._end = End.done if self._success and why in (End.left, End.lost) else why
        self._steps.close()
        self._input.clear()

    def _say(self, line: AgentLine, *numbers: int) -> None:
        self._output += line.said(*numbers) + b"\n"

    def _say_bye(self) -> None:
        if not self._said_bye:
            self._said_bye = True
            self._say(words.BYE)

    def _part(self) -> MessagePart:
        if len(self._input) <= self._owed:
            data = bytes(self._input)
            self._input.clear()
        else:
            data = bytes(self._input[: self._owed])
            del self._input[: self._owed]
        self._owed -= len(data)
        self._advance(None)
        return MessagePart(data)

    def _take_line(self) -> bytes | None:
        """Return the next line without its end, if it is there. Bye ends the dialog, unless it is expected."""
        line = self._peek_line()
        if line is None:
            return None
        del self._input[: self._input.index(b"\n") + 1]
        if words.BYE.fits(line):
            self._client_left()
            return None
        return line

    def _peek_line(self) -> bytes | None:
        end = self._input.find(b"\n", 0, self._line_bytes)
        if end < 0:
            if len(self._input) >= self._line_bytes:
                self._say_bye()
                self._finish(End.line)
            return None
        return bytes(self._input[:end]).removesuffix(b"\r")

    def _take_terminator(self) -> bool | None:
        """Return whether the terminator is there; None if it may yet come."""
        for terminator in (b".\n", b".\r\n"):
            if self._input.startswith(terminator):
                del self._input[: len(terminator)]
                return True
            if terminator.startswith(self._input):
                return None
        return False

    def _client_left(self) -> None:
        self._say_bye()
        self._finish(End.left)

    def _gone(self) -> bool:
        """Return whether the client has left, or can't say anything more, while the host looks for data."""
        line = self._peek_line()
        if line is not None and words.BYE.fits(line):
            self._client_left()
        elif line is None and self._end is None and self._input_ended:
            self._finish(End.lost)
        return self._end is not None
