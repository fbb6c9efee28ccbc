"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from fdbqueue.base.position import Position
from fdbqueue.cli.known import complete_queue, registered_codec
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.names import queue_named, queue_text, text_named
from fdbqueue.verbs.queue import Queue


class CodecName(StrEnum):
    """The library's own codecs."""

    json = "json"
    msgpack = "msgpack"
    tuple = "tuple"
    str = "str"
    bytes = "bytes"


_ENCODING = ("enqueue", "update", "register")
"""Commands for which the codec bytes is no way to look at a program's own codec."""


def _registered(ctx: typer.Context, codec: CodecName) -> CodecName:
    """Return the codec that was given; else the one that the queue is registered with, or that has the same bytes.

    Values of a program's own codec are shown as bytes.
    """
    queue, url = ctx.params.get("queue"), ctx.params.get("url")
    given = getattr(ctx.get_parameter_source("codec"), "name", "") != "DEFAULT"
    if given or ctx.resilient_parsing or queue is None:
        return codec
    found = registered_codec(Layout(named(queue)), url)
    if not found:
        return codec
    of_bytes = codec if ctx.info_name in _ENCODING else CodecName.bytes
    return next((own for own in CodecName if fits(own, found)), of_bytes)


def _one_text(text: str) -> str:
    """Return the one text of the queue's name, as every answer shows it."""
    return queue_text(Layout(named(text)).prefix) if text else text


QueueName = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help='The queue\'s name, or its key tuple as JSON: \'["shop", "orders"]\'.',
        autocompletion=complete_queue,
        callback=_one_text,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="FDBQUEUE_URL",
        help="The database: file:PATH, or fdb: or fdb:CLUSTER_FILE.",
        metavar="URL",
    ),
]
Codec = Annotated[
    CodecName,
    typer.Option(
        "--codec",
        "-c",
        envvar="FDBQUEUE_CODEC",
        help="The queue's codec. Default: the one that the queue is registered with, or json.",
        show_default=False,
        callback=_registered,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines on a terminal too.")]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, help="Failed attempts after which an item is dead. Default: no limit."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DeadItems = Annotated[
    list[str] | None,
    typer.Argument(metavar="INDEX:RANDOM", help="The dead letters, as `fdbqueue dead` prints them."),
]
Records = Annotated[bool, typer.Option("--records", help="Print each value with its position and headers.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Each line is the value itself instead of JSON. For the codecs str and bytes.")
]


def named(text: str, hint: str = "QUEUE") -> Name:
    """Return the name of a queue from its text: the text itself, or a tuple as JSON.

    >>> named("orders"), named('["shop", "orders"]')
    ('orders', ('shop', 'orders'))
    """
    try:
        return queue_named(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error


def text_of(what: str) -> Callable[[str | None], str | None]:
    """Return a callback that reads the name of something that is named by a text only, from that name's text."""

    def named(text: str | None) -> str | None:
        try:
            return None if text is None else text_named(text, what)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return named


def check_raw(raw: bool, codec: CodecName) -> None:
    """Refuse raw values for a codec that has none."""
    if raw and codec not in (CodecName.str, CodecName.bytes):
        raise typer.BadParameter("use --raw with the codec str or bytes", param_hint="--raw")


def queue_of(name: str, codec: CodecName | None = None) -> Queue:
    """Return the queue that the arguments name. Without a codec it shows values as bytes, and registers nothing."""
    queue: Queue = Queue(named(name), codec=(codec or CodecName.bytes).value)
    if codec is None:
        queue.layout.known.registration = None
    return queue


def place(position: Position) -> str:
    """Return a position as text.

    >>> place(Position(7, b"random")), position("7:72616e646f6d")
    ('7:72616e646f6d', Position(index=7, random=b'random'))
    """
    return position.text


def position(text: str) -> Position:
    """Return the position that `text` describes."""
    try:
        return Position.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a position: give INDEX:RANDOM, as the commands print it") from error
