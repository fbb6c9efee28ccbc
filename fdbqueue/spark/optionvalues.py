"""Options and their values, checked before anything runs. Spark gives every option as text.

The fields of a dataclass are the one declaration of its options: `option` says the name that Spark has for a field, and
what reads its text. `names_of` lists the names, `values_of` reads them all.
"""

from __future__ import annotations

import os
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, TypeAlias

from fdbqueue.engine import Subspace
from fdbqueue.stored.layout import Layout, Name
from fdbqueue.stored.names import queue_named, queue_text

Reader: TypeAlias = Callable[[str, str | None], Any]
"""Takes an option's name and its text, if it was given, and returns the value."""
CODECS = ("bytes", "str", "json", "msgpack", "tuple")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def option(names: str, reader: Reader | None, *, required: bool = False) -> Any:
    """Declare a field that is an option.

    Args:
        names: the option's name; several if they exclude each other, with a blank between.
        reader: reads its text; None: the parser does.
        required: whether the field has no default. Others have the value of an option that was not given.
    """
    about = {"names": names.split(), "reader": reader}
    if required:
        return field(metadata=about)
    return field(default=None if reader is None else reader(names, None), metadata=about)


def names_of(options: Any) -> tuple[str, ...]:
    """Return the names of the options that a dataclass declares."""
    return tuple(name for one in fields(options) for name in one.metadata.get("names", ()))


def name_of(options: Any, attribute: str) -> str:
    """Return the name of the option that is read into a field."""
    name: str = next(one.metadata["names"][0] for one in fields(options) if one.name == attribute)
    return name


def values_of(options: Any, given: Mapping[str, str]) -> dict[str, Any]:
    """Read the options that a dataclass declares, by its fields."""
    read = [(one.name, one.metadata["names"][0], one.metadata["reader"]) for one in fields(options) if one.metadata]
    return {attribute: reader(name, given.get(name)) for attribute, name, reader in read if reader is not None}


def choice(default: str | None, *allowed: str) -> Reader:
    """Return what reads one of the allowed values."""

    def reader(name: str, text: str | None) -> str | None:
        return default if text is None else one_of(name, text, allowed)

    return reader


def whole(default: int | None = None, most: int | None = None) -> Reader:
    """Return what reads a whole number from 1."""
    return lambda name, text: number(name, text, most) or default


def flag(default: bool) -> Reader:
    """Return what reads a truth value."""
    return lambda name, text: boolean(name, text, default)


def duration(default: float) -> Reader:
    """Return what reads a duration."""
    return lambda name, text: seconds(name, text, default)


def database(_: str, text: str | None) -> str:
    """Read the database's URL."""
    return url_of(text)


def known(given: Mapping[str, str], names: Sequence[str], what: str) -> dict[str, str]:
    """Return the options by their exact names. They are case-insensitive.

    Raises:
        ValueError: there is no option of that name.
    """
    exact = {name.lower(): name for name in names}
    values = {}
    for name, value in given.items():
        if name.lower() not in exact:
            raise ValueError(f"There is no option {name!r}. {what} has {', '.join(names)}.")
        values[exact[name.lower()]] = value
    return values


def url_of(given: str | None) -> str:
    """Return the database's URL, with an absolute path: executors have other folders than the driver.

    Raises:
        ValueError: there is none, it is empty, or it is ``memory:``. TypeError: it is no str.
    """
    if given is not None and not isinstance(given, str):
        raise TypeError(f"url is a str, not {type(given).__name__}: tasks open the database themselves.")
    url = not_empty("url", given) or os.environ.get("FDBQUEUE_URL")
    if not url:
        raise ValueError(
            "The option url is missing, and FDBQUEUE_URL is not set. Give file:PATH or fdb:[CLUSTER_FILE]."
        )
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        raise ValueError(
            "memory: is private to one process, and every task of Spark is another. Use file:PATH on one machine, or"
            " fdb:[CLUSTER_FILE]."
        )
    if rest.startswith("//"):
        return url  # absolute, or refused at the opening
    if scheme == "file":
        path, mark, query = rest.partition("?")
        return f"file:{_absolute(path)}{mark}{query}" if path else url
    if scheme == "fdb" and rest:
        return f"fdb:{_absolute(rest)}"
    return url


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def queue_of(values: Mapping[str, str]) -> str | bytes:
    """Return the text of the queue's name, or its prefix, from the options ``queue`` and ``queueKey``.

    Raises:
        ValueError: both or none are given, or no queue has this name.
    """
    queue, key = named("queue", values.get("queue")), from_hex("queueKey", values.get("queueKey"))
    if queue is not None and key is not None:
        raise ValueError("Give one of the options queue and queueKey, not both.")
    if queue is not None:
        return queue
    if key is None:
        raise ValueError("The option queue is missing: the queue's name.")
    return key


def layout_of(queue: str | bytes) -> Layout:
    """Return the keys of the queue that `queue_of` returned."""
    return Layout(Subspace(rawPrefix=queue) if isinstance(queue, bytes) else queue_named(queue))


def naming(queue: Name) -> dict[str, str]:
    """Return the option that names a queue, by the text of its name.

    Raises:
        TypeError: it is no queue's name. ValueError: the name is not valid.
    """
    return {"queue": queue_text(Layout(queue).prefix)}


def named(option: str, text: str | None) -> str | None:
    """Return the text of a queue's name, which may be missing.

    Raises:
        ValueError: no queue has this name.
    """
    if not_empty(option, text) is not None:
        queue_named(str(text))
    return text


def not_empty(name: str, value: str | None) -> str | None:
    """Return the value, which may be missing."""
    if value is not None and not value:
        raise ValueError(f"The option {name} is empty.")
    return value


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return the allowed value that is meant, whatever the case."""
    for one in allowed:
        if value.lower() == one.lower():
            return one
    raise ValueError(f"The option {name} is one of {', '.join(allowed)}, not {value!r}.")


def number(name: str, value: str | None, most: int | None = None) -> int | None:
    """Return a whole number from 1, which may be missing."""
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1 or (most is not None and int(value) > most):
        upper = "" if most is None else f" to {most:,}"
        raise ValueError(f"The option {name} is a whole number from 1{upper}, not {value!r}.")
    return int(value)


def boolean(name: str, value: str | None, default: bool) -> bool:
    """Return a truth value, or the default."""
    return default if value is None else one_of(name, value, ("true", "false")) == "true"


def seconds(name: str, value: str | None, default: float) -> float:
    """Return a duration, such as ``500ms``, ``15s`` or ``15m``, in seconds."""
    if value is None:
        return default
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*", value)
    if found is None:
        raise ValueError(f"The option {name} is a duration such as 500ms, 15s or 15m, not {value!r}.")
    return float(found[1]) * _UNITS[found[2]]


def from_hex(name: str, value: str | None) -> bytes | None:
    """Return the bytes, which may be missing."""
    if value is None:
        return None
    not_empty(name, value)
    try:
        return bytes.fromhex(value)
    except ValueError as error:
        raise ValueError(f"The option {name} is the prefix of a subspace in hex, not {value!r}.") from error


def function_named(option: str, name: str, returns: str) -> Callable[[Subspace], Any]:
    """Return the function ``module:function`` that takes a queue's subspace.

    Raises:
        ValueError: there is none.
    """
    try:
        found: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The option {option} is 'module:function', where executors can import it, and {name!r} is not: {error}."
        ) from error
    if not callable(found):
        raise ValueError(f"The option {option} names a function that returns a {returns}; {name!r} is not one.")
    function: Callable[[Subspace], Any] = found
    return function
