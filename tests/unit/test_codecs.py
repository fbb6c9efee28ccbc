"""Codecs: round trips, and wrong types refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.codecs import JsonCodec, MsgpackCodec, codec_named
from fdbqueue.engine import Subspace
from fdbqueue.errors import CodecError

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
def test_what_was_encoded_decodes(data: st.DataObject, name: str) -> None:
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


def test_a_typed_codec_refuses_what_it_could_not_read_again() -> None:
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


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        (str, r"codec='str' is the codec for str"),
        (JsonCodec, r"codec=JsonCodec\(\)"),
        (dict, r"codec=JsonCodec\(dict\)"),
        (dict[str, int], r"codec=JsonCodec\(dict\[str, int\]\)"),
        (7, "has a name, encode and decode, and 7 does not"),
    ],
)
def test_a_class_that_is_no_codec_is_refused_with_the_remedy(wrong: Any, remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        Queue("orders", codec=wrong)


def test_an_unknown_codec_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"no codec 'pickle'.*bytes, str, json"):
        codec_named("pickle")
    with pytest.raises(TypeError, match="A codec has"):
        codec_named(7)  # type: ignore[arg-type]
