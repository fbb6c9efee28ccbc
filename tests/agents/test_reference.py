"""The dialog against a reference that reads the whole script at once: all packets, all mistakes, any bytes."""

from __future__ import annotations

import os
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.agents import GREETING, Host, World, confirming, played, receiving, reference, sending

FUZZED = int(os.environ.get("FDBQUEUE_FUZZ_AGENTS", "10000" if os.environ.get("FDBQUEUE_NIGHTLY") else "500"))
"""How many scripts the fuzzer plays; 1,000,000 for a night."""
WORLDS = [
    World(),
    World(stores=False, locks=False),
    World(types=frozenset(), has=None, ids=frozenset()),
    World(max_size=3, has=None, ids=frozenset()),
    World(has=(0, b"")),
]
LINES = [
    *(b"Hi.", b"I speak SCS Queue protocol version 0.01.", b"I speak SCS Queue protocol version 0.02."),
    *(b"I want to send to any agent of type number 5.", b"I want to send to any agent of type number 65537."),
    *(b"I'm agent of type number 5.", b"I'm agent of type number 7.", b"I want to receive.", b"OK.", b"Bye.", b"."),
    *(b"I confirm a success in processing data, which ID is 456.", b"Data size is 4.", b"Data size is 0.", b"Data:"),
    *(b"I confirm a success in processing data, which ID is 99999999999.", b"data.", b"", b"Fail!", b"x" * 300),
]


def check(world: World, packets: list[bytes]) -> None:
    """The dialog says and does what the reference does, whatever the packets."""
    expected = world.again()
    answers = reference(expected, b"".join(packets))
    host = played(world.again(), packets)
    assert (bytes(host.said), host.world) == (answers, expected)
    assert host.end is not None


def packets_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cuts), len(stream)]
    return [stream[first:last] for first, last in pairwise(ends)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("script", [sending(5, b"d.\n"), receiving(5), confirming(5, 456), sending(5, b"", 1)])
def test_every_script_in_all_packets_of_lines_and_cut_at_every_byte(world: World, script: bytes) -> None:
    lines = script.splitlines(keepends=True)
    borders = [len(b"".join(lines[:count])) for count in range(1, len(lines))]
    for count in range(len(borders) + 1):
        for cuts in combinations(borders, count):
            check(world, packets_of(script, list(cuts)))
    for cut in range(len(script) + 1):
        check(world, [script[:cut]])  # the connection is lost there
        check(world, packets_of(script, [cut]))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("script", [sending(5, b"d"), receiving(5), confirming(5, 456), sending(5, b"", 1)])
def test_every_script_whether_the_server_answers_at_once_or_lets_the_client_go_ahead(
    world: World, script: bytes
) -> None:
    lines = script.splitlines(keepends=True)
    expected = world.again()
    answers = reference(expected, script)
    for steps in product((0, 1, 2, 9), repeat=len(lines) - 2):  # the greeting has no question
        host = Host(world.again())
        host.feed(lines[0] + lines[1])
        for line, count in zip(lines[2:], steps, strict=True):
            host.feed(line)
            for _ in range(count):
                host.step()
        host.events()
        host.dialog.end_of_input()
        host.events()
        assert (bytes(host.said), host.world) == (answers, expected)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("script", [sending(5, b"data"), receiving(5), confirming(5, 456)])
def test_every_script_with_every_line_replaced_left_out_or_said_before_by_every_other(
    world: World, script: bytes
) -> None:
    lines = script.splitlines(keepends=True)
    for at in range(len(lines)):
        check(world, lines[:at] + lines[at + 1 :])
        for other in LINES:
            check(world, [*lines[:at], other + b"\n", *lines[at + 1 :]])
            check(world, [*lines[:at], other + b"\n", *lines[at:]])


lines = st.one_of(st.sampled_from(LINES), st.binary(max_size=20))
ends = st.sampled_from([b"\n", b"\r\n", b"\r", b""])
cases = st.sampled_from([bytes.lower, bytes.upper, bytes.title, bytes])
scripts = st.one_of(
    st.lists(st.builds(lambda line, end, case: case(line) + end, lines, ends, cases), max_size=12).map(b"".join),
    st.builds(
        lambda script, at, junk: script[:at] + junk + script[at:],
        st.sampled_from([sending(5, b"da\n.\nta"), receiving(5), confirming(5, 456)]),
        st.integers(0, 200),
        st.binary(max_size=10),
    ),
    st.binary(max_size=300).map(lambda junk: GREETING + junk),
    st.builds(sending, st.integers(0, 70_000), st.binary(max_size=1_100)),
)


@given(script=scripts, cuts=st.lists(st.integers(0, 400), max_size=8), world=st.sampled_from(WORLDS))
@settings(max_examples=500)
def test_any_script_in_any_packets(script: bytes, cuts: list[int], world: World) -> None:
    check(world, packets_of(script, [min(cut, len(script)) for cut in cuts]))


@pytest.mark.slow
@pytest.mark.timeout(900 + FUZZED // 100)
@given(script=scripts, cut=st.integers(0, 400), world=st.sampled_from(WORLDS))
@settings(max_examples=FUZZED, database=None)
def test_a_fuzzer_finds_no_error(script: bytes, cut: int, world: World) -> None:
    check(world, packets_of(script, [min(cut, len(script))]))
