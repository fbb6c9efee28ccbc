"""A user's bodies from before 0.3.0 were generators that yield futures. They run as before, and warn."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.lowlevel import attempts, run, started, verb

Old = Generator[Any, Any, Any]


class OncePerKey:
    """A layer as the guide showed it before 0.3.0."""

    def __init__(self, queue: Queue[Any], keys: Subspace) -> None:
        self.queue, self._keys = queue, keys

    def enqueue(self, tr: Any, value: str, *, key: str) -> Old:
        return (yield from self.queue.transact(tr, lambda tr: self._enqueue(tr, value, key)))  # type: ignore[misc, arg-type, return-value]

    def _enqueue(self, tr: Any, value: str, key: str) -> Old:
        known = yield tr.get(self._keys.pack((key,)))
        if known.present():
            return None
        tr.set(self._keys.pack((key,)), b"")
        return (yield from self.queue.enqueue.steps(tr, value))  # type: ignore[misc]


@pytest.fixture
def old(space: Subspace) -> Any:
    with pytest.warns(DeprecationWarning, match=r"OncePerKey.enqueue is deprecated since 0.3.0"):

        class Old(OncePerKey):
            enqueue: Any = verb(OncePerKey.enqueue)  # type: ignore[arg-type]

    return Old(Queue(space["q"], codec="str"), space["k"])


def test_a_verb_of_generators_runs_as_before(db: Any, old: Any) -> None:
    with pytest.warns(DeprecationWarning, match=r"_enqueue is deprecated since 0.3.0 .* Use async def, await"):
        entered = old.enqueue(db, "Welcome", key="ann"), old.enqueue(db, "Welcome again", key="ann")
    with pytest.warns(DeprecationWarning, match="_enqueue is deprecated"):
        awaited = asyncio.run(old.enqueue.aio(db, "Welcome", key="bob"))
    assert [position is not None for position in (*entered, awaited)] == [True, False, True]
    assert [item.value for item in old.queue.browse(db)] == ["Welcome", "Welcome"]


def test_a_generator_is_driven_as_before(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")

    def body(tr: Any) -> Old:
        yield from queue.enqueue.steps(tr, "x")  # type: ignore[misc]
        return (yield tr.get(b"no such key")).present()

    given: Any = body
    with pytest.warns(DeprecationWarning, match="body is deprecated"):
        found = [run(attempts(db, given)), run(queue.read(db, given)), run(queue.read(db.create_transaction(), given))]
    assert found == [False] * 3
    assert run(started(given(db.create_transaction()))) is False
    assert len(list(queue.browse(db))) == 2


def test_a_forgotten_await_warns(db: Any, space: Subspace) -> None:
    queue = Queue(space)
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        queue.enqueue.steps(db, b"x")  # type: ignore[unused-coroutine]
    assert not list(queue.browse(db))
