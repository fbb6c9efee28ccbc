"""Back-off policies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.layers.leases import constant, exponential, immediately


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
