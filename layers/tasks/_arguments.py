"""The arguments of a task, stored as JSON and given back as they were; and its options, some of which look at them."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any, Literal, TypeAlias, cast

import msgspec

from fdbqueue import CodecError
from fdbqueue.base.arguments import check_whole
from fdbqueue.base.typed import decoder, look_at

from ..leases import Backoff, Done
from ..leases.lease import positive

ENCODE_ERRORS = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_PLAIN = {str, int, float, bool, bytes, type(None)}
_MINUTE = timedelta(minutes=1)
_NO_NUMBER = "JSON has no nan and no infinity: give None, or a text."
Given: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"
"""The arguments of a call, by position and by name."""
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class DoesNotFit(Exception):
    """Stored arguments do not fit the signature of the task."""


class Arguments:
    """The parameters of one function.

    Args:
        name: the task's name, for messages.
        function: the function.
        names: where annotations that are texts are looked up, beside the function's module.

    Raises:
        TypeError: the annotations are of no use for JSON.
    """

    def __init__(self, name: str, function: Callable[..., object], names: Mapping[str, object]) -> None:
        self._name = name
        try:
            self.signature = inspect.signature(function, eval_str=True, locals=names)
        except NameError as error:
            raise TypeError(f"The annotations of {name!r} can't be read: {error}. Import it at run time.") from error
        parameters = self.signature.parameters.values()
        self._names = tuple(self.signature.parameters)
        self._plain = all(one.kind not in (*_VARIABLE, one.POSITIONAL_ONLY) for one in parameters)
        fields = [self._field(one) for one in parameters]
        self._encode = msgspec.json.Encoder(enc_hook=encode_other).encode
        try:
            struct = msgspec.defstruct(f"arguments of {name}", fields, kw_only=True, forbid_unknown_fields=True)
            self._decode = decoder(msgspec.json, struct, dec_hook=decode_other).decode
        except TypeError as error:
            raise TypeError(f"JSON can't hold the arguments of the task {name!r}: {error}.") from error
        returned = self.signature.return_annotation
        self.result_type: Any = Any if returned in (inspect.Signature.empty, None, Done) else returned
        with suppress(Exception):  # a type that JSON can't hold is told of at its first result
            look_at(self.result_type)

    def _field(self, one: inspect.Parameter) -> tuple[str, Any, Any]:
        kind: Any = Any if one.annotation is one.empty else one.annotation
        if one.kind in _VARIABLE:
            kind = list[kind] if one.kind is one.VAR_POSITIONAL else dict[str, kind]
            return one.name, kind, msgspec.UNSET
        return one.name, kind, msgspec.NODEFAULT if one.default is one.empty else msgspec.UNSET

    def __str__(self) -> str:
        return f"{self._name}{self.signature}"

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        """Return arguments by the names of the parameters.

        Raises:
            TypeError: they do not fit the signature.
        """
        try:
            return self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self} was called with other arguments: {error}.") from None

    def check_takes_result(self) -> None:
        """Refuse a task that can't get the result of the task before it.

        Raises:
            TypeError: it has no parameter for it, or needs more than one argument.
        """
        try:
            self.signature.bind(None)
        except TypeError as error:
            raise TypeError(
                f"{self} can't follow: the result of the task before it would be its only argument, and: {error}. Give"
                f" it arguments of its own, as in then({self._name}.call(…))."
            ) from None

    def encode(self, bound: inspect.BoundArguments) -> bytes:
        """Return arguments as JSON.

        Raises:
            TypeError: one of them is not of its annotation, or would not come back as it was.
        """
        values = self._values(bound.arguments)
        try:
            data = self._encode(values)
        except ENCODE_ERRORS as error:
            raise TypeError(f"JSON can't hold the arguments of {self}: {error}. Give their parts.") from error
        try:
            back = self._decode(data)
        except ENCODE_ERRORS as error:
            told = "".join(f" {_NO_NUMBER}" for value in values.values() if _has_no_number(value))
            raise TypeError(f"An argument of {self} is not of its annotation: {error}.{told}") from error
        for name, value in values.items():
            if type(value) not in _PLAIN and (lost := _lost(value)):
                raise TypeError(
                    f"{name!r} of {self} would come back without {lost}. Give a datetime in UTC, by"
                    " astimezone(datetime.UTC), and a time without a zone. If the task needs the name of the zone, give"
                    " it as an argument of its own."
                )
            if (found := getattr(back, name)) != value:
                raise TypeError(
                    f"The task would get {found!r}, not {value!r}, as {name!r} of {self}. {self._remedy(name, value)}"
                )
        return data

    def _remedy(self, name: str, value: object) -> str:
        if _has_no_number(value):
            return _NO_NUMBER
        kind = type(value)
        if kind in (list, dict) or self.signature.parameters[name].annotation is kind:
            return (
                "Name the types of its parts in the annotation, as in list[tuple[int, ...]] or dict[int, str], or give"
                " a value of JSON's types."
            )
        return f"Annotate it, as in {name}: {kind.__name__}, or give a value of JSON's types."

    def decode(self, data: bytes) -> Given:
        """Return stored arguments as those of a call.

        Raises:
            DoesNotFit: they don't fit the signature.
        """
        try:
            found = self._decode(self._named(data) if data[:1] == b"[" else data)
        except ENCODE_ERRORS as error:
            shown = data[:200].decode(errors="replace")
            raise DoesNotFit(f"Its arguments {shown} do not fit {self}: {error}.") from error
        given = {name: value for name in self._names if (value := getattr(found, name)) is not msgspec.UNSET}
        if self._plain:
            return (), given
        bound = inspect.BoundArguments(self.signature, given)
        return bound.args, bound.kwargs

    def key(self, bound: inspect.BoundArguments) -> str:
        """Return a hash of all arguments, with the defaults of those that were not given."""
        bound.apply_defaults()
        return hashed(self._values(bound.arguments))

    def _values(self, arguments: Mapping[str, Any]) -> dict[str, object]:
        if self._plain:
            return dict(arguments)
        kinds = self.signature.parameters
        several = inspect.Parameter.VAR_POSITIONAL
        return {name: list(one) if kinds[name].kind is several else one for name, one in arguments.items()}

    def _named(self, data: bytes) -> bytes:
        values = msgspec.json.decode(data, type=list[msgspec.Raw])
        named: dict[str, msgspec.Raw | list[msgspec.Raw]] = {}
        for one in self.signature.parameters.values():
            if one.kind is one.VAR_POSITIONAL:
                named[one.name], values = values, []
            elif values and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                named[one.name] = values.pop(0)
        if values:
            raise ValueError(f"there are {len(values)} arguments too many")
        return msgspec.json.encode(named)

    def encode_result(self, result: object) -> object:
        """Return a result as what MessagePack can hold.

        Raises:
            CodecError: it can't be stored.
        """
        try:
            return msgspec.to_builtins(result, enc_hook=encode_other)
        except ENCODE_ERRORS as error:
            raise CodecError(f"{self._name!r} keeps its result, and {result!r} can't be stored: {error}.") from error

    def decode_result(self, stored: object) -> object:
        """Return a stored result as the task returned it.

        Raises:
            CodecError: it is not of the return annotation.
        """
        try:
            return msgspec.convert(stored, self.result_type, dec_hook=decode_other)
        except ENCODE_ERRORS as error:
            raise CodecError(f"The result of {self} is not of its return annotation: {error}.") from error


def _lost(value: object) -> str:
    """Return what JSON loses of a date or time in a value, though both are equal; "": nothing."""
    for one in _times(msgspec.to_builtins(value, builtin_types=(datetime, time), enc_hook=_parts)):
        if one.tzinfo is not None and one.tzinfo.utcoffset(None) is None:
            return f"the time zone of {one!r}"
        if one.fold:
            return f"the fold of {one!r}, which replace(fold=0) leaves out"
        if (one.utcoffset() or _MINUTE) % _MINUTE:
            return f"the seconds in the offset from UTC of {one!r}"
    return ""


def _times(value: object) -> Iterator[datetime | time]:
    if isinstance(value, datetime | time):
        yield value
    elif isinstance(value, dict):
        yield from _times([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _times(one)


def _has_no_number(value: object) -> bool:
    """Return whether a value has a part that is nan or infinite."""
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_no_number, value))
    return isinstance(value, float) and not math.isfinite(value)


def _parts(value: object) -> object:
    return value.model_dump() if hasattr(value, "model_dump") else None


def encode_other(value: object) -> object:
    """Return a value that msgspec does not know as one that it knows: a pydantic model as a dict."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"objects of type {type(value).__name__} are unsupported")


def decode_other(wanted: type, stored: object) -> object:
    """Return a pydantic model from a dict."""
    if hasattr(wanted, "model_validate_json"):
        return wanted.model_validate_json(msgspec.json.encode(stored))
    raise TypeError(f"objects of type {wanted} are unsupported")


def hashed(value: object) -> str:
    """Return a hash of a value that is the same in all processes."""
    text = json.dumps(msgspec.to_builtins(value, enc_hook=encode_other), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


KEY_BYTES = 200
"""How long a text may be that is part of the key of a limit or a unique call. Of a longer one its hash is."""
By: TypeAlias = str | Callable[..., object] | None
"""What a call belongs to: the value of a parameter, or what a function of the same arguments returns."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A call is enqueued only if no equal one is there. Otherwise the enqueue returns the handle of that one."""

    by: By = None
    """Which calls are equal: those with the same value of this parameter, or for which this function returns the same.
    None: those with equal arguments."""
    until: Literal["done", "started"] = "done"
    """Until when a call keeps out others: until it is done or a dead letter, or until a worker starts it."""
    period: float | None = None
    """For how many seconds from its enqueue a call keeps out others, also after it is done. None: no longer than
    `until` says."""

    def __post_init__(self) -> None:
        check_by(self.by)
        if self.until not in ("done", "started"):
            raise ValueError(f"until is 'done' or 'started', not {self.until!r}.")
        if self.period is not None:
            positive(self.period, "period")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most so many calls run at the same time, over all workers."""

    limit: int
    by: By = None
    """Calls with the same value share a limit; None: all calls of the task do."""

    def __post_init__(self) -> None:
        check_by(self.by)
        check_whole(self.limit, "limit is how many calls run at the same time", least=1)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` calls start in `seconds`, over all workers. Retries count, too."""

    count: int
    seconds: float = 1.0
    by: By = None
    """Calls with the same value share a rate; None: all calls of the task do."""
    burst: int | None = None
    """How many calls may start at once after a pause; None: `count`."""

    def __post_init__(self) -> None:
        check_by(self.by)
        check_whole(self.count, "count is how many calls start", least=1)
        positive(self.seconds, "seconds")
        if self.burst is not None:
            check_whole(self.burst, "burst is how many calls may start at once", least=1)


@dataclass(slots=True)
class TaskOptions:
    """The options of one task, as `Tasks.task` documents them."""

    name: str
    queue: object
    retries: int | None
    backoff: Backoff
    aliases: Sequence[str] = ()
    timeout: float | None = None
    priority: int | None = None
    ttl: float | None = None
    keep_result: float | None = None
    session: By = None
    unique: Any = None
    limits: Sequence[Concurrency | Rate] = ()

    def __post_init__(self) -> None:
        if not all(isinstance(cast(object, given), list | tuple) for given in (self.aliases, self.limits)):
            raise TypeError("aliases and limits are lists, as in aliases=['old_name'] and limits=[Rate(10)].")
        for name in (self.name, *self.aliases):
            if not isinstance(cast(object, name), str) or not name or not name.isprintable():
                raise TypeError(f"A task is named by a text, and so are its aliases, not by {name!r}.")
        if self.retries is not None:
            check_whole(self.retries, "retries is how often a failed task is tried again")
        if not callable(self.backoff):
            raise TypeError(f"backoff is a function of the attempt, as exponential(first=1.0), not {self.backoff!r}.")
        for told, seconds in (("timeout", self.timeout), ("ttl", self.ttl), ("keep_result", self.keep_result)):
            if seconds is not None:
                positive(seconds, told)
        check_by(self.session)
        for limit in self.limits:
            if not isinstance(limit, Concurrency | Rate):
                raise TypeError(f"A limit is Concurrency(…) or Rate(…), not {limit!r}.")
        if self.unique is False:
            self.unique = None
        elif self.unique is not None and not isinstance(self.unique, Unique):
            self.unique = Unique() if self.unique is True else Unique(by=self.unique)

    @property
    def concurrency(self) -> list[Concurrency]:
        """The limits that are gates."""
        return [one for one in self.limits if isinstance(one, Concurrency)]

    @property
    def rates(self) -> list[Rate]:
        """The limits that are token buckets."""
        return [one for one in self.limits if isinstance(one, Rate)]


def check_by(by: object) -> None:
    """Refuse what can't tell to what a call belongs.

    Raises:
        TypeError: it is neither the name of a parameter nor a function.
    """
    if not (by is None or isinstance(by, str) or callable(by)):
        raise TypeError(f"Give the name of a parameter, or a function of the task's arguments, not {by!r}.")


def check_parameter(by: By, arguments: Arguments, told: str) -> None:
    """Refuse the name of a parameter that the task does not have.

    Raises:
        TypeError: it has none of this name.
    """
    if isinstance(by, str) and by not in arguments.signature.parameters:
        raise TypeError(f"{told} names the parameter {by!r}, and the task is {arguments}. Give one of its parameters.")


def key_of(by: By, arguments: Arguments, bound: inspect.BoundArguments) -> str | int:
    """Return what a call belongs to, as a part of a key.

    Raises:
        TypeError: it is an object that JSON can't hold.
    """
    if by is None:
        return arguments.key(bound)
    if isinstance(by, str):
        bound.apply_defaults()
        value = bound.arguments[by]
    else:
        value = by(*bound.args, **bound.kwargs)
    try:
        plain = msgspec.to_builtins(value, enc_hook=encode_other)
        return plain if isinstance(plain, str | int) else hashed(plain)
    except ENCODE_ERRORS as error:
        raise TypeError(
            f"A call of {arguments} belongs to a text, a number or another value of JSON, not to {value!r}: {error}."
        ) from error


def short_key_of(by: By, arguments: Arguments, bound: inspect.BoundArguments) -> str | int:
    """Return what a call belongs to, as a part of a key that has others. A long text is hashed.

    Raises:
        TypeError: as `key_of`.
    """
    key = key_of(by, arguments, bound)
    try:
        is_short = len(str(key).encode()) <= KEY_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        is_short = False
    return key if is_short else hashed(key)
