"""Arguments and options that several commands share: one table, and what reads their texts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from fdbqueue.base.position import Position
from fdbqueue.cli.errors import refuse, refuse_if, refused
from fdbqueue.cli.opening import CodecName, complete_queue, named, registered_codec
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text, text_named

LEVELS = 256
"""The commands take any level that a program may have given a session."""
_ENCODING = ("enqueue", "update", "register")
"""Commands for which the codec bytes is no way to look at a program's own codec."""


class ChosenState(StrEnum):
    """The states that a command may be limited to."""

    available = "available"
    leased = "leased"
    delayed = "delayed"
    dead = "dead"


# What reads the text of an argument before the command begins.


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


def _condition(where: str | None) -> str | None:
    """Refuse a condition that is wrong or empty, before anything else is done.

    Raises:
        SelectorError: it is.
    """
    if where is not None:
        Selector(where)
    return where


def _beginning(error: str | None) -> str | None:
    refuse_if(error == "", "it is empty: each error begins so")
    return error


def text_of(what: str) -> Callable[[str | None], str | None]:
    """Return a callback that reads the name of something that is named by a text only, from that name's text."""

    def named(text: str | None) -> str | None:
        with refused():
            return None if text is None else text_named(text, what)

    return named


def only_one(**options: str | None) -> tuple[str, str] | None:
    """Return the one option that is given, with its value; None: none is."""
    given = [(name, value) for name, value in options.items() if value is not None]
    refuse_if(len(given) > 1, "give one of them at a time", " / ".join(f"--{name}" for name, _ in given))
    return given[0] if given else None


def check_raw(raw: bool, codec: CodecName) -> None:
    """Refuse raw values for a codec that has none."""
    refuse_if(raw and codec not in (CodecName.str, CodecName.bytes), "use --raw with the codec str or bytes", "--raw")


def position(text: str) -> Position:
    """Return the position that `text` describes."""
    try:
        return Position.parse(text)
    except ValueError:
        refuse(f"{text!r} is not a position: give INDEX:RANDOM, as the commands print it")


# The queue, its database, and what is printed.

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
Create = Annotated[
    bool, typer.Option("--create", help="Make the queue, and its database, if there is none of this name.")
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
Within = Annotated[
    str | None, typer.Option("--within", metavar="NAME", help="Only queues below this name, or key tuple as JSON.")
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", "-i", metavar="PATTERN", help="Only queues like this, as 'shop-*'. Several: any of them."
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", "-x", metavar="PATTERN", help="No queues like this. Several: none of them."),
]
MaxAge = Annotated[
    float | None, typer.Option("--max-age", min=0.0, help="Oldest age of a first item, in seconds. Default: any.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines on a terminal too.")]
Records = Annotated[bool, typer.Option("--records", help="Print each value with its position and headers.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Each line is the value itself instead of JSON. For the codecs str and bytes.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Listed = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="Largest number. Default: all; on a terminal, 20.")
]

# Which items are meant.

Items = Annotated[
    list[str],
    typer.Argument(metavar="INDEX:RANDOM", help="Positions of items, as other commands print them."),
]
MaybeItems = Annotated[
    list[str] | None,
    typer.Argument(metavar="INDEX:RANDOM", help="Positions of items, as other commands print them."),
]
DeadItems = Annotated[
    list[str] | None,
    typer.Argument(metavar="INDEX:RANDOM", help="The dead letters, as `fdbqueue dead` prints them."),
]
Handles = Annotated[
    list[str] | None,
    typer.Argument(metavar="LEASE", help="Handles of leases. Default: lines of standard input."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="Only items whose headers fit: \"color = 'red' AND weight > 2\". The language of selectors.",
        callback=_condition,
    ),
]
WhereLimit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, help="Largest number of items, with --where or --all. Default: all."),
]
DeadLimit = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Largest number of items. Default: all.")]
InStates = Annotated[
    list[ChosenState] | None,
    typer.Option(
        "--state", help="Only items in this state, with --where or --all. May be repeated. Default: all states."
    ),
]
ErrorBegins = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="Only dead letters whose last error begins with this.", callback=_beginning
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="All plain items, or those in a --state.")]
AllDead = Annotated[bool, typer.Option("--all", help="All dead letters.")]

# The terms of items.

HeadersText = Annotated[
    str | None,
    typer.Option("--headers", metavar="JSON", help='Headers of the items: \'{"color": "red"}\'.'),
]
Delay = Annotated[float | None, typer.Option("--delay", "-d", help="Seconds until the items become available.")]
At = Annotated[
    float | None, typer.Option("--at", help="Time at which the items become available, in seconds since 1970.")
]
Ttl = Annotated[
    float | None, typer.Option("--ttl", help="Seconds after which the items are removed, unless they are leased then.")
]
MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, help="Failed attempts after which an item is dead. Default: no limit."),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", "-p", help="Priority of the items. 0 is the soonest; with amqp/N levels 9 is. Default: last."
    ),
]
LevelCount = Annotated[
    str | None,
    typer.Option(
        "--levels", metavar="N|amqp/N", help="Number of levels of a new priority queue. Default: as stored, or 10."
    ),
]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", "-S", help="The session of the items: text, or a tuple as JSON: '[\"shop\", 7]'."),
]
Level = Annotated[
    int | None,
    typer.Option(
        "--level", "-l", min=0, max=LEVELS - 1, help="Their level in the session: 0 is urgent, 1 is usual. Default: 1."
    ),
]
GateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="NAME=LIMIT",
        help="A gate of the session and its default limit, if the session begins now. Several: the outermost first."
        " Or: none.",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Also if the queue's items are in sessions: beside them.")]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="The group of the items. It is opened if there is none of this name.",
        callback=text_of("group"),
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="[SECONDS]",
        min=0,
        show_default=False,
        help="Wait for the end, so many seconds at most. Default: no limit.",
    ),
]
SubscriptionName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the subscription.", callback=text_of("subscription"))
]

# Services.

ServeMetrics = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Serve the queues' figures to Prometheus there."),
]
