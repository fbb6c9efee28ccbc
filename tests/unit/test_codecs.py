"""Codecs: round trips, and wrong types refused."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.codecs import JsonCodec, MsgpackCodec, codec_named
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


def test_an_unknown_codec_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"no codec 'pickle'.*bytes, str, json"):
        codec_named("pickle")
    with pytest.raises(TypeError, match="A codec has"):
        codec_named(7)  # type: ignore[arg-type]
