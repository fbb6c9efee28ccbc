"""Arguments of tasks: checked when they are enqueued, and back as they were."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import secrets
import uuid
import zoneinfo
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import CodecError
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks, Worker
from fdbqueue.layers.tasks._arguments import Arguments, DoesNotFit


@dataclasses.dataclass
class Point:
    x: int
    at: dt.datetime
    tags: tuple[str, ...] = ()


class Color(enum.Enum):
    red = "r"
    blue = "b"


class Model(pydantic.BaseModel):
    name: str
    price: decimal.Decimal
    when: dt.date | None = None


class Meeting(pydantic.BaseModel):
    when: dt.datetime


class Pair(NamedTuple):
    left: int
    right: str


class Facts(TypedDict):
    a: int


class Struct(msgspec.Struct):
    data: bytes
    id: uuid.UUID


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    arguments = Arguments("t", function, {})
    found = arguments.decode(arguments.encode(arguments.bind(args, kwargs)))
    bound = inspect.signature(function).bind(*found[0], **found[1])
    bound.apply_defaults()
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    assert bound.arguments == given.arguments
    assert [type(one) for one in bound.arguments.values()] == [type(one) for one in given.arguments.values()]
    return found


ZURICH = zoneinfo.ZoneInfo("Europe/Zurich")
TWO_THIRTY = dt.datetime(2026, 10, 25, 2, 30)


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (dt.datetime, TWO_THIRTY.replace(fold=1), "the fold of"),
        (dt.datetime, TWO_THIRTY.replace(tzinfo=ZURICH), "the time zone of"),
        (dt.datetime, dt.datetime(2026, 3, 28, 12, tzinfo=ZURICH), "the time zone of"),
        (
            dt.datetime,
            dt.datetime(1890, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=1172))),
            "the seconds in the offset",
        ),
        (dt.time, dt.time(2, 30, fold=1), "the fold of"),
        (dt.time, dt.time(2, tzinfo=ZURICH), "the time zone of"),
        (dt.time | None, dt.time(2, tzinfo=ZURICH), "the time zone of"),
        (list[dt.time], [dt.time(1), dt.time(2, tzinfo=ZURICH)], "the time zone of"),
        (set[dt.time], {dt.time(1), dt.time(2, tzinfo=ZURICH)}, "the time zone of"),
        (dict[str, dt.datetime], {"a": TWO_THIRTY.replace(fold=1)}, "the fold of"),
        (Point, Point(1, TWO_THIRTY.replace(fold=1)), "the fold of"),
        (Meeting, Meeting(when=TWO_THIRTY.replace(fold=1)), "the fold of"),
    ],
)
def test_a_time_that_would_lose_its_zone_or_its_fold_is_refused(kind: Any, value: Any, told: str) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = kind
    with pytest.raises(TypeError, match=rf"'x' of t\(x.*would come back without {told}.* Give a datetime in UTC"):
        there_and_back(task, value)


@pytest.mark.parametrize(
    "value",
    [
        TWO_THIRTY,
        TWO_THIRTY.replace(tzinfo=dt.UTC),
        TWO_THIRTY.replace(tzinfo=zoneinfo.ZoneInfo("UTC")),
        TWO_THIRTY.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5, minutes=-30), "own")),
    ],
)
def test_a_time_keeps_its_offset(value: dt.datetime) -> None:
    def at(when: dt.datetime) -> None: ...
    def of_day(when: dt.time) -> None: ...

    for function, wanted in ((at, value), (of_day, value.timetz())):
        found = there_and_back(function, wanted)[1]["when"]
        assert found.utcoffset() == wanted.utcoffset()


INTEGERS = st.integers(-(2**63), 2**64 - 1)
TIMES = st.datetimes(timezones=st.none() | st.just(dt.UTC)).map(lambda one: one.replace(fold=0))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INTEGERS),
    (str, TEXTS),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (dt.datetime, TIMES),
    (dt.date, st.dates()),
    (dt.time, st.times().map(lambda one: one.replace(fold=0))),
    (uuid.UUID, st.uuids()),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Color, st.sampled_from(Color)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Pair, st.builds(Pair, INTEGERS, TEXTS)),
    (Point, st.builds(Point, INTEGERS, TIMES, st.lists(TEXTS).map(tuple))),
    (Struct, st.builds(Struct, st.binary(), st.uuids())),
    (Facts, st.builds(lambda a: {"a": a}, INTEGERS)),
    (Model, st.builds(Model, name=TEXTS, price=st.decimals(-1000, 1000, places=2), when=st.none() | st.dates())),
    (list[int], st.lists(INTEGERS)),
    (set[str], st.sets(TEXTS)),
    (frozenset[int], st.frozensets(INTEGERS)),
    (tuple[int, str], st.tuples(INTEGERS, TEXTS)),
    (dict[str, bytes], st.dictionaries(TEXTS, st.binary())),
    (dict[int, str], st.dictionaries(INTEGERS, TEXTS)),
    (int | None, st.none() | INTEGERS),
    (list[Model], st.lists(st.builds(Model, name=TEXTS, price=st.decimals(-9, 9, places=1)), max_size=3)),
]
Kind = inspect.Parameter


@st.composite
def calls(draw: st.DrawFn) -> tuple[inspect.Signature, tuple[Any, ...], dict[str, Any]]:
    """Draw a signature, and arguments that fit it."""
    parameters, args, kwargs = [], [], {}
    kinds = sorted(draw(st.lists(st.sampled_from([Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD]), max_size=4)))
    for at, kind in enumerate(kinds):
        annotation, values = draw(st.sampled_from(KINDS))
        parameters.append(Kind(f"p{at}", kind, annotation=annotation))
        args.append(draw(values))
    if draw(st.booleans()):
        annotation, values = draw(st.sampled_from(KINDS))
        parameters.append(Kind("rest", Kind.VAR_POSITIONAL, annotation=annotation))
        args += draw(st.lists(values, max_size=3))
    for at in range(draw(st.integers(0, 3))):
        annotation, values = draw(st.sampled_from(KINDS))
        default = draw(values) if draw(st.booleans()) else Kind.empty
        parameters.append(Kind(f"k{at}", Kind.KEYWORD_ONLY, annotation=annotation, default=default))
        if default is Kind.empty or draw(st.booleans()):
            kwargs[f"k{at}"] = draw(values)
    if draw(st.booleans()):
        annotation, values = draw(st.sampled_from(KINDS))
        parameters.append(Kind("named", Kind.VAR_KEYWORD, annotation=annotation))
        kwargs |= draw(st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=2))
    return inspect.Signature(parameters), tuple(args), kwargs


@given(calls())
def test_arguments_of_any_signature_come_back_as_they_were(
    call: tuple[inspect.Signature, tuple[Any, ...], dict[str, Any]],
) -> None:
    signature, args, kwargs = call

    def function() -> None: ...

    function.__signature__ = signature  # type: ignore[attr-defined]
    there_and_back(function, *args, **kwargs)


@given(st.lists(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind[0]), kind[1])), max_size=6))
def test_values_come_back_through_a_queue_and_as_results(
    db: Any, space: Subspace, values: list[tuple[Any, Any]]
) -> None:
    app, given = Tasks(space[secrets.token_hex(4)], retries=0), []
    handles: list[Any] = []
    for number, (annotation, value) in enumerate(values):

        def task(value: Any) -> Any:
            given.append(value)
            return value

        task.__annotations__ = {"value": annotation, "return": annotation}
        handles.append(app.task(name=f"task {number}", keep_result=60)(task).enqueue(db, value))
    Worker(app, concurrency=1, signals=False).drain(db)

    assert given == [value for _, value in values]
    results = [handle.result(timeout=20) for handle in handles]
    assert results == given
    assert [type(one) for one in results] == [type(one) for one in given]


JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(JSON)
def test_parameters_without_annotations_take_what_json_has(value: Any) -> None:
    def function(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pass

    there_and_back(function, value)


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1, 2},
        b"x",
        float("nan"),
        [float("inf")],
        {1: 2},
        dt.date(2026, 1, 1),
        decimal.Decimal(1),
        uuid.UUID(int=7),
        Point(1, dt.datetime(2026, 1, 1)),
        "\ud800",
        object(),
        lambda: 1,
        [1, {"a": (1,)}],
    ],
)
def test_what_would_not_come_back_is_refused_without_an_annotation(value: Any) -> None:
    def function(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        pass

    with pytest.raises(TypeError, match=r"JSON can't hold the arguments of t|would get|not of its annotation"):
        there_and_back(function, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, True),
        (int, 7.5),
        (str, 7),
        (list[int], (1,)),
        (list[int], ["a"]),
        (bytes, "x"),
        (dt.datetime, dt.date(2026, 1, 1)),
        (Point, {"x": 1, "at": "2026-01-01T00:00:00"}),
        (Model, "x"),
        (float, float("nan")),
        (Color, "r"),
        (Literal["a"], "b"),
    ],
)
def test_a_value_of_another_type_than_the_annotation_is_refused(annotation: Any, value: Any) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match="t\\(value:"):
        there_and_back(function, value)


def test_wrong_calls_are_refused_as_python_refuses_them() -> None:
    def function(a: int, *, b: int = 1) -> None: ...

    arguments = Arguments("t", function, {})
    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"c": 1})):
        with pytest.raises(TypeError, match="was called with other arguments"):
            arguments.bind(args, kwargs)


@pytest.mark.parametrize(
    ("annotation", "value", "remedy"),
    [
        (float, float("nan"), "JSON has no nan and no infinity"),
        (list[float], [float("inf")], "JSON has no nan and no infinity"),
        (Any, float("nan"), "JSON has no nan and no infinity"),
        (Any, [1, {"a": -float("inf")}], "JSON has no nan and no infinity"),
        (Any, (1, 2), "Annotate it, as in value: tuple,"),
        (list, (1, 2), "Annotate it, as in value: tuple,"),
        (Any, [1, (2,)], "Name the types of its parts in the annotation"),
        (list, [1, (2,)], "Name the types of its parts in the annotation"),
        (Any, {1: 2}, "Name the types of its parts in the annotation"),
        (dict, {1: 2}, "Name the types of its parts in the annotation"),
    ],
)
def test_a_refused_value_comes_with_a_remedy_that_helps(annotation: Any, value: Any, remedy: str) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__["value"] = annotation
    with pytest.raises(TypeError, match=remedy):
        there_and_back(function, value)


@pytest.mark.parametrize(
    "stored",
    [b"{}", b'{"a":"x"}', b'{"a":1,"c":2}', b"[1,2]", b"7", b'"x"', b"null", b"[]", b"{", b"\xff", b'{"a":null}'],
)
def test_stored_arguments_that_do_not_fit_are_told_in_a_sentence(stored: bytes) -> None:
    def function(a: int, *, b: int = 1) -> None: ...

    with pytest.raises(DoesNotFit, match=r"Its arguments .* do not fit t\(a: int, \*, b: int = 1\)"):
        Arguments("t", function, {}).decode(stored)


@given(st.binary() | JSON.map(msgspec.json.encode))
def test_any_bytes_fit_or_are_told(stored: bytes) -> None:
    def function(a: int, *rest: str, b: Point | None = None, **more: float) -> None: ...

    try:
        args, kwargs = Arguments("t", function, {}).decode(stored)
    except DoesNotFit:
        return
    inspect.signature(function).bind(*args, **kwargs)


def test_annotations_that_json_can_not_hold_are_refused_when_the_task_is_made() -> None:
    def function(value: list[int] | set[int]) -> None: ...

    with pytest.raises(TypeError, match="JSON can't hold the arguments of the task 't'"):
        Arguments("t", function, {})

    def other(value: Any) -> None: ...

    other.__annotations__["value"] = "NotThere"
    with pytest.raises(TypeError, match="can't be read: name 'NotThere' is not defined"):
        Arguments("t", other, {})


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind[0]), kind[1])))
def test_results_come_back_as_they_were(case: tuple[Any, Any]) -> None:
    annotation, value = case

    def function() -> Any: ...

    function.__annotations__["return"] = annotation
    arguments = Arguments("t", function, {})
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(arguments.encode_result(value)))

    assert arguments.decode_result(stored) == value


def test_results_that_can_not_be_stored_or_read_are_told() -> None:
    def function() -> int: ...  # type: ignore[empty-body]

    arguments = Arguments("t", function, {})
    with pytest.raises(CodecError, match="keeps its result"):
        arguments.encode_result(object())
    with pytest.raises(CodecError, match="not of its return annotation"):
        arguments.decode_result("x")


def test_equal_arguments_have_one_key_with_and_without_defaults() -> None:
    def function(a: int, b: dict[str, int] | None = None, *, c: str = "x") -> None: ...

    arguments = Arguments("t", function, {})

    def key(*args: Any, **kwargs: Any) -> str:
        return arguments.key(arguments.bind(args, kwargs))

    assert key(1) == key(a=1, c="x") == key(1, None)
    assert key(1, {"a": 1, "b": 2}) == key(1, {"b": 2, "a": 1})
    assert key(1) != key(2)
