"""Arguments and options of commands: the shared ones in a table, a command's own in its docstring.

A command is a function. `command_of` gives each of its parameters a row: the one below ``Args:`` in its docstring, else
the one of `SHARED`. A row has the name of the parameter, words about it in brackets, and its help::

    limit (-n, min=1): Largest number of items.
    new (argument, NEW): The new name, or key tuple as JSON.

The words are the option's names, if it has others beside that of the parameter; ``argument`` for what has no name; the
word that the help shows for a value; ``$NAME``, a variable of the environment; ``min=`` and ``max=``; ``reads=``, one
of `READERS`; ``hidden``; ``no default``; and ``as NAME``, another row of the table.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from fdbqueue.base.position import Position
from fdbqueue.cli.errors import refuse, refuse_if, refused
from fdbqueue.cli.helptext import arguments_of
from fdbqueue.cli.opening import CodecName, complete_queue, named, registered_codec
from fdbqueue.layers.subscriptions import Selector
from fdbqueue.stored.catalogue import fits
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text, text_named
from fdbqueue.stored.policies import Backoff, check_policy, constant, exponential, immediately
from fdbqueue.stored.settings import LEAST_BYTES
from fdbqueue.verbs.editing import UNCHANGED, Unchanged

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., object])
NONE = "none"
"""What removes a part of a queue's policy."""
LEVELS = 256
"""The commands take any level that a program may have given a session."""
_ENCODING = ("enqueue", "update")
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


def _text_of(what: str) -> Callable[[str | None], str | None]:
    """Return what reads the name of something that is named by a text only, from that name's text."""

    def named(text: str | None) -> str | None:
        with refused():
            return None if text is None else text_named(text, what)

    return named


def _part_of_policy(named: Callable[[str], T]) -> Callable[[str | None], T | Unchanged | None]:
    """Return what reads a part of a policy; None is what "none" means."""

    def read(text: str | None) -> T | Unchanged | None:
        with refused():
            return UNCHANGED if text is None else None if text == NONE else named(text)

    return read


def attempts_named(text: str) -> int | None:
    """Return a number of attempts from its text."""
    refuse_if(not text.isdecimal(), f"{text!r} is neither a whole number nor {NONE}")
    return check_policy(int(text), None).max_attempts


def backoff_named(text: str) -> Backoff:
    """Return a back-off from its text, as `fdbqueue stats` prints it; of a number of seconds, `growing_from` them.

    Raises:
        ValueError: it is the text of none.

    >>> backoff_named("constant(5)"), backoff_named("2")
    (constant(5), exponential(first=2, factor=2.0, longest=3600.0, jitter=0.0))
    """
    makers: Mapping[str, Callable[..., Backoff]] = {"constant": constant, "exponential": exponential}
    try:
        match ast.parse(text.strip(), mode="eval").body:
            case ast.Name("immediately"):
                return immediately
            case ast.Call(ast.Name(name), given, named) if name in makers:
                terms = {one.arg or "": ast.literal_eval(one.value) for one in named}
                return makers[name](*map(ast.literal_eval, given), **terms)
            case number:
                return growing_from(ast.literal_eval(number))
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(
            f"{text!r} is no back-off: give seconds, which double with each failure, or constant(5),"
            " exponential(first=1.0, jitter=0.1) or immediately"
        ) from error


def growing_from(seconds: float) -> Backoff:
    """Return the back-off of the commands: so many seconds, doubled by each further failure; `immediately` for 0."""
    return exponential(first=seconds, longest=max(seconds, 3_600.0)) if seconds != 0 else immediately


READERS: Mapping[str, Callable[..., Any]] = {
    "queue": _one_text,
    "codec": _registered,
    "condition": _condition,
    "beginning": _beginning,
    "attempts": _part_of_policy(attempts_named),
    "backoff": _part_of_policy(backoff_named),
    **{what: _text_of(what) for what in ("group", "schedule", "subscription")},
}
"""What reads and checks the text of an argument before the command begins."""


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


SHARED: Mapping[str, str] = {
    # The queue, its database, and what is printed.
    "queue": '(argument, QUEUE, reads=queue): The queue\'s name, or its key tuple as JSON: \'["shop", "orders"]\'.',
    "url": "($FDBQUEUE_URL, URL): The database: file:PATH, or fdb: or fdb:CLUSTER_FILE.",
    "create": "Make the queue, and its database, if there is none of this name.",
    "codec": "(-c, $FDBQUEUE_CODEC, no default, reads=codec): The queue's codec. Default: the one that the queue is"
    " registered with, or json.",
    "within": "(NAME): Only queues below this name, or key tuple as JSON.",
    "include": "(-i, PATTERN): Only queues like this, as 'shop-*'. Several: any of them.",
    "exclude": "(-x, PATTERN): No queues like this. Several: none of them.",
    "max_age": "(min=0.0): Oldest age of a first item, in seconds. Default: any.",
    "as_json": "(--json): Print JSON lines on a terminal too.",
    "records": "Print each value with its position and headers.",
    "raw": "Each line is the value itself instead of JSON. For the codecs str and bytes.",
    "yes": "(-y): Do not ask for confirmation.",
    "listed": "(-n, min=1): Largest number. Default: all; on a terminal, 20.",
    "quota_bytes": f"(--bytes, -b, min={LEAST_BYTES}): About the most bytes that it may have.",
    # Which items are meant.
    "items": "(argument, INDEX:RANDOM): Positions of items, as other commands print them.",
    "dead_items": "(argument, INDEX:RANDOM): The dead letters, as `fdbqueue dead` prints them.",
    "handles": "(argument, LEASE): Handles of leases. Default: lines of standard input.",
    "where": "(-w, CONDITION, reads=condition): Only items whose headers fit: \"color = 'red' AND weight > 2\". The"
    " language of selectors.",
    "where_limit": "(-n, min=1): Largest number of items, with --where or --all. Default: all.",
    "dead_limit": "(-n, min=1): Largest number of items. Default: all.",
    "state": "Only items in this state, with --where or --all. May be repeated. Default: all states.",
    "error_begins": "(TEXT, reads=beginning): Only dead letters whose last error begins with this.",
    "everything": "(--all): All plain items, or those in a --state.",
    "all_dead": "(--all): All dead letters.",
    # The terms of items.
    "headers": '(JSON): Headers of the items: \'{"color": "red"}\'.',
    "delay": "(-d): Seconds until the items become available.",
    "at": "Time at which the items become available, in seconds since 1970.",
    "ttl": "Seconds after which the items are removed, unless they are leased then.",
    "max_attempts": "(min=1): Failed attempts after which an item is dead; stored if the queue has no such number."
    " Default: the queue's, else no limit.",
    "priority": "(-p): Priority of the items. 0 is the soonest; with amqp/N levels 9 is. Default: last.",
    "session": "(-S): The session of the items: text, or a tuple as JSON: '[\"shop\", 7]'.",
    "level": f"(-l, min=0, max={LEVELS - 1}): Their level in the session: 0 is urgent, 1 is usual. Default: 1.",
    "plain": "Also if the queue's items are in sessions: beside them.",
    "wait": "([SECONDS], min=0, no default): Wait for the end, so many seconds at most. Default: no limit.",
    "subscription_name": "(argument, NAME, reads=subscription): Name of the subscription.",
    # Services.
    "metrics": "(HOST:PORT): Serve the queues' figures to Prometheus there.",
}
"""The rows that several commands share, by the names of their parameters."""


def command_of(command: C, also: Mapping[str, str] | None = None) -> C:
    """Return a command whose parameters are arguments and options, as their rows say.

    Args:
        also: rows of this command's page.
    """
    table = {**SHARED, **(also or {})}
    rows = {**table, **arguments_of(command.__doc__)}
    hints = get_type_hints(command, include_extras=True)
    for name, hint in hints.items():
        if name != "return":
            hints[name] = Annotated[hint, _parameter(name, rows[name], table)]
    command.__annotations__ = hints
    return command


def _parameter(name: str, row: str, table: Mapping[str, str]) -> Any:
    said, _, told = row.removeprefix("(").partition("): ") if row.startswith("(") else ("", "", row)
    if said.startswith("as "):
        return _parameter(name, table[said.removeprefix("as ").removesuffix("):")], table)
    words = said.split(", ")
    flags = [word for word in words if word.startswith("-")]
    terms: dict[str, Any] = {"help": told}
    for word in words:
        key, _, value = word.partition("=")
        if key in ("min", "max"):
            terms[key] = float(value) if "." in value else int(value)
        elif key == "reads":
            terms["callback"] = READERS[value]
        elif word in ("hidden", "no default"):
            terms |= {"hidden": True} if word == "hidden" else {"show_default": False}
        elif word.startswith("$"):
            terms["envvar"] = word[1:]
        elif word and word != "argument" and word not in flags:
            terms["metavar"] = word
    if "argument" in words:
        return typer.Argument(**terms, autocompletion=complete_queue if "QUEUE" in terms["metavar"] else None)
    is_named = any(flag.startswith("--") for flag in flags)
    return typer.Option(*([] if is_named else [f"--{name.replace('_', '-')}"]), *flags, **terms)
