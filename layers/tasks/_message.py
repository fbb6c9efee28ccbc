"""Messages: a task and its arguments, as JSON, which programs in any language can enqueue."""

from __future__ import annotations

from typing import Any

import msgspec

from fdbqueue import CodecError

NO_ARGUMENTS = msgspec.Raw(b"{}")
NO_CALL = msgspec.Raw(b"null")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a task, as it is stored: ``{"task": "send_mail", "args": {"to": "Ann"}}``."""

    task: str
    """The task's name, or one of its aliases."""
    args: msgspec.Raw = NO_ARGUMENTS
    """Its arguments by name, as JSON. Programs in other languages may also give a list."""
    then: tuple[Following, ...] = ()
    """What follows it when it is done."""
    problem: str = ""
    """Why the item is no message. It is never stored."""

    def __repr__(self) -> str:
        return self.problem or f"Message({self.task!r}, {bytes(self.args).decode(errors='replace')})"


class Following(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that is enqueued when the one before it is done."""

    task: str
    args: msgspec.Raw = NO_CALL
    """Its arguments; `NO_CALL`: the result of the task before it is its only argument."""
    then: tuple[Following, ...] = ()
    terms: dict[str, Any] = {}
    """Its delay, priority or time to live, if they are not the task's own."""


class MessageCodec:
    """JSON of messages. Its name is json: other programs, Spark and the command line enqueue JSON of the same form."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        try:
            return _encode(value if isinstance(value, Message) else _decoder.decode(msgspec.json.encode(value)))
        except (TypeError, msgspec.MsgspecError) as error:
            raise CodecError(f"A call of a task has 'task' and 'args'. {value!r} is none: {error}.") from error

    def decode(self, data: bytes) -> Message:
        """Return the message. An item that is none becomes a dead letter later, and blocks no other."""
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Message("", problem=f"{data[:200]!r} is no call of a task: {error}.")


def message_of(value: Any) -> Message:
    """Return a leased value as a message, also of a queue with another codec."""
    if isinstance(value, Message):
        return value
    try:
        return MessageCodec().decode(value if isinstance(value, bytes) else msgspec.json.encode(value))
    except TypeError as error:  # a blob
        return Message("", problem=f"{value!r} is no call of a task: {error}.")


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Message)
