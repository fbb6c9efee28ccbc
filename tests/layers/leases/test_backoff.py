"""Back-off policies."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Blobs, Leases, Sessions, Tasks
from fdbqueue.layers.leases import constant, exponential, immediately
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from fdbqueue.layers.oplog import OperationLog
from fdbqueue.layers.streams import Stream
from tests.helpers.clock import Clock


def test_immediately_and_constant_do_not_depend_on_the_attempt() -> None:
    assert [immediately(attempt) for attempt in (1, 9)] == [0, 0]
    assert [constant(3)(attempt) for attempt in (1, 9)] == [3, 3]


def test_an_exponential_wait_grows_up_to_the_longest() -> None:
    policy = exponential(first=0.5, factor=3, longest=10)
    assert [policy(attempt) for attempt in range(1, 6)] == [0.5, 1.5, 4.5, 10, 10]


@given(attempt=st.integers(1, 10**9))
def test_no_number_of_attempts_is_too_large(attempt: int) -> None:
    assert 1 <= exponential(longest=60)(attempt) <= 60


@given(attempt=st.integers(1, 20))
def test_jitter_makes_a_wait_longer_by_its_share_at_most(attempt: int) -> None:
    plain = exponential()(attempt)
    assert plain <= exponential(jitter=0.1)(attempt) <= plain * 1.1


@pytest.mark.engines("memory")
@pytest.mark.parametrize("wait", ["x", None, math.nan, -1, True])
def test_a_backoff_that_returns_no_wait_is_told_and_waits_as_by_default(
    db: Any, space: Subspace, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    leases = Leases(Queue(space, codec="str"), backoff=lambda attempt: wait, clock=clock)
    leases.enqueue(db, "a")
    lease = leases.lease(db, duration=1)
    assert lease is not None
    with pytest.raises((TypeError, ValueError), match=r"returned .* not a number of seconds, 0 or more"):
        leases.nack(db, lease)
    clock.now += 1.5
    leases.reclaim(db)  # nobody is there to hear the error
    assert "not a number of seconds" in caplog.text
    assert leases.lease(db) is None
    clock.now += 2
    assert leases.lease(db) is not None


@pytest.mark.engines("memory")
@pytest.mark.parametrize("now", [None, "now", math.inf, math.nan])
def test_a_clock_that_tells_no_time_is_refused(db: Any, space: Subspace, now: Any) -> None:
    leases = Leases(Queue(space, codec="str"), clock=lambda: now)
    with pytest.raises((TypeError, ValueError), match=r"clock returned .*, not the time in seconds"):
        leases.enqueue(db, "a", delay=1)


NO_TIMES = [None, "now", math.inf, math.nan, -1.0, True, 10**20]


@pytest.mark.engines("memory")
@pytest.mark.parametrize("now", NO_TIMES)
def test_every_layer_refuses_a_clock_that_tells_no_time(db: Any, space: Subspace, now: Any) -> None:
    def clock() -> Any:
        return now

    queue: Queue[Any] = Queue(space, codec="bytes")
    logged = OperationLog(space["log"], Queue(space["logged"], codec="str")).of
    app = Tasks(space["tasks"], clock=clock)

    @app.periodic(every=60)
    @app.task
    def tick() -> None:
        """Do nothing."""

    for call in (
        lambda: TokenBucket(queue, "smtp", count=1, clock=clock).take(db),
        lambda: Blobs(queue, clock=clock).stats(db),
        lambda: Stream(queue, "s", clock=clock).look(db),
        lambda: Queue(space["logged"], codec="str").enqueue(logged(db, clock=clock), "x"),
        lambda: app.run_due(db),
        lambda: Sessions(queue, clock=clock).lease(db),
    ):
        with pytest.raises((TypeError, ValueError), match=r"clock returned .*, not the time in seconds"):
            call()


@pytest.mark.engines("memory")
@pytest.mark.parametrize("wait", ["x", None, math.nan, math.inf, -1])
def test_an_unknown_task_waits_as_by_default_if_its_backoff_fails(
    db: Any, space: Subspace, wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    sender, app = Tasks(space, clock=clock), Tasks(space, clock=clock, retries=1, backoff=lambda attempt: wait)

    @app.task(name="other")
    def other() -> None:
        """Do nothing."""

    @sender.task(name="mail")
    def mail() -> None:
        """Do nothing."""

    mail.enqueue(db)
    first = app.run_due(db)
    clock.now += 100
    is_long = wait == math.inf
    assert (first.failed, first.dead, app.run_due(db).dead) == (1, 0, 0 if is_long else 1)
    assert ("not a number of seconds" in caplog.text) == (not is_long)
