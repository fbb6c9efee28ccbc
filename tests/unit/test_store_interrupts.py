"""An interrupt at any line of the committing thread loses no commit and leaves no thread waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from fdbqueue.engine.embedded.store.commit import committer as committing
from fdbqueue.engine.embedded.store.commit.request import CommitRequest
from fdbqueue.engine.embedded.store.store import Store
from tests.helpers.stores import commit, contents, opened, put, sets, view


@pytest.fixture
def store() -> Iterator[Store]:
    with opened() as store:
        yield store


def interrupted_at(store: Store, target: Any, name: str, *requests: CommitRequest) -> None:
    """Commit `requests` together; the thread is interrupted once, where it begins with that method."""
    for request in requests:
        store.submit(request)
    with patch.object(target, name, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        store.wait(requests[0])


class Interrupting(list[Any]):
    """The recent commits, whose next one is interrupted."""

    def append(self, _: Any) -> None:
        raise KeyboardInterrupt


def test_a_commit_that_took_effect_right_before_an_interrupt_conflicts_with_others(store: Store) -> None:
    put(store, (b"a", b"0"))
    with view(store) as before:
        recent = store.committer.recent
        recent.fresh = Interrupting()
        store.submit(request := sets((b"a", b"1")))
        with pytest.raises(KeyboardInterrupt):
            store.wait(request)
        assert store.committer.recent is not recent
        assert commit(store, sets((b"b", b""), snapshot_version=before.version, read_keys=[b"a"])).error == 1020
        with view(store) as after:
            assert after.get(b"a") == b"1"
            assert commit(store, sets((b"b", b""), snapshot_version=after.version, read_keys=[b"a"])).error is None


def test_a_callback_runs_though_the_committing_thread_was_interrupted(store: Store) -> None:
    done = threading.Event()
    first, other = sets((b"a", b"")), sets((b"b", b""))
    other.on_done(lambda _: done.set())
    interrupted_at(store, committing, "append", first, other)
    assert done.wait(30)
    assert other.error == 1021


def test_a_callback_runs_though_another_callback_was_interrupted(store: Store) -> None:
    done = threading.Event()
    first, other = sets((b"a", b"")), sets((b"b", b""))
    first.on_done(lambda _: interrupt())
    first.on_done(lambda _: done.set())
    both = threading.Barrier(2)

    def meet(_: CommitRequest) -> None:
        both.wait(30)

    other.on_done(meet)
    store.submit(first)
    store.submit(other)
    with pytest.raises(KeyboardInterrupt):
        store.wait(first)
    both.wait(30)
    assert done.wait(30)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_right_after_a_commit_leaves_no_request_waiting(store: Store) -> None:
    first, other = sets((b"a", b"")), sets((b"b", b""))
    done = threading.Event()
    other.on_done(lambda _: done.set())
    interrupted_at(store, committing.Committer, "_settle", first, other, sets((b"c", b"")))
    assert done.wait(30)
    assert [first.error, other.error] == [None, None]
    assert [key for key, _ in contents(store)] == [b"a", b"b", b"c"]


class EndsAsItIsLookedAt(CommitRequest, dict=True):
    """A request that another thread ends right behind the look whether it is done."""

    ended = False
    called = False

    @property  # type: ignore[misc]
    def done(self) -> bool:  # type: ignore[override]
        before = self.ended
        self.ended = True
        self.called = self.called or self.has_callbacks
        return before


def test_a_callback_added_while_a_request_ends_is_called(store: Store) -> None:
    request = EndsAsItIsLookedAt()
    if not request.on_done(lambda _: None):
        assert request.called, "who ended it saw that somebody is to be called"
