"""What calls on leases do when a commit fails: errors that are not retried, and batches that take too long."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from tests.helpers.faults import FaultyDatabase

pytestmark = pytest.mark.slow


def test_an_error_that_is_not_retryable_is_raised_and_nothing_was_done(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"x")
    with pytest.raises(FDBError, match="1031"):
        leases.lease(FaultyDatabase.failing_at(db, {0}, ("before", 1031)))
    lease = leases.lease(db)
    assert lease is not None
    assert lease.attempt == 1
    with pytest.raises(FDBError, match="1031"):
        leases.ack(FaultyDatabase.failing_at(db, {0}, ("before", 1031)), lease)
    assert leases.queue.stats(db).leased == 1


def test_a_batch_that_takes_too_long_is_halved_until_it_does_not(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0, 1, 2, 3}, ("before", 1007))
    report = leases.enqueue_many(faulty, [b"a", b"b", b"c", b"d"])
    assert (report.items, report.transactions, faulty.commits) == (4, 3, 7)
    assert [item.value for item in leases.queue.browse(db)] == [b"first", b"a", b"b", b"c", b"d"]


def test_a_batch_that_took_too_long_once_is_tried_as_a_whole(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0}, ("before", 1007))
    assert leases.enqueue_many(faulty, [b"a", b"b"]).transactions == 1


def test_one_item_alone_is_tried_again(db: Any, space: Subspace) -> None:
    leases = Leases(Queue(space))
    leases.enqueue(db, b"first")
    faulty = FaultyDatabase.failing_at(db, {0, 1, 2}, ("before", 1007))
    assert leases.enqueue_many(faulty, [b"a"]).transactions == 1
