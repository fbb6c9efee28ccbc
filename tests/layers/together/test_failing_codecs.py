"""A codec is code of the caller's. Whatever it raises fails one item, by a sentence in the library's words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Consumer, Leases, Sessions
from tests.helpers.raw import raw


class Surly:
    """A codec that raises errors of no codec."""

    name = "json"

    def encode(self, value: Any) -> bytes:
        if value == "bad":
            raise AttributeError("no attribute 'sku'")
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        value = json.loads(data)
        if value == "odd":
            raise AttributeError("no attribute 'sku'")
        return value


@dataclass
class Order:
    sku: str

    def __post_init__(self) -> None:
        if self.sku == "odd":
            raise RuntimeError("no such sku")


def test_a_value_that_does_not_encode_is_refused(db: Any, space: Subspace) -> None:
    with pytest.raises(CodecError, match="can't encode str: AttributeError: no attribute 'sku'"):
        Queue(space, codec=Surly()).enqueue(db, "bad")


@pytest.mark.parametrize(("codec", "value"), [(Surly(), b'"odd"'), (Order, b'{"sku":"odd"}')], ids=["codec", "class"])
def test_an_item_that_does_not_decode_is_named_and_stays(db: Any, space: Subspace, codec: Any, value: bytes) -> None:
    position = raw(space).enqueue(db, value)
    queue = Queue(space, codec=codec)
    for call in (queue.dequeue, queue.peek, Leases(queue).lease, lambda db: list(queue.browse(db))):
        with pytest.raises(CodecError, match=f"The item {position.text} .*: (AttributeError|RuntimeError): no "):
            call(db)
    assert "no " in repr(queue.inspect(db))
    assert queue.stats(db).available == 1


def test_a_consumer_blocks_the_session_of_such_an_item_and_no_other(db: Any, space: Subspace) -> None:
    of_bytes = Sessions(raw(space))
    for session, value in (("ann", b'"odd"'), ("bob", b'"fine"')):
        of_bytes.enqueue(db, value, session=session)
    sessions = Sessions(Queue(space, codec=Surly()))
    done: list[Any] = []
    Consumer(sessions, lambda lease: done.append(lease.value), concurrency=1).drain(db)
    assert done == ["fine"]
    assert [one.session for one in sessions.list(db) if one.status == "blocked"] == ["ann"]
