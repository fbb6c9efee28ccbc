"""The help of the commands, at every width of the terminal."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import shutil
from functools import partial
from typing import Any

import typer
from typer.core import TyperCommand

from fdbqueue.engine.url import THREE
from fdbqueue.stored.names import name_text, queue_word, value_word

NARROW_COLUMNS = 70
"""On a narrower terminal the tables of options would cut off the options' names."""
NEAR = 0.75
"""How like two options are that may be mistaken for each other. "--port" and "--cert" have 0.67."""
OTHER_WORDS = {
    **dict.fromkeys(("--address", "--bind", "--port"), ("--listen",)),
    **dict.fromkeys(("--count", "--max", "--number"), ("--limit",)),
    **dict.fromkeys(("--cluster", "--cluster-file", "--database", "--db"), ("--url",)),
    **dict.fromkeys(("--force", "--assume-yes"), ("--yes",)),
    **dict.fromkeys(("--filter", "--headers"), ("--where",)),
    **dict.fromkeys(("--output", "--file"), ("--to", "--from")),
    **dict.fromkeys(("--timeout", "--wait-for"), ("--wait", "--patience")),
    "--reason": ("--error",),
}
"""Options of other tools, and ours for the same."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""The class of all errors about arguments, which typer does not export."""
ARGUMENTS = "Args:"
NAME_COLUMNS = 14
"""On a narrow terminal a longer name gets a line of its own."""


def reflowed(docstring: str | None) -> str:
    """Join the lines of each paragraph but the arguments, so that the help wraps at the terminal's width.

    >>> reflowed('''Print items.
    ...
    ...     This sentence
    ...     has two lines.
    ...     ''')
    'Print items.\\n\\nThis sentence has two lines.'
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs if not one.startswith(ARGUMENTS))


def arguments_of(docstring: str | None) -> dict[str, str]:
    """Return what a docstring says of each argument.

    >>> arguments_of('''Print items.
    ...
    ...     Args:
    ...         limit (-n, min=1): Number of items.
    ...             Default: all.
    ...         reverse: From the last one.
    ...     ''')
    {'limit': '(-n, min=1): Number of items. Default: all.', 'reverse': 'From the last one.'}
    """
    found: dict[str, str] = {}
    for paragraph in inspect.cleandoc(docstring or "").split("\n\n"):
        if paragraph.startswith(ARGUMENTS):
            for row in re.split(r"\n {4}(?=\w)", paragraph)[1:]:
                name, told = re.split(r"(?<=\w): | (?=\()", " ".join(row.split()), maxsplit=1)
                found[name] = told
    return found


def with_limits(arguments: list[str]) -> list[str]:
    """Return arguments in which every `--wait` has a number of seconds: infinity if none follows it.

    >>> with_limits(["orders", "--wait", "7"]), with_limits(["orders", "--wait", "--url", "fdb:"])
    (['orders', '--wait', '7'], ['orders', '--wait', 'inf', '--url', 'fdb:'])
    """
    given: list[str] = []
    for at, argument in enumerate(arguments):
        if argument == "--":
            return [*given, *arguments[at:]]
        given.append(argument)
        if argument == "--wait" and not _is_number(arguments[at + 1 : at + 2]):
            given.append("inf")
    return given


def likely_options(typed: str, options: list[str]) -> list[str]:
    """Return the options that are probably meant by one that is not there: by their meanings, else by their letters.

    >>> likely_options("--port", ["--listen", "--cert", "--url"]), likely_options("--limt", ["--limit", "--url"])
    (['--listen'], ['--limit'])
    """
    meant = [name for name in OTHER_WORDS.get(typed, ()) if name in options]
    return meant or difflib.get_close_matches(typed, options, cutoff=NEAR)


def _is_number(following: list[str]) -> bool:
    try:
        float(*following)
    except ValueError:
        return False
    return bool(following)


class Command(TyperCommand):
    """A command whose help has no tables on a narrow terminal, and whose option `--wait` may lack its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        waits = any("--wait" in parameter.opts for parameter in self.params)
        try:
            return super().parse_args(ctx, with_limits(args) if waits else args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # a word of the parser of values
            raise
        except USAGE_ERROR as error:
            error.ctx = error.ctx or ctx  # for its lines about the usage: an option without its value has none
            if hasattr(error, "possibilities"):  # there is no such option
                own = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
                error.possibilities = likely_options(error.option_name, own)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        columns = shutil.get_terminal_size().columns
        if columns < NARROW_COLUMNS:
            self.rich_markup_mode = None
            formatter.width = columns - 1
            formatter.write_dl = partial(formatter.write_dl, col_max=NAME_COLUMNS)
        super().format_help(ctx, formatter)


PLAIN = {
    f"one of {THREE}": "file:PATH (a folder, durable) or fdb:[CLUSTER_FILE] (a cluster)",
    "memory: takes no path. For a folder write": "memory: is not for commands. For a folder write",
    "Without a cluster, memory: and file:PATH work as they are.": "Without a cluster, file:PATH works as it is.",
    "and give SmartQueue its limit=Limit(...)": "and give the smart queue a limit in its program",
    "Give SmartQueue its limit=Limit(...)": "Give the smart queue a limit in its program",
    "Change it by fdbqueue.layers.SmartQueue(...).update": "Change it in the program of the smart queue",
    "or remove it with later='renew', which": "or remove it with --later renew, which",
    "For seconds give every=SECONDS": "For seconds give --every",
    "or every=SECONDS, and not both": "or --every, and not both",
    "Or give every=SECONDS": "Or give --every",
}
"""Remedies that are no command, and what a shell has in their place."""
COMMANDS = {
    "fdbqueue.transfer.export_items": "fdbqueue export",
    "fdbqueue.transfer.import_items": "fdbqueue import",
    "Queue.cancel": "fdbqueue cancel",
    "Queue.clear": "fdbqueue clear",
    "Queue.resume": "fdbqueue resume",
    "Queue.set_quota(db, None)": "fdbqueue quota --none",
    "Queue.set_quota": "fdbqueue quota",
    "Queue.to_arrow": "fdbqueue export",
    "Queue(name, codec=…).register(db, on_codec='replace')": "fdbqueue register --on-codec replace",
    **{
        f"Sessions.{verb}(db, session, position)": f"fdbqueue {verb} QUEUE ITEM --session SESSION"
        for verb in ("cancel", "get", "reschedule", "update")
    },
    "Sessions.skip(db, session)": "fdbqueue sessions QUEUE --skip SESSION",
    "Sessions.redrive(db, session, position)": "fdbqueue sessions QUEUE --redrive SESSION",
    "Sessions.purge(db, session, position)": "fdbqueue sessions QUEUE --purge SESSION",
    "Sessions.remove": "fdbqueue sessions --remove",
    "Sessions.resume": "fdbqueue sessions --resume",
    "Sessions.skip": "fdbqueue sessions --skip",
    "Watchdog.sweep": "fdbqueue watchdog --once",
    "release_copy": "fdbqueue copy --release",
}
OPTIONS = {
    "on_bad='skip'": "--skip-bad",
    "without_marks=True": "--without-marks",
    "use Queue.browse and Queue.enqueue_many": (
        "use `fdbqueue browse QUEUE --records` and `fdbqueue enqueue QUEUE --records`"
    ),
    "open it by Queue.open(db, name)": "leave --codec out",
}
_WORDS = {
    **{verb: f"`{command}`" for verb, command in COMMANDS.items()},
    **OPTIONS,
    **PLAIN,
}
_REMEDY = re.compile("`?(" + "|".join(map(re.escape, sorted(_WORDS, key=len, reverse=True))) + ")`?")
_CODEC = re.compile(r"\bGive codec='(\w+)'")
_BYTES = r"""(?:b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")"""
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PART = rf"(?:{_TEXT}|{_BYTES}|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|None|True|False)"
for _ in range(2):  # tuples within tuples
    _PART = rf"(?:{_PART}|\((?:{_PART}(?:, {_PART})*,?)?\))"
_TUPLE = rf"\({_PART}(?:, {_PART})*,?\)"
_PREFIX = rf"Subspace\(rawPrefix=({_BYTES})\)"
_CLEAR = re.compile(rf"Queue\(({_TEXT}|{_TUPLE}|{_PREFIX})\)\.clear\(db\)")
_RENAME = re.compile(rf"fdbqueue\.rename\(db, ({_TEXT}|{_TUPLE}|{_PREFIX}), …\)")
_POLICY = re.compile(r"Queue\.register\(db, (?:max_attempts=(\d+))?(?:, )?(?:backoff=([^()]+(?:\([^()]*\))?))?\)")
_RELEASE = re.compile(
    rf"fdbqueue\.transfer\.release_copy\(source, Queue\(({_TEXT}|{_TUPLE}|{_PREFIX})\), target=target\)"
)
_OBJECT = re.compile(
    rf"\b(?:Leases|Queue|Sessions|SmartQueue|StagedQueue)\(({_TEXT}|{_TUPLE}|{_PREFIX})(?:, \w+=[^,()]+)*\)(?!\.\w)"
)
_NAME = re.compile(rf"{_TUPLE}|{_PREFIX}")


def in_shell(text: str) -> str:
    """Return a message in the words of a shell.

    >>> in_shell("The queue ('shop', 'orders') is paused. End that: Queue.resume. 'orders' is not.")
    'The queue \\'["shop", "orders"]\\' is paused. End that: `fdbqueue resume`. \\'orders\\' is not.'
    >>> in_shell("It has the codec 'json'. Give codec='json'. It is transaction (7) of (3, 4).")
    "It has the codec 'json'. Give --codec json. It is transaction (7) of (3, 4)."
    >>> in_shell("Clear it: Queue('orders').clear(db). Or that: Queue(('shop', 'orders')).clear(db).")
    'Clear it: `fdbqueue clear orders`. Or that: `fdbqueue clear \\'["shop", "orders"]\\'`.'
    >>> in_shell("The session 'ann' of Queue(('shop', 'orders'), codec='json') is being removed.")
    'The session \\'ann\\' of \\'["shop", "orders"]\\' is being removed.'
    """
    text = _POLICY.sub(_register, text)
    text = _RELEASE.sub(lambda found: f"`fdbqueue copy --release {_quoted(found)} FROM TO`", text)
    text = _REMEDY.sub(lambda found: _WORDS[found[1]], text)
    text = _CLEAR.sub(lambda found: f"`fdbqueue clear {_quoted(found)}`", text)
    text = _RENAME.sub(lambda found: f"`fdbqueue rename {_quoted(found)} NEW`", text)
    text = _CODEC.sub(r"Give --codec \1", text)
    text = _OBJECT.sub(lambda found: found[1], text)
    return _NAME.sub(_typed, text)


def _register(found: re.Match[str]) -> str:
    """Return the command that changes a policy."""
    options = zip(("--max-attempts", "--backoff"), found.groups(), strict=True)
    given = [f"{name} {value_word(value)}" for name, value in options if value]
    return f"`{' '.join(['fdbqueue register QUEUE', *given])}`"


def _quoted(found: re.Match[str]) -> str:
    """Return a queue's name as an argument."""
    name = ast.literal_eval(found[2] or found[1])
    return queue_word((name,) if isinstance(name, str) else name)


def _typed(found: re.Match[str]) -> str:
    name = ast.literal_eval(found[1] or found[0])
    is_name = found[1] or (isinstance(name, tuple) and any(isinstance(part, str | bytes) for part in name))
    if not is_name:
        return found[0]
    return queue_word(name) if len(name) > 1 else repr(name_text(name))
