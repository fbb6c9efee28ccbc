"""Codecs: round trips, and wrong types refused."""

from __future__ import annotations

import datetime
import decimal
import enum
import pickle
import re
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.errors import CodecError
from fdbqueue.stored.codecs import JsonCodec, MsgpackCodec, codec_named

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=30),
    "str": st.text(max_size=30),
    "json": plain,
    "msgpack": plain,
    "tuple": st.tuples(st.text(max_size=5), st.integers(-(2**60), 2**60), st.binary(max_size=5), st.none()),
}


@given(data=st.data(), name=st.sampled_from(sorted(VALUES)))
def test_an_encoded_value_decodes(data: st.DataObject, name: str) -> None:
    value = data.draw(VALUES[name])
    codec = codec_named(name)
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("name", "wrong"), [("bytes", "text"), ("bytes", bytearray(b"x")), ("str", b"x"), ("tuple", [1])]
)
def test_a_wrong_type_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(CodecError, match=f"codec is '{name}'"):
        codec_named(name).encode(wrong)


@dataclass
class Order:
    sku: int


@pytest.mark.parametrize("codec", [JsonCodec(Order), MsgpackCodec(Order)])
def test_a_typed_codec_gives_the_type_back_and_refuses_another(codec: Any) -> None:
    assert codec.decode(codec.encode(Order(7))) == Order(7)
    with pytest.raises(Exception, match=r"Order|sku|object"):
        codec.encode("seven")


@pytest.mark.parametrize("codec", [JsonCodec(Order), MsgpackCodec(Order), *map(codec_named, VALUES)])
def test_a_codec_can_be_pickled(codec: Any) -> None:
    again = pickle.loads(pickle.dumps(codec))

    assert (type(again), vars(again).get("_type")) == (type(codec), vars(codec).get("_type"))


@dataclass
class Reading:
    celsius: float
    where: str | None = None


def test_a_typed_codec_refuses_values_it_could_not_read_again() -> None:
    codec = JsonCodec(Reading)

    with pytest.raises(msgspec.ValidationError, match="null"):
        codec.encode(Reading(float("nan")))
    assert codec.decode(codec.encode(Reading(20.5))) == Reading(20.5)


class Struct(msgspec.Struct):
    sku: str


class Row(NamedTuple):
    sku: str


class Words(TypedDict):
    sku: str


@pytest.mark.parametrize("value", [Order(7), Struct("teapot"), Row("teapot"), Words(sku="teapot")])
def test_a_class_with_fields_is_a_codec_for_its_values(value: Any) -> None:
    kind = Words if isinstance(value, dict) else type(value)
    codec = pickle.loads(pickle.dumps(codec_named(kind)))

    assert codec.decode(codec.encode(value)) == value
    with pytest.raises((msgspec.ValidationError, CodecError)):
        codec.encode(7)


class Parcel(pydantic.BaseModel):
    weight: float = pydantic.Field(alias="kg")
    tags: list[str] = []


class Lossy(pydantic.BaseModel):
    """Writes a name that it does not read."""

    sku: str = pydantic.Field(serialization_alias="article")


def test_a_pydantic_model_is_a_codec_by_its_aliases() -> None:
    codec = pickle.loads(pickle.dumps(codec_named(Parcel)))
    parcel = Parcel(kg=2.5, tags=["fragile"])

    assert codec.encode(parcel) == b'{"kg":2.5,"tags":["fragile"]}'
    assert codec.decode(codec.encode(parcel)) == parcel
    with pytest.raises(CodecError, match="codec is Parcel, so a value must be one, not dict"):
        codec.encode({"kg": 2.5})


def test_a_pydantic_model_that_can_not_read_its_own_json_is_refused_at_the_enqueue(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec=Lossy)

    with pytest.raises(CodecError, match="can't encode Lossy"):
        queue.enqueue(db, Lossy(sku="teapot"))
    assert queue.is_empty(db)


def test_a_pydantic_model_comes_back_as_one(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec=Parcel)
    queue.enqueue(db, Parcel(kg=1))

    assert queue.dequeue_many(db)[0].value == Parcel(kg=1)


def test_an_unknown_codec_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"no codec 'pickle'.*bytes, str, json"):
        codec_named("pickle")
    with pytest.raises(TypeError, match="A codec has"):
        codec_named(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        *(
            (wrong, TypeError, "name of a codec is a str, and that of .*Own.* is ")
            for wrong in (5, None, b"own", ["own"])
        ),
        ("", ValueError, "that of .*Own.* is empty: give it one"),
        ("\ud800", ValueError, "name of a codec has a lone surrogate"),
    ],
)
def test_a_name_that_a_queue_cant_be_registered_with_is_refused(name: Any, kind: type[Exception], told: str) -> None:
    class Own:
        def __init__(self) -> None:
            self.name = name

        def encode(self, value: Any) -> bytes:
            return bytes(value)

        def decode(self, data: bytes) -> Any:
            return data

    with pytest.raises(kind, match=told):
        Queue("orders", codec=Own())


DAY = datetime.date(2026, 1, 2)
NAN, INFINITY = float("nan"), float("inf")
CHANGED: list[tuple[Any, str, str, str]] = [
    ({"price": NAN}, "$.price", "nan would come back as None", "Give None, or use the codec 'msgpack'"),
    ([1, {"a": [INFINITY]}], "$[1].a[0]", "inf would come back as None", "'msgpack'"),
    ({"tags": {"x"}}, "$.tags", "{'x'} would come back as ['x']", "Give a list"),
    ({"data": b"x"}, "$.data", "b'x' would come back as 'eA=='", "'msgpack'"),
    ({"day": DAY}, "$.day", "datetime.date(2026, 1, 2) would come back as '2026-01-02'", "Give its text"),
    ({"at": datetime.datetime(2026, 1, 2)}, "$.at", "would come back as '2026-01-02T00:00:00'", "Give its text"),
    ({"sum": decimal.Decimal("1.5")}, "$.sum", "would come back as '1.5'", "Give its text"),
    ({"id": uuid.UUID(int=1)}, "$.id", "would come back as '00000000-", "Give its text"),
    ({1: "a"}, "$", "{1: 'a'} would come back as {'1': 'a'}", "Give str keys, or use the codec 'msgpack'"),
    ({"a": {1.5: 2}}, "$.a", "{1.5: 2} would come back as {'1.5': 2}", "Give str keys"),
    ({"at": (1, 2)}, "$.at", "(1, 2) would come back as [1, 2]", "Give a list"),
    (NAN, "$", "nan would come back as None", "Give None"),
    (Order(7), "$", "would come back as {'sku': 7}", "Name its class, as in Queue(name, codec=Order)"),
]


@pytest.mark.parametrize(("value", "path", "change", "remedy"), CHANGED)
def test_json_refuses_a_value_that_would_change_with_its_path_and_the_remedy(
    db: Any, space: Subspace, value: Any, path: str, change: str, remedy: str
) -> None:
    queue = Queue(space, codec="json")
    for enqueue in (lambda: queue.enqueue(db, value), lambda: queue.enqueue_many(db, [value])):
        with pytest.raises(CodecError) as refused:
            enqueue()
        assert f"at {path}: " in str(refused.value)
        assert change in str(refused.value)
        assert remedy in str(refused.value)

    assert list(db.get_range_startswith(space.key())) == []


def test_msgpack_keeps_numbers_bytes_and_keys_and_refuses_what_it_changes() -> None:
    codec = codec_named("msgpack")
    kept: dict[Any, Any] = {"data": b"x", 1: [INFINITY], "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}
    assert codec.decode(codec.encode(kept)) == kept
    [nan] = codec.decode(codec.encode([NAN]))
    assert nan != nan
    for changed in ({"x"}, [DAY], {"at": (1, 2)}, [NAN, (1,)]):
        with pytest.raises(CodecError, match="would come back as"):
            codec.encode(changed)


class Color(enum.IntEnum):
    red = 1


@pytest.mark.parametrize(
    "value", [OrderedDict(a=1), Color.red, {"color": Color.red}, True, -0.0, 10**30, "", None, [], {"a": {}}]
)
def test_a_value_that_decodes_equal_is_accepted(value: Any) -> None:
    codec = codec_named("json")

    assert codec.decode(codec.encode(value)) == value


@dataclass
class Trip:
    day: datetime.date
    stops: set[str]
    legs: tuple[int, ...] = ()
    kg: float | None = None
    more: Any = None


@dataclass(eq=False)
class Unequal:
    """Two of them are never equal."""

    day: datetime.date
    more: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("kind", [JsonCodec, MsgpackCodec])
def test_with_a_type_a_value_keeps_what_the_type_has(kind: Any) -> None:
    trip = Trip(DAY, {"Rome"}, (1, 2), 2.5, {"a": [None]})
    codec = kind(Trip)
    assert codec.decode(codec.encode(trip)) == trip
    unequal = kind(Unequal)
    assert unequal.decode(unequal.encode(Unequal(DAY))).day == DAY
    dates = kind(dict[str, datetime.date])
    assert dates.decode(dates.encode({"a": DAY})) == {"a": DAY}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Trip(DAY, set(), kg=NAN), "$.kg: nan would come back as None"),
        (Trip(DAY, set(), more={"at": DAY}), "$.more.at: datetime.date(2026, 1, 2) would come back as '2026-01-02'"),
        (Unequal(DAY, {"t": (1,)}), "$.more.t: (1,) would come back as [1]"),
    ],
)
def test_with_a_type_a_value_is_refused_that_the_type_does_not_keep(value: Any, said: str) -> None:
    with pytest.raises(CodecError, match=re.escape(said)):
        JsonCodec(type(value)).encode(value)


def test_an_object_with_a_field_of_a_wrong_type_is_refused_before_it_is_stored(db: Any, space: Subspace) -> None:
    queue: Queue[Any] = Queue(space, codec=Order)

    with pytest.raises(CodecError, match="Expected `int`"):
        queue.enqueue(db, Order("seven"))  # type: ignore[arg-type]
    assert queue.is_empty(db)


class Weight(pydantic.BaseModel):
    kg: float | None = None


def test_a_pydantic_model_with_nan_is_refused() -> None:
    codec: Any = codec_named(Weight)
    assert codec.decode(codec.encode(Weight())) == Weight()
    with pytest.raises(CodecError, match=r"\$\.kg: nan would come back as None"):
        codec.encode(Weight(kg=NAN))
