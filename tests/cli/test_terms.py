"""Items enqueued with headers, delays, times to live: by options for all of them, or each by its own record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors, input
from fdbqueue.cli.input import ItemTerms, ItemToEnqueue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from tests.cli.conftest import Run, beside
from tests.cli.test_leasing import lines

pytestmark = pytest.mark.engines("file", "cluster")

FAR = 4_000_000_000.0
"""In the year 2096, in seconds since 1970."""


@pytest.fixture
def leases(name: str) -> Leases:
    return Leases(fdbqueue.Queue(tuple(json.loads(name)), codec="json"))


@pytest.fixture
def other(name: str) -> str:
    return beside(name)


def notes(db: Any, leases: Leases) -> dict[Any, tuple[str, dict[str, Any], float | None, float | None]]:
    """Return what is known of each value: its state, its headers, when it becomes available and how long it lives."""
    return {
        kept.value: (state, dict(kept.headers), kept.visible_at, kept.ttl_at)
        for state in ("available", "delayed")
        for kept in leases.browse(db, state=state)
    }


def test_options_are_of_all_items_given_as_arguments_or_lines(run: Run, db: Any, name: str, leases: Leases) -> None:
    assert run("enqueue", name, "1", "2", "--headers", '{"color": "red"}', "--at", str(FAR)).exit_code == 0
    assert run("enqueue", name, "--headers", '{"color": "blue"}', stdin="3\n4\n").exit_code == 0

    assert notes(db, leases) == {
        1: ("delayed", {"color": "red"}, FAR, None),
        2: ("delayed", {"color": "red"}, FAR, None),
        3: ("available", {"color": "blue"}, None, None),
        4: ("available", {"color": "blue"}, None, None),
    }


def test_a_delay_and_a_time_to_live_are_seconds_from_now(run: Run, db: Any, name: str, leases: Leases) -> None:
    before = leases.clock()
    assert run("enqueue", name, "1", "--delay", "600", "--ttl", "7200").exit_code == 0
    after = leases.clock()

    state, _, visible_at, ttl_at = notes(db, leases)[1]
    assert state == "delayed"
    assert visible_at is not None
    assert before + 600 <= visible_at + 1e-6 <= after + 600
    assert ttl_at is not None
    assert before + 7200 <= ttl_at + 1e-6 <= after + 7200


def test_a_records_own_terms_override_the_options(run: Run, db: Any, name: str, leases: Leases) -> None:
    given = [
        {"value": 1},
        {"value": 2, "headers": {"size": 7, "color": "blue"}, "at": FAR + 1},
        {"value": 3, "at": 0, "ttl": 2e9},
        {"value": None},
    ]
    options = ["--headers", '{"color": "red"}', "--at", str(FAR), "--ttl", "1e9"]
    assert run("enqueue", name, "--records", *options, stdin="\n".join(map(json.dumps, given))).exit_code == 0

    found = notes(db, leases)
    assert {value: found[value][:3] for value in found} == {
        1: ("delayed", {"color": "red"}, FAR),
        2: ("delayed", {"color": "blue", "size": 7}, FAR + 1),
        3: ("available", {"color": "red"}, None),
        None: ("delayed", {"color": "red"}, FAR),
    }
    lifetimes = {value: round(((found[value][3] or 0) - leases.clock()) / 1e9) for value in found}
    assert lifetimes == {1: 1, 2: 1, 3: 2, None: 1}


@pytest.mark.parametrize(
    ("taken", "codec"), [("dequeue", "json"), ("browse", "json"), ("lease", "str"), ("dead", "bytes")]
)
def test_enqueue_reads_records_with_headers(run: Run, name: str, other: str, taken: str, codec: str) -> None:
    enqueue = ("enqueue", "--records", "--codec", codec)
    given = '{"value": "a", "headers": {"color": "red"}}\n{"value": "b"}\n'
    assert run(*enqueue, name, stdin=given).exit_code == 0
    arguments = {"dequeue": ["--all", "--records"], "browse": ["--records"], "lease": ["-n", "2"], "dead": []}[taken]
    if taken == "dead":
        run("nack", name, "--max-attempts", "1", stdin=run("lease", name, "-n", "2", "--codec", codec).stdout)

    moved = run(taken, name, *arguments, "--codec", codec).stdout
    assert run(*enqueue, other, stdin=moved).exit_code == 0

    shown = lines(run("browse", other, "--records", "--codec", codec).stdout)
    assert [(line["value"], line.get("headers")) for line in shown] == [("a", {"color": "red"}), ("b", None)]


@pytest.mark.parametrize("taken", ["dequeue", "peek", "browse", "lease"])
def test_the_end_of_an_item_s_life_goes_with_its_record(
    run: Run, db: Any, name: str, other: str, leases: Leases, taken: str
) -> None:
    leases.enqueue(db, "short-lived", ttl=7200)
    leases.enqueue(db, "for ever")
    ends = notes(db, leases)["short-lived"][3]
    arguments = {"dequeue": ["--all", "--records"], "lease": ["-n", "2"]}.get(taken, ["--records"])

    moved = run(taken, name, *arguments).stdout
    assert run("enqueue", other, "--records", stdin=moved).exit_code == 0

    found = notes(db, Leases(fdbqueue.Queue(tuple(json.loads(other)), codec="json")))
    # The command turns it into seconds from now, and the queue into a time again, some moments later.
    assert found["short-lived"][3] == pytest.approx(ends, abs=1)
    assert lines(moved)[0]["ttl_at"] == ends
    if taken != "peek":
        assert found["for ever"][3] is None


def test_the_end_of_a_record_s_life_may_be_over_or_come_from_the_options(
    run: Run, db: Any, name: str, leases: Leases
) -> None:
    given = [{"value": 1, "ttl_at": 1_000.0}, {"value": 2, "ttl_at": FAR}, {"value": 3}]
    assert run("enqueue", name, "--records", "--ttl", "7200", stdin="\n".join(map(json.dumps, given))).exit_code == 0

    assert notes(db, leases)[2][3] == pytest.approx(FAR)
    assert notes(db, leases)[3][3] == pytest.approx(leases.clock() + 7200, abs=60)
    assert lines(run("dequeue", name, "--all").stdout) == [2, 3]
    assert leases.stats(db).expired == 1


def test_the_end_of_a_dead_letter_s_life_is_lifted_as_by_a_redrive(
    run: Run, db: Any, name: str, other: str, leases: Leases
) -> None:
    leases.enqueue(db, "a", ttl=7200)
    run("nack", name, "--max-attempts", "1", stdin=run("lease", name).stdout)

    assert run("enqueue", other, "--records", stdin=run("dead", name).stdout).exit_code == 0

    assert notes(db, Leases(fdbqueue.Queue(tuple(json.loads(other)), codec="json")))["a"][3] is None


@pytest.mark.parametrize("taken", ["dequeue", "browse", "lease", "dead"])
def test_ranks_go_with_records_into_a_queue_of_the_same_levels_and_into_no_other(
    run: Run, name: str, other: str, taken: str
) -> None:
    for priority in "2", "0", "1":
        run("enqueue", name, priority, "--levels", "3", "--priority", priority)
    run("enqueue", name, '"default"')
    arguments = {"dequeue": ["--all", "--records"], "browse": ["--records"], "lease": ["-n", "9"], "dead": []}[taken]
    if taken == "dead":
        run("nack", name, "--max-attempts", "1", stdin=run("lease", name, "-n", "9").stdout)
    moved = run(taken, name, *arguments).stdout

    refused = run("enqueue", other, "--records", stdin=moved)
    assert refused.exit_code == errors.VALUE
    assert "Error: Line 1: The record has the rank 0, and this queue has no order" in refused.stderr
    assert "--levels 3" in refused.stderr
    refused = run("enqueue", other, "--records", "--levels", "10", stdin=moved)
    assert refused.exit_code == errors.VALUE
    assert "Error: Line 4: The record has the rank 2, and would get the rank 9 here" in refused.stderr
    assert refused.stderr.endswith("Nothing was enqueued.\n")
    assert "There is no queue" in run("stats", other).stderr

    assert run("enqueue", other, "--records", "--levels", "3", stdin=moved).exit_code == 0
    shown = lines(run("browse", other, "--records").stdout)
    assert [(line["value"], line["rank"]) for line in shown] == [(0, 0), (1, 1), (2, 2), ("default", 2)]


def test_bytes_in_headers_and_in_messagepack_come_out_of_a_pipe_as_bytes(
    run: Run, db: Any, name: str, other: str, space: Subspace
) -> None:
    there = fdbqueue.Queue(space, codec="msgpack")
    there.enqueue(db, {"n": 1, "data": [b"\xff", "text"]}, headers={"key": b"\x00", "color": "red"})

    moved = run("dequeue", name, "--records", "--codec", "msgpack").stdout
    assert run("enqueue", other, "--records", "--codec", "msgpack", stdin=moved).exit_code == 0

    item = fdbqueue.Queue(tuple(json.loads(other)), codec="msgpack").peek(db)
    assert item is not None
    assert item.value == {"n": 1, "data": [b"\xff", "text"]}
    assert item.headers == {"key": b"\x00", "color": "red"}


def test_records_are_enqueued_in_batches_in_their_order(
    run: Run, db: Any, name: str, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input, "BATCH_ITEMS", 3)
    given = [{"value": n, "headers": {"n": n}} for n in range(8)]

    assert run("enqueue", name, "--records", stdin="\n".join(map(json.dumps, given))).exit_code == 0

    assert [(item.value, item.headers["n"]) for item in leases.queue.browse(db)] == [(n, n) for n in range(8)]


def test_a_batch_has_so_many_records_or_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input, "BATCH_ITEMS", 3)
    monkeypatch.setattr(input, "BATCH_BYTES", 100)
    sizes = [10, 10, 10, 10, 80, 20, 500, 1]

    batches = input.batches_of(ItemToEnqueue("", size, None, ItemTerms()) for size in sizes)

    assert [[one.size_bytes for one in batch] for batch in batches] == [[10, 10, 10], [10, 80], [20], [500], [1]]


def test_priorities_of_records_come_before_that_of_the_options(run: Run, name: str) -> None:
    given = '{"value": 1}\n{"value": 2, "headers": {"priority": 0}}\n{"value": 3, "headers": {"priority": 2}}\n'
    assert run("enqueue", name, "--records", "--levels", "3", "--priority", "1", stdin=given).exit_code == 0

    shown = lines(run("browse", name, "--records").stdout)
    assert [(line["value"], line["rank"], line["headers"]["priority"]) for line in shown] == [
        (2, 0, 0),
        (1, 1, 1),
        (3, 2, 2),
    ]


def test_a_plain_value_that_looks_like_a_record_stays_a_value(run: Run, name: str) -> None:
    run("enqueue", name, '{"value": 1, "headers": {"a": 2}}')

    assert lines(run("browse", name).stdout) == [{"value": 1, "headers": {"a": 2}}]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--headers", "red"], "Invalid value for --headers"),
        (["--headers", "[1]"], "Expected `object`, got `array`"),
        (["--headers", json.dumps({"long": "x" * 9_000})], "over the limit"),
        (["--delay", "-1"], "delay is a number of seconds"),
        (["--delay", "nan"], "delay is a number of seconds"),
        (["--at", "inf"], "at is a number of seconds"),
        (["--delay", "1", "--at", "1"], "not both"),
        (["--ttl", "0"], "ttl is a number of seconds, more than 0"),
        (["--records", "--raw", "--codec", "str"], "no raw value"),
    ],
)
@pytest.mark.engines("file")
def test_options_that_can_not_be_are_refused_before_anything_is_made(
    run: Run, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    refused = run("enqueue", "q", '{"value": 1}', "--url", f"file:{tmp_path / 'db'}", *arguments)

    assert refused.exit_code == errors.USAGE
    assert reason in " ".join(refused.stderr.replace("│", " ").split())
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("7", "not an item's record: Expected `object`"),
        ("oops", "not an item's record"),
        ('{"headers": {}}', "missing required field `value`"),
        ('{"value": 1, "dealy": 7}', "unknown field `dealy`"),
        ('{"value": 1, "delay": "7"}', "Expected `float | null`"),
        ('{"value": 1, "delay": -1}', "delay is a number of seconds"),
        ('{"value": 1, "delay": 1, "at": 1}', "not both"),
        ('{"value": 1, "ttl": 0}', "ttl is a number of seconds, more than 0"),
        ('{"value": 1, "ttl": 1, "ttl_at": 1}', "Give ttl or ttl_at, not both"),
        ('{"value": 1, "ttl_at": -1}', "ttl_at is a number of seconds, 0 or more"),
        ('{"value": 1, "rank": "0"}', "Expected `int | null`"),
        ('{"value": 1, "headers": {"long": "%s"}}' % ("x" * 9_000), "over the limit"),
        ('{"value": 1, "headers": {"large": 99999999999999999999999}}', "Headers must be"),
        ('{"value": 1, "headers": {"priority": 3}}', "integer from 0 to 2"),
    ],
)
def test_a_line_that_is_no_record_is_named_and_no_item_is_enqueued(run: Run, name: str, line: str, reason: str) -> None:
    refused = run("enqueue", name, "--records", "--levels", "3", stdin=f'{{"value": 1}}\n{line}\n')

    assert refused.exit_code == errors.VALUE
    assert "Line 2: " in refused.stderr
    assert reason in refused.stderr
    assert "Nothing was enqueued" in refused.stderr
    assert lines(run("stats", name).stdout)[0]["enqueued"] == 0


def test_a_value_that_the_codec_refuses_is_named_with_its_line(run: Run, name: str) -> None:
    refused = run("enqueue", name, "--records", "--codec", "str", stdin='{"value": "fine"}\n{"value": 7}\n')

    assert refused.exit_code == errors.VALUE
    assert "Line 2: " in refused.stderr
    assert lines(run("stats", name).stdout)[0]["enqueued"] == 0


def test_a_bad_record_far_down_says_how_many_are_in(run: Run, name: str) -> None:
    refused = run("enqueue", name, "--records", stdin='{"value": 1}\n' * 1_100 + "oops\n")

    assert refused.exit_code == errors.VALUE
    assert "Line 1101: " in refused.stderr
    assert "1,000 items were enqueued." in refused.stderr
    assert lines(run("stats", name).stdout)[0]["enqueued"] == 1_000


def test_dequeue_takes_due_items_and_no_expired_ones(run: Run, db: Any, name: str, leases: Leases) -> None:
    past = Leases(leases.queue, clock=lambda: 1_000.0)
    past.enqueue(db, "late", delay=60)
    past.enqueue(db, "short-lived", ttl=60)
    past.enqueue(db, "in time")

    assert lines(run("dequeue", name, "--all").stdout) == ["late", "in time"]
    assert leases.stats(db).expired == 1


def test_all_that_has_become_available_is_dequeued_however_much_that_is(
    run: Run, db: Any, leases: Leases, name: str
) -> None:
    Leases(leases.queue, clock=lambda: 1_000.0).enqueue_many(db, range(600), delay=60)

    assert lines(run("dequeue", name, "--all").stdout) == list(range(600))
