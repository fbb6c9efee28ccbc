"""Runs the checks of queued items on an incoming item, and verifies their answers.

A check is user code that runs inside the enqueueing transaction, which may run again. It gets copies of the messages.
Afterwards the copies show whether it changed more than it may. Only an item that answers "ignore" may have changed its
own message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from fdbqueue import CheckFailed, CodecError, Position, Queue
from fdbqueue.base.arguments import check_flag
from fdbqueue.lowlevel import Layout
from fdbqueue.moves.taking import Takes
from fdbqueue.stored.codecs import reason_of

from .messages import Functions, Given, Messages, TimeLimitExceeded, takes, within
from .scanning import Bounds, FoundItem, position_of
from .types import Asked, Decision, Key, Limit, Message, MessageType, Replace, check_bounds


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that is about to be enqueued."""

    message: Message
    """A copy for the checks, decoded from the bytes to store."""
    type: MessageType
    given: Given
    """Results of its type's functions."""
    payload: bytes

    @property
    def key(self) -> Key:
        """The message's relation key."""
        return self.given.key


class CheckTerms(msgspec.Struct, frozen=True):
    """How a smart queue, or smart sessions, check: their arguments beside the queue.

    Raises:
        TypeError, ValueError: one of them is wrong.
    """

    limit: Limit | None
    """How many items there may be."""
    max_items: int
    """How many queued items an incoming item may be compared with."""
    max_bytes: int
    """How large these items may be together."""
    check_seconds: float
    """How long the checks of one window may take together."""
    debug: bool
    """Whether each check runs twice."""

    def __post_init__(self) -> None:
        bounds = {"max_items": self.max_items, "max_bytes": self.max_bytes, "check_seconds": self.check_seconds}
        check_bounds(self.limit, **bounds)
        check_flag(self.debug, "debug")

    @property
    def bounds(self) -> Bounds:
        """How much an incoming item may be compared with."""
        return Bounds(self.max_items, self.max_bytes)


class Checker(NamedTuple):
    """The check of one message type, and the arguments that it takes."""

    check: Callable[..., object] | None
    asked: bool
    """Whether the check takes the facts of its item."""
    last: bool
    """Whether the check takes `last`: whether its item is the last one."""


@dataclass(slots=True)
class Answers:
    """The answers of the items of a window."""

    decision: Decision = Decision.dont_care
    by: FoundItem | None = None
    """The item that decided."""
    type: MessageType | None = None
    """Type of that item."""
    payload: bytes | None = None
    """The new payload of that item; None: unchanged."""
    terms: Literal["own", "incoming"] = "own"
    """Source of its new headers, delay and rank."""
    expired: list[FoundItem] = field(default_factory=list)
    asked: int = 0
    told_last: list[bool] = field(default_factory=list)
    """The values of `last` that checks got."""


class CheckRunner:
    """Asks the items of one queue.

    Args:
        terms: how long checks may take, and whether each runs twice.
    """

    def __init__(self, queue: Queue, messages: Messages, terms: CheckTerms) -> None:
        self._queue = queue
        self._layout: Layout = queue.layout
        self._messages = messages
        self.terms = terms
        self._seconds, self._debug = terms.check_seconds, terms.debug
        self._encode, self._decode = messages.encode_as, messages.decode_typed
        self.functions = Functions(messages.types.values(), self._seconds)
        self._checkers = {name: _checker(own) for name, own in messages.types.items()}
        self.wants_last = any(checker.last for checker in self._checkers.values())
        """Whether any check takes `last`."""

    def incoming(self, message: Message, now_us: int) -> Incoming:
        """Prepare a message for its enqueue.

        Raises:
            CodecError: the message has no registered type, or does not fit it.
            CheckFailed: a function of its type is at fault.
        """
        payload = self._queue.encode(message)
        try:
            found, copy = self._messages.decode_typed(payload)
        except Exception as error:  # the class of a message may be code that is not ours
            raise CodecError(f"The message does not fit its type in {self._queue!r}: {reason_of(error)}.") from error
        # Store the encoded copy: this check and later ones see the same message.
        stored = self._messages.encode_as(found, copy)
        return Incoming(copy, found, self.functions.of(found, copy, now_us), stored)

    def window(self, new: Incoming, found: list[FoundItem], now_us: int, last: bytes | None) -> Answers:
        """Run the checks of items in their order, until one decides. Expired items are listed; their checks don't run.

        Args:
            last: the packed position of the last item of the queue, if any check takes `last`.

        Raises:
            CheckFailed: a check failed; the message names its type and item.
            CodecError: an item can't be decoded.
        """
        answers = Answers()
        if not found:
            return answers
        at = _At(found[0])
        try:
            within(self._seconds, partial(self._ask_all, new, found, now_us, last, answers, at))
        except TimeLimitExceeded as error:
            why = f"it did not return within {self._seconds} seconds"
            raise self._failed(at.one, new, why, at.function) from error
        if answers.asked and self._changed(new.message, new.payload):
            self._find_who_changed(new, found, now_us, last)
        return answers

    def _ask_all(
        self, new: Incoming, found: list[FoundItem], now_us: int, last: bytes | None, answers: Answers, at: _At
    ) -> None:
        # This loop runs for every item, up to 10,000 in a transaction, so it makes few calls.
        encode, decode, checkers, incoming = self._encode, self._decode, self._checkers, new.message
        dont_care, predicates = Decision.dont_care, self.functions.predicates
        for one in found:
            at.one = one
            ttl_at_us = one.opened.notes.ttl_at_us
            if Takes.is_over(one.stored, one.opened.notes, now_us):
                if one.state != "leased":  # a leased item stays with its consumer, and is removed after that
                    answers.expired.append(one)
                continue
            try:
                own, message = decode(one.payload)
            except Exception as error:
                raise self._undecodable(one, error) from error
            may_be_over = predicates and not ttl_at_us and one.state != "leased" and own.name in predicates
            if may_be_over and self._is_over(own, message, new, now_us, at):
                answers.expired.append(one)
                continue
            checker = checkers[own.name]
            check, wants_asked, wants_last = checker
            if check is None or (one.state == "leased" and not wants_asked):
                continue
            answers.asked += 1
            if wants_last:
                answers.told_last.append(one.packed == last)
            try:
                if wants_asked or wants_last:
                    answer = self._call(checker, message, incoming, one, now_us, last)
                else:
                    answer = check(message, incoming)
            except Exception as error:
                raise self._raised(one, new, error) from error
            if self._debug:
                self._ask_again(answer, message, new, one, now_us, last)
            if answer is dont_care or answer is Decision.queue:
                if encode(own, message) != one.payload and self._changed(message, one.payload):
                    raise self._failed(one, new, "it changed its message and did not answer 'ignore'")
                if answer is dont_care:
                    continue
            self._note(answers, answer, message, new, one, own)
            return

    def _note(
        self, answers: Answers, answer: object, message: Message, new: Incoming, one: FoundItem, own: MessageType
    ) -> None:
        if not isinstance(answer, Replace | Decision):
            if inspect.iscoroutine(answer):
                answer.close()
            raise self._failed(one, new, f"it returned {answer!r}, which is not a Decision")
        decision = Decision.ignore
        terms: Literal["own", "incoming"] = "own"
        if isinstance(answer, Replace):
            message, terms = answer.message, answer.terms
        else:
            decision = answer
        payload = self._taken_over(message, new, one, own)
        changed = payload != one.payload or terms == "incoming"
        if changed and decision is not Decision.ignore:
            raise self._failed(one, new, f"it changed its message and answered {str(decision)!r}, not 'ignore'")
        if changed and one.state == "leased":
            raise self._failed(
                one, new, "it is leased, and changed its message: its consumer still has the old message"
            )
        answers.decision, answers.terms = decision, terms
        answers.by, answers.type = one, own
        answers.payload = payload if changed else None

    def _taken_over(self, message: Message, new: Incoming, one: FoundItem, own: MessageType) -> bytes:
        """Return the new payload of a message whose check answered.

        Raises:
            CheckFailed: it can't be stored, or has another type or key.
        """
        try:
            found = self._messages.type_of(message)
            payload = self._messages.encode(message)
            if not self._changed(message, one.payload):
                return one.payload
            again = self._messages.decode(payload)
            was = self._messages.decode(one.payload)
        except Exception as error:
            raise self._failed(one, new, f"what it made of its message can't be stored ({reason_of(error)})") from error
        if found is not own:
            raise self._failed(one, new, f"it made its message one of type {found.name!r}")
        try:
            same_key = own.key is None or own.key(again) == own.key(was)
        except Exception as error:
            raise self._failed(one, new, f"it raised {type(error).__name__}: {error}", "key") from error
        if not same_key:
            raise self._failed(one, new, "it changed the key of its message")
        return payload

    def _is_over(self, own: MessageType, message: Message, new: Incoming, now_us: int, at: _At) -> bool:
        """Return whether the predicate of an item's type says that it is outdated."""
        at.function = "expires"
        try:
            said = self.functions.predicates[own.name](message, now_us)
        except Exception as error:
            raise self._raised(at.one, new, error, at.function) from error
        at.function = "check"
        return said is True

    def _ask_again(
        self, answer: object, message: Message, new: Incoming, one: FoundItem, now_us: int, last: bytes | None
    ) -> None:
        """Run the check again on a fresh copy, and compare."""
        other = self._messages.decode(one.payload)
        again = self._answer(other, new.message, new, one, now_us, last)
        if again != answer or self._messages.encode(other) != self._messages.encode(message):
            raise self._failed(
                one, new, f"asked twice it answered {answer!r} and {again!r}, or changed itself in two ways"
            )

    def _find_who_changed(self, new: Incoming, found: list[FoundItem], now_us: int, last: bytes | None) -> None:
        """Find the check that changed the incoming message: run each on a fresh copy, and raise for the one."""
        for one in found:
            copy = self._messages.decode(new.payload)
            self._answer(self._messages.decode(one.payload), copy, new, one, now_us, last)
            if self._changed(copy, new.payload):
                raise self._failed(one, new, "it changed the newcomer")
        raise self._failed(found[0], new, "it, or an item behind it, sometimes changed the incoming message")

    def _answer(
        self, message: Message, incoming: Message, new: Incoming, one: FoundItem, now_us: int, last: bytes | None
    ) -> object:
        checker = self._checkers[self._messages.type_of(message).name]
        if one.state == "leased" and not checker.asked:
            return Decision.dont_care
        try:
            return self._call(checker, message, incoming, one, now_us, last)
        except Exception as error:
            raise self._raised(one, new, error) from error

    def _call(
        self, checker: Checker, message: Message, incoming: Message, one: FoundItem, now_us: int, last: bytes | None
    ) -> object:
        if (check := checker.check) is None:
            return Decision.dont_care
        more = (self._asked(one, now_us),) if checker.asked else ()
        last_one = {"last": one.packed == last} if checker.last else {}
        return check(message, incoming, *more, **last_one)

    def _changed(self, message: Message, payload: bytes) -> bool:
        """Return whether a message differs from `payload`, which another program may have encoded differently."""
        now = self._messages.encode(message)
        return now != payload and now != self._messages.encode(self._messages.decode(payload))

    def _undecodable(self, one: FoundItem, error: Exception) -> CodecError:
        return CodecError(
            f"The item {self._position(one)} of {self._queue!r} can't be decoded, so not be asked: {error}."
        )

    def _asked(self, one: FoundItem, now_us: int) -> Asked:
        return Asked(one.state, self._position(one), one.opened.notes.attempt, now_us / 1e6)

    def _position(self, one: FoundItem) -> Position:
        return position_of(self._layout, one.packed)

    def _raised(self, one: FoundItem, new: Incoming, error: Exception, function: str = "check") -> CheckFailed:
        return self._failed(one, new, f"it raised {type(error).__name__}: {error}", function)

    def _failed(self, one: FoundItem, new: Incoming, why: str, function: str = "check") -> CheckFailed:
        name = self._messages.type_of(self._messages.decode(one.payload)).name
        position = self._position(one)
        return CheckFailed(
            f"The {function} of {name!r}, for the item {position} of {self._queue!r}, failed when it was asked about a"
            f" new {new.type.name!r}: {why}. The newcomer was not enqueued and nothing was written.",
            type=name,
            position=position,
        )


@dataclass(slots=True)
class _At:
    """The item and the function that run now, to name them if the function does not return."""

    one: FoundItem
    function: str = "check"


def _checker(own: MessageType) -> Checker:
    """Return the check of a type, and the arguments that it takes.

    Raises:
        TypeError: its check takes neither two arguments nor three.
    """
    check = own.check_of()
    if check is None:
        return Checker(None, asked=False, last=False)
    try:
        last = "last" in inspect.signature(check).parameters
    except ValueError:
        return Checker(check, asked=False, last=False)  # written in C: it has no signature
    named = {"last": None} if last else {}
    asked = takes(check, 3, **named)
    if not asked and not takes(check, 2, **named):
        raise TypeError(
            f"The check of the message type {own.name!r} takes the queued message and the newcomer, perhaps `asked`"
            f" as the third, and perhaps `last`; {check!r} does not."
        )
    return Checker(check, asked, last)
