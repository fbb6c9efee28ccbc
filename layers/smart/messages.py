"""Messages: the values of a smart queue, how they are stored, and the functions of their types."""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from numbers import Real
from types import ModuleType
from typing import Literal, NamedTuple, TypeAlias, TypeVar, cast

import msgspec

from fdbqueue import CheckFailed, CodecError, Position
from fdbqueue.base.typed import decoder
from fdbqueue.stored.codecs import refuse_if_changed

from ..leases.lease import LONGEST_SECONDS, positive
from .types import MOST_COUNTED, Confirmed, Key, Life, Message, MessageType

# A time limit for user code that runs in this thread.
#
# A check that never returns would block its transaction, its thread, and with asyncio the whole event loop. One thread
# of this process watches all running calls, and raises an exception in the thread of a call that takes too long. It
# sleeps while no call runs, so a check costs one dictionary write.
#
# It can't stop a call into C that does not return, such as a sleep or a read of a socket. Such a call stops once it is
# back in Python. (docs/adr/0052)

T = TypeVar("T")
_LOOK_SECONDS = 0.05


class TimeLimitExceeded(BaseException):
    """Raised in a thread whose time is over; `except Exception` does not catch it."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call; raise `TimeLimitExceeded` in it if it has not returned after `seconds`.

    >>> def loop():
    ...     while True:
    ...         pass
    >>> try:
    ...     within(0.05, loop)
    ... except TimeLimitExceeded:
    ...     print("stopped")
    stopped
    """
    limit = TimeLimit(seconds)
    try:
        _lookout().watch(limit)
        result = call()
    finally:
        # This is a plain store, since Python raises pending exceptions at the start of a function and after a call. An
        # exception before this store would leave the thread watched for ever.
        limit.running = False
        try:
            limit.settle()
        except TimeLimitExceeded:
            limit.settle()  # another exception may be pending
    if limit.stopped:
        raise TimeLimitExceeded
    return result


class TimeLimit:
    """The time limit of one call in this thread."""

    __slots__ = ("_ident", "_seconds", "due", "lock", "running", "stopped")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.lock = threading.Lock()
        self._ident = threading.get_ident()
        self.due = time.monotonic() + seconds
        self.running = True
        self.stopped = False

    def stop_if_due(self, now: float) -> None:
        """Raise `TimeLimitExceeded` in the thread if its time is over, and repeatedly while it goes on."""
        with self.lock:
            if self.running and now >= self.due:
                self.stopped = True
                self.due = now + self._seconds
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._ident), ctypes.py_object(TimeLimitExceeded)
                )

    def settle(self) -> None:
        """Make the interpreter raise a pending `TimeLimitExceeded` here, if there is one.

        It must not arrive later, in other code. It must not be withdrawn either: Python up to 3.12 then looks for it
        for ever, at every step of every thread, and never ends in a traced thread.
        """
        with self.lock:
            pass  # a sender that held the lock has sent its exception
        if self.stopped:
            for _ in range(2):
                time.monotonic()


class Lookout:
    """The thread that watches running calls."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._limits: dict[int, TimeLimit] = {}
        self._wanted = threading.Event()
        threading.Thread(target=self._run, name="fdbqueue-lookout", daemon=True).start()

    def watch(self, limit: TimeLimit) -> None:
        self._limits[id(limit)] = limit
        if not self._wanted.is_set():
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(_LOOK_SECONDS)
            self._wanted.clear()
            self.look()
            if self._limits:
                self._wanted.set()

    def look(self) -> None:
        """Stop the calls whose time is over, and forget those that ended."""
        # A list of keys is made without a new object for each, so no other thread runs meanwhile and adds one.
        for key in list(self._limits):
            limit = self._limits[key]
            if limit.running:
                limit.stop_if_due(time.monotonic())
            else:
                del self._limits[key]


_starting = threading.Lock()
_of_this_process: list[Lookout] = []


def _lookout() -> Lookout:
    """Return the process's lookout; a forked child does not inherit threads, and starts its own."""
    if _of_this_process and _of_this_process[0].pid == os.getpid():
        return _of_this_process[0]
    with _starting:
        if not _of_this_process or _of_this_process[0].pid != os.getpid():
            _of_this_process[:] = [Lookout()]
        return _of_this_process[0]


# The functions of message types: `key`, `expires`, `deadline` and `confirms`.
#
# They are user code, called when a message is enqueued or taken. They are treated like checks: they have a time limit.
# If one raises, or returns an invalid value, the error names the function and its type.

FUNCTION_SECONDS = 1.0
"""How long the functions of one message may take together."""
NEW = "a new message; it was not enqueued, and nothing was written"
"""Describes the message in errors."""


class Time(NamedTuple):
    """The time at which a message expires, or its deadline."""

    us: int
    """Microseconds; 0: never."""
    is_duration: bool
    """Whether `us` counts from the enqueue; else it is a time of the clock."""

    def at_us(self, now_us: int) -> int:
        """Return the time of the clock for a message that is enqueued now; 0: never."""
        return now_us + self.us if self.is_duration and self.us else self.us


class Given(NamedTuple):
    """Results of a type's functions for one message."""

    key: Key
    expires: Time
    deadline: Time


_NEVER = Time(0, False)


class Functions:
    """Calls the functions of some types.

    Args:
        types: the types.
        seconds: how long the functions of one message may take together.
    """

    __slots__ = ("_seconds", "_takes_now", "predicates")

    def __init__(self, types: Iterable[MessageType], seconds: float = FUNCTION_SECONDS) -> None:
        self._seconds = seconds
        callables = {own.name: own.expires for own in types if callable(own.expires)}
        self._takes_now = {name for name, function in callables.items() if takes(function, 2)}
        self.predicates = {name: partial(self._ask, name, function) for name, function in callables.items()}
        """By type: the predicate, called with a message and the time. These calls have no time limit or error check."""

    def of(self, own: MessageType, message: Message, now_us: int, *, whose: str = NEW) -> Given:
        """Return the results of a type's functions for a message.

        Raises:
            CheckFailed: a function raised, did not return in time, or returned an invalid value.
        """
        if own.key is None and not callable(own.expires) and not callable(own.deadline):
            return Given(None, _duration(own.expires), _duration(own.deadline))
        expires, deadline = self.predicates.get(own.name), own.deadline
        at = ["key"]

        def call() -> tuple[Key, object, object]:
            key = None if own.key is None else own.key(message)
            at[0] = "expires"
            ends = None if expires is None else expires(message, now_us)
            at[0] = "deadline"
            return key, ends, deadline(message) if callable(deadline) else None

        key, ends, due = self._within(own, at, call, whose)
        return Given(
            _not_awaited(own, "key", key, whose),
            # A predicate returned a bool here, and runs again at each use.
            _duration(own.expires) if expires is None else self._time(own, "expires", ends, whose, bool_is_never=True),
            self._time(own, "deadline", due, whose) if callable(deadline) else _duration(deadline),
        )

    def key(self, own: MessageType, message: Message, *, whose: str) -> Key:
        """Return a message's relation key; otherwise as `of`."""
        if own.key is None:
            return None
        return _not_awaited(own, "key", self._within(own, ["key"], partial(own.key, message), whose), whose)

    def confirms(self, own: MessageType, message: Message) -> Confirmed | None:
        """Return the result of the type's `confirms` for a message."""
        if own.confirms is None:
            return None
        said = self._within(own, ["confirms"], partial(own.confirms, message), NEW)
        return _not_awaited(own, "confirms", said, NEW)

    def is_over(self, own: MessageType, message: Message, now_us: int, position: Position) -> bool:
        """Return whether the type's predicate says that an item, which is about to be taken, is outdated."""
        predicate = self.predicates.get(own.name)
        if predicate is None:
            return False
        whose = f"the item {position}; it stays where it is"
        return self._within(own, ["expires"], partial(predicate, message, now_us), whose, position) is True

    def _ask(self, name: str, function: Callable[..., object], message: Message, now_us: int) -> object:
        return function(message, now_us / 1e6) if name in self._takes_now else function(message)

    def _within(
        self, own: MessageType, at: list[str], call: Callable[[], T], whose: str, position: Position | None = None
    ) -> T:
        try:
            return within(self._seconds, call)
        except TimeLimitExceeded as error:
            why = f"it did not return within {self._seconds} seconds"
            raise failed(own.name, at[0], why, whose, position) from error
        except Exception as error:
            raise failed(own.name, at[0], f"it raised {type(error).__name__}: {error}", whose, position) from error

    def _time(self, own: MessageType, what: str, given: object, whose: str, *, bool_is_never: bool = False) -> Time:
        if given is None or (bool_is_never and isinstance(given, bool)):
            return _NEVER
        _not_awaited(own, what, given, whose)
        if isinstance(given, bool) or not isinstance(given, Real) or given != given:  # NaN
            wanted = "a time of the clock in seconds, None for never" + (", or a bool" if bool_is_never else "")
            raise failed(own.name, what, f"it returned {given!r}, and not {wanted}", whose)
        seconds = LONGEST_SECONDS if cast(float, given) > LONGEST_SECONDS else max(0.0, float(given))
        return Time(max(1, int(seconds * 1e6)), is_duration=False)


def failed(name: str, what: str, why: str, whose: str, position: Position | None = None) -> CheckFailed:
    """Return the error of a function that failed."""
    text = f"The function {what!r} of the message type {name!r} failed: {why}. That was for {whose}."
    return CheckFailed(text, type=name, position=position)


def takes(function: Callable[..., object], arguments: int, **named: None) -> bool:
    """Return whether a function can be called with this number of arguments; False if it has no signature."""
    try:
        inspect.signature(function).bind(*[None] * arguments, **named)
    except (TypeError, ValueError):
        return False
    return True


def _not_awaited(own: MessageType, what: str, given: T, whose: str) -> T:
    if inspect.iscoroutine(given):
        given.close()
        raise failed(own.name, what, "it returned a coroutine, which is not awaited", whose)
    return given


def _duration(seconds: Life) -> Time:
    return _NEVER if seconds is None or callable(seconds) else Time(int(seconds * 1e6), is_duration=True)


# Messages: the values of a smart queue, and how they are stored.
#
# A registry is the queue's codec, so plain and staged dequeues, leases and browsing all return messages. A message is
# stored as one JSON or MessagePack object with its type's name under ``"type"``, which any program can read.

_JSON_TAG = b'{"type":"'
_Decoder: TypeAlias = "msgspec.json.Decoder[Message] | msgspec.msgpack.Decoder[Message]"


class Messages:
    """A registry of message types, and the codec of their queue.

    Args:
        types: the types.
        format: "json" or "msgpack".

    Raises:
        ValueError, TypeError: the types are inconsistent; the message says why.

    >>> from fdbqueue.layers import Messages, MessageType
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Progress:
    ...     file: str
    ...     percent: int
    >>> messages = Messages(MessageType("progress", Progress, key=lambda progress: progress.file))
    >>> messages.encode(Progress("a.txt", 10))
    b'{"type":"progress","file":"a.txt","percent":10}'
    >>> messages.decode(messages.encode(Progress("a.txt", 10)))
    Progress(file='a.txt', percent=10)
    """

    def __init__(self, *types: MessageType, format: Literal["json", "msgpack"] = "json") -> None:
        self.is_over: Callable[[Message, int, Position], bool] | None = None
        """Returns whether a predicate says that an item is outdated. It gets the item's message, the time in
        microseconds, and the position. None if no type has a predicate. Every call that takes items out uses it."""
        if format not in ("json", "msgpack"):
            raise ValueError(f"The format is 'json' or 'msgpack', not {format!r}.")
        self.name = f"{format} messages"
        self.types: dict[str, MessageType] = {}
        self._by_class: dict[type[Message], MessageType] = {}
        self._decoders: dict[str, _Decoder] = {}
        self._by_tag: dict[bytes, tuple[MessageType, _Decoder]] = {}
        self._json = format == "json"
        module: ModuleType = msgspec.json if self._json else msgspec.msgpack
        self._encoder = module.Encoder()
        self._tag_decoder = module.Decoder(_Tagged)
        for given in types:
            _check_type(given)
            self._add(given, module)
        for given in types:
            self._check_scope(given)
        functions = Functions(types)
        if functions.predicates:
            self.is_over = partial(self._is_over, functions)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Messages, format="json" if self._json else "msgpack"), tuple(self.types.values())

    def __repr__(self) -> str:
        return f"Messages({', '.join(self.types)})"

    def type_of(self, message: Message) -> MessageType:
        """Return a message's type.

        Raises:
            CodecError: it has no registered type.
        """
        found = self._by_class.get(type(message))
        if found is None and isinstance(message, dict):
            found = self.types.get(message.get("type", ""))
            found = None if found is None or found.cls is not None else found
        if found is None:
            raise CodecError(
                f"{type(message).__name__} is not a message of a registered type: {', '.join(self.types)}."
                " A message is an object of a registered class, or a dict whose 'type' is that of a type without one."
            )
        return found

    def encode(self, value: Message) -> bytes:
        """Encode a message."""
        return self.encode_as(self.type_of(value), value)

    def encode_as(self, found: MessageType, value: Message) -> bytes:
        """Encode a message whose type is known.

        Raises:
            CodecError: a part of it would not come back equal.
        """
        if found.cls is None:
            encoded: bytes = self._encoder.encode(value)
        elif self._json:
            body: bytes = self._encoder.encode(value)
            encoded = b'{"type":%b%b' % (self._encoder.encode(found.name), b"," + body[1:] if len(body) > 2 else b"}")
        else:
            encoded = self._encoder.encode({"type": found.name, **msgspec.to_builtins(value, builtin_types=(bytes,))})
        back = self._decoders[found.name].decode(encoded)
        if back != value:
            refuse_if_changed(self.name, value, back)
        return encoded

    def decode(self, data: bytes) -> Message:
        """Decode a message into its class, or plain data into a dict."""
        return self.decode_typed(data)[1]

    def decode_typed(self, data: bytes) -> tuple[MessageType, Message]:
        """Decode a message; return its type and the message."""
        if data.startswith(_JSON_TAG):  # as `encode` writes it; other programs may write it differently
            known = self._by_tag.get(data[len(_JSON_TAG) : data.find(b'"', len(_JSON_TAG))])
            if known is not None:
                return known[0], known[1].decode(data)
        name = self._tag_decoder.decode(data).type
        found = self.types.get(name)
        if found is None:
            raise CodecError(f"The message is of type {name!r}, which is not registered: {', '.join(self.types)} are.")
        return found, self._decoders[name].decode(data)

    def _is_over(self, functions: Functions, message: Message, now_us: int, position: Position) -> bool:
        return functions.is_over(self.type_of(message), message, now_us, position)

    def _add(self, given: MessageType, module: ModuleType) -> None:
        if not given.name or given.name in self.types:
            raise ValueError(f"Message types have names, each its own; {given.name!r} is empty or there twice.")
        if given.cls is None:
            self._decoders[given.name] = module.Decoder(dict[str, Message])
        else:
            self._check_class(given.name, given.cls)
            self._by_class[given.cls] = given
            self._decoders[given.name] = decoder(module, given.cls)
        self.types[given.name] = given
        if self._json:
            self._by_tag[self._encoder.encode(given.name)[1:-1]] = (given, self._decoders[given.name])

    def _check_class(self, name: str, cls: type[Message]) -> None:
        if cls in self._by_class:
            raise ValueError(f"{cls.__name__} is the class of two types, {self._by_class[cls].name!r} and {name!r}.")
        is_struct = issubclass(cls, msgspec.Struct)
        if not is_struct and not dataclasses.is_dataclass(cls):
            raise TypeError(f"{cls.__name__} is neither a dataclass nor a msgspec.Struct.")
        if is_struct and (cls.__struct_config__.array_like or cls.__struct_config__.tag_field == "type"):
            raise TypeError(f"{cls.__name__} is array_like, or tagged as 'type': its type's name has no place.")
        if is_struct and cls.__struct_config__.forbid_unknown_fields:
            raise TypeError(
                f"{cls.__name__} forbids unknown fields. Allow them: a stored message also has its type's name."
            )
        if "type" in (cls.__struct_encode_fields__ if is_struct else [field.name for field in dataclasses.fields(cls)]):
            raise TypeError(f"{cls.__name__} has a field 'type', where its type's name is stored.")

    def _check_scope(self, given: MessageType) -> None:
        for field, seconds in (("expires", given.expires), ("deadline", given.deadline)):
            if seconds is not None and not callable(seconds):
                positive(seconds, f"{field} of {given.name!r}")
        for name in given.sees.types or ():
            if name not in self.types:
                raise ValueError(f"The type {given.name!r} sees the type {name!r}, which is not registered.")
        if given.key is None and (given.sees.same_key or given.key_limit is not None):
            raise ValueError(f"The type {given.name!r} uses a key in sees= or key_limit=, but has none. Give it key=….")
        for limit in (given.limit, given.key_limit):
            if limit is not None and limit.most > MOST_COUNTED:
                raise ValueError(
                    f"A limit of a type or a key is counted item by item, up to {MOST_COUNTED:,}, and {limit.most:,} of"
                    f" {given.name!r} are more. Limit the queue, or choose a finer key."
                )


def _check_type(given: object) -> None:
    if not isinstance(given, MessageType):
        raise TypeError(f"Messages are made of MessageTypes, as in Messages(MessageType('order')), not of {given!r}.")


class _Tagged(msgspec.Struct):
    type: str
