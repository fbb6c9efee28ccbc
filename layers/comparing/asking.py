"""Asking: a queued item is asked about a newcomer, and its answer is not trusted further than it should be.

A check is the user's code, called inside the enqueueing transaction, which may run again. It gets copies; what it does
with them is compared afterwards with what it may do. Only the item that ignores the newcomer may have changed itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fdbqueue import CheckFailed, CodecError, Position, Queue
from fdbqueue.layout import Layout

from ..decisions import Asked, Decision, TakeOver
from ..messages import MESSAGE_ERRORS, Messages, MessageType, takes_asked
from .overrun import Overrun, within
from .scanning import Found, position_of


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A message that is about to be enqueued."""

    message: Any
    """A copy for the checks to look at, decoded from what would be stored."""
    type: MessageType
    key: Any
    payload: bytes


@dataclass(slots=True)
class Answers:
    """What the items of a window said."""

    decision: Decision = Decision.dont_care
    by: Found | None = None
    """Who decided."""
    type: MessageType | None = None
    """Its type."""
    payload: bytes | None = None
    """What it wants to be from now on; None: what it was."""
    expired: list[Found] = field(default_factory=list)
    asked: int = 0


class Asking:
    """Asks the items of one queue.

    Args:
        seconds: how long the checks of one window may take together.
        debug: ask everybody twice and compare.
    """

    def __init__(self, queue: Queue, messages: Messages, *, seconds: float, debug: bool) -> None:
        self._queue = queue
        self._layout: Layout = queue.layout
        self._messages = messages
        self._seconds = seconds
        self._debug = debug
        self._encode, self._decode = messages.encode_as, messages.decode_typed
        self._checkers: dict[str, tuple[Callable[..., Any] | None, bool]] = {}
        """By type: its check, and whether that wants to know what is known of the item."""
        for name, given in messages.types.items():
            check = given.check_of()
            self._checkers[name] = (check, check is not None and takes_asked(check))

    def newcomer(self, message: Any) -> Newcomer:
        """Return a message as a newcomer.

        Raises:
            CodecError: it has no registered type, or does not fit it.
        """
        payload = self._queue.encode(message)
        try:
            found, copy = self._messages.decode_typed(payload)
        except MESSAGE_ERRORS as error:
            raise CodecError(f"The message does not fit its type in {self._queue!r}: {error}") from error
        # What is stored is the copy, encoded: what a check sees is what a later one will see.
        stored = self._messages.encode_as(found, copy)
        return Newcomer(copy, found, None if found.key is None else found.key(copy), stored)

    def window(self, new: Newcomer, found: list[Found], now_us: int) -> Answers:
        """Ask items in their order, until one cares. Those whose life is over are not asked, but listed.

        Raises:
            CheckFailed: of one of them; the message names its type and it.
            CodecError: one can't be decoded.
        """
        answers = Answers()
        if not found:
            return answers
        at = [found[0]]
        try:
            within(self._seconds, partial(self._ask_all, new, found, now_us, answers, at))
        except Overrun as error:
            raise self._failed(at[0], new, f"it did not return within {self._seconds} seconds") from error
        if answers.asked and self._changed(new.message, new.payload):
            self._find_who_changed(new, found, now_us)
        return answers

    def _ask_all(self, new: Newcomer, found: list[Found], now_us: int, answers: Answers, at: list[Found]) -> None:
        # Called for every item that is met, up to 10,000 in a transaction: as few calls as can be.
        encode, decode, checkers, newcomer = self._encode, self._decode, self._checkers, new.message
        dont_care = Decision.dont_care
        for one in found:
            at[0] = one
            ttl_at_us = one.opened.notes.ttl_at_us
            if ttl_at_us and ttl_at_us <= now_us:
                if one.state != "leased":  # else its consumer still has it, and it goes when that is over
                    answers.expired.append(one)
                continue
            try:
                own, message = decode(one.payload)
            except MESSAGE_ERRORS as error:
                raise self._undecodable(one, error) from error
            check, wants_asked = checkers[own.name]
            if check is None or (one.state == "leased" and not wants_asked):
                continue
            answers.asked += 1
            try:
                answer = check(message, newcomer, self._asked(one, now_us)) if wants_asked else check(message, newcomer)
            except Exception as error:
                raise self._raised(one, new, error) from error
            if self._debug:
                self._ask_again(answer, message, new, one, now_us)
            if answer is dont_care or answer is Decision.queue:
                if encode(own, message) != one.payload and self._changed(message, one.payload):
                    raise self._failed(one, new, "it changed its message and did not answer 'ignore'")
                if answer is dont_care:
                    continue
            self._note(answers, answer, message, new, one, own)
            return

    def _note(self, answers: Answers, answer: Any, message: Any, new: Newcomer, one: Found, own: MessageType) -> None:
        taken_over = isinstance(answer, TakeOver)
        if not taken_over and not isinstance(answer, Decision):
            raise self._failed(one, new, f"it returned {answer!r}, which is no Decision")
        payload = self._taken_over(answer.message if taken_over else message, new, one, own)
        changed = payload != one.payload
        if changed and not taken_over and answer is not Decision.ignore:
            raise self._failed(one, new, f"it changed its message and answered {str(answer)!r}, not 'ignore'")
        if changed and one.state == "leased":
            raise self._failed(one, new, "it is leased, and changed its message: whoever works on it has it as it was")
        answers.decision = Decision.ignore if taken_over else answer
        answers.by, answers.type = one, own
        answers.payload = payload if changed else None

    def _taken_over(self, message: Any, new: Newcomer, one: Found, own: MessageType) -> bytes:
        """Return what a message that answered is now, if it may be that."""
        try:
            found = self._messages.type_of(message)
            payload = self._messages.encode(message)
            if not self._changed(message, one.payload):
                return one.payload
            again = self._messages.decode(payload)
            was = self._messages.decode(one.payload)
            same_key = own.key is None or own.key(again) == own.key(was)
        except MESSAGE_ERRORS as error:
            raise self._failed(one, new, f"what it made of its message can't be stored ({error})") from error
        if found is not own:
            raise self._failed(one, new, f"it made its message one of type {found.name!r}")
        if not same_key:
            raise self._failed(one, new, "it changed the key of its message")
        return payload

    def _ask_again(self, answer: Any, message: Any, new: Newcomer, one: Found, now_us: int) -> None:
        """Ask a fresh copy the same, and compare."""
        other = self._messages.decode(one.payload)
        again = self._answer(other, new.message, new, one, now_us)
        if again != answer or self._messages.encode(other) != self._messages.encode(message):
            raise self._failed(
                one, new, f"asked twice it answered {answer!r} and {again!r}, or changed itself in two ways"
            )

    def _find_who_changed(self, new: Newcomer, found: list[Found], now_us: int) -> None:
        """Name the check that changed the newcomer: ask each with a fresh copy of it."""
        for one in found:
            copy = self._messages.decode(new.payload)
            self._answer(self._messages.decode(one.payload), copy, new, one, now_us)
            if self._changed(copy, new.payload):
                raise self._failed(one, new, "it changed the newcomer")
        raise self._failed(found[0], new, "it, or one behind it, changed the newcomer, and only sometimes")

    def _answer(self, message: Any, newcomer: Any, new: Newcomer, one: Found, now_us: int) -> Any:
        check, wants_asked = self._checkers[self._messages.type_of(message).name]
        if check is None or (one.state == "leased" and not wants_asked):
            return Decision.dont_care
        try:
            return check(message, newcomer, self._asked(one, now_us)) if wants_asked else check(message, newcomer)
        except Exception as error:
            raise self._raised(one, new, error) from error

    def _changed(self, message: Any, payload: bytes) -> bool:
        """Say whether a message is another than was decoded from `payload`, which others may have written otherwise."""
        now = self._messages.encode(message)
        return now != payload and now != self._messages.encode(self._messages.decode(payload))

    def _undecodable(self, one: Found, error: Exception) -> CodecError:
        return CodecError(
            f"The item {self._position(one)} of {self._queue!r} can't be decoded, so not be asked: {error}."
        )

    def _asked(self, one: Found, now_us: int) -> Asked:
        return Asked(one.state, self._position(one), one.opened.notes.attempt, now_us / 1e6)

    def _position(self, one: Found) -> Position:
        return position_of(self._layout, one.packed)

    def _raised(self, one: Found, new: Newcomer, error: Exception) -> CheckFailed:
        return self._failed(one, new, f"it raised {type(error).__name__}: {error}")

    def _failed(self, one: Found, new: Newcomer, why: str) -> CheckFailed:
        name = self._messages.type_of(self._messages.decode(one.payload)).name
        position = self._position(one)
        return CheckFailed(
            f"The check of {name!r}, for the item {position} of {self._queue!r}, failed when it was asked about a new"
            f" {new.type.name!r}: {why}. The newcomer was not enqueued and nothing was written.",
            type=name,
            position=position,
        )
