"""`fdbqueue health`: what is wrong with a database and its queues, and the exit code for a probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue import Queue
from fdbqueue.cli import app
from fdbqueue.layers import Leases, Sessions
from fdbqueue.observe.health import Limits, check_health
from fdbqueue.stored.items import envelope
from tests.cli.test_terminal import on_terminal
from tests.helpers.counted import Counted


@pytest.fixture
def own() -> Iterator[Any]:
    """A database without the queues of other tests."""
    with fdbqueue.open("memory:") as db:
        yield db


def test_all_is_well(own: Any) -> None:
    Leases(Queue("orders", codec="str")).enqueue(own, "a")
    report = check_health(own, limits=Limits(age_s=600))
    assert report.ok
    assert (report.queues, report.oldest_queue) == (1, "orders")
    assert 0 < report.commit_s < 60
    assert report.record()["format_version"] == 2


def test_it_writes_nothing(own: Any) -> None:
    Leases(Queue("orders", codec="str")).enqueue(own, "a")
    before = [(row.key, row.value) for row in own[b"":b"\xff"]]
    counted = Counted(own)
    check_health(counted)
    assert counted.did["writes"] == 0
    assert [(row.key, row.value) for row in own[b"":b"\xff"]] == before


def test_what_is_wrong_is_said_in_sentences(own: Any) -> None:
    old = Leases(Queue("old", codec="str"), clock=lambda: 1_000.0)
    old.enqueue_many(own, ["a", "b"])
    old.lease(own, duration=5)
    Leases(Queue("future", codec="str"), clock=lambda: 9e9).enqueue(own, "a")
    bad = Queue("bad", codec="str")
    bad.enqueue(own, "a")
    own[bad.layout.available.key(b"\x14\x01aaaaaaaa\x00")] = b"\xff of a newer version"

    report = check_health(own, limits=Limits(age_s=600, commit_s=1e-9))

    told = "\n".join(report.problems)
    assert not report.ok
    for sentence in (
        "A commit takes",
        "ahead of this clock",
        "old: The first item has waited",
        "bad: The first item",
    ):
        assert sentence in told
    assert "old: 1 lease has expired, and nobody ends it: start" in told
    assert set(report.unreadable) == {"bad"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'db'}"


def run(*arguments: str, url: str) -> Any:
    return CliRunner().invoke(app, ["health", *arguments], env={"FDBQUEUE_URL": url})


def test_a_problem_names_a_command_that_can_be_copied(url: str) -> None:
    with fdbqueue.open(url) as db:
        old = Leases(Queue(("shop", "old"), codec="str"), clock=lambda: 1_000.0)
        old.enqueue(db, "a")
        old.lease(db, duration=5)
    told = run("--json", url=url)
    assert told.exit_code == 1
    [problem] = json.loads(told.stdout)["problems"]
    assert problem.endswith("""Next: `fdbqueue watchdog '["shop", "old"]' --once`.""")


def test_exit_codes_are_for_probes(url: str) -> None:
    assert run(url=url).exit_code == 3  # there is no database
    with fdbqueue.open(url) as db:
        Leases(Queue("orders", codec="str"), clock=lambda: 1_000.0).enqueue(db, "a")
    well, bad = run("--json", url=url), run("--max-age", "600", "--json", url=url)
    assert (well.exit_code, bad.exit_code) == (0, 1)
    assert json.loads(well.stdout)["ok"] is True
    assert "orders: The first item has waited" in json.loads(bad.stdout)["problems"][0]
    assert run("--max-age", "600", "--exclude", "orders", url=url).exit_code == 0


def test_a_database_that_does_not_answer_in_time_has_its_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fdbqueue.open(url) as db:
        Queue("orders", codec="str").enqueue(db, "a")

    def late(*_: object, **__: object) -> None:
        raise fdbqueue.FDBError(1031)

    monkeypatch.setattr("fdbqueue.observe.health.check_health", late)
    assert run(url=url).exit_code == 3


@pytest.mark.parametrize("arguments", [["--max-age", "-1"], ["--patience", "0"], ["--include", ""]])
def test_wrong_arguments_are_refused(url: str, arguments: list[str]) -> None:
    with fdbqueue.open(url):
        pass
    assert run(*arguments, url=url).exit_code == 2


def test_a_first_item_that_its_codec_does_not_read_is_unreadable(own: Any) -> None:
    for name in ("good", "bad", "own codec"):
        Queue(name, codec="json").enqueue(own, 1)
    bad = Queue("bad", codec="json")
    own[bad.layout.available.key(b"\x14\x01aaaaaaaa\x00")] = envelope(b"{no JSON")
    own[Queue("good").layout.available.key(b"\x15\x09\x01aaaaaaaa\x00")] = envelope(b"{no JSON")  # it is not the first

    report = check_health(own)

    assert set(report.unreadable) == {"bad"}
    assert "The first item can't be decoded as json" in report.unreadable["bad"]
    assert not report.ok


def test_an_include_that_fits_no_queue_is_a_problem(url: str) -> None:
    with fdbqueue.open(url) as db:
        Queue("orders", codec="str").enqueue(db, "a")
    told = run("--include", "ordrs", "--include", "ord*", "--json", url=url)
    assert told.exit_code == 1
    assert json.loads(told.stdout)["problems"] == ["No queue matches 'ordrs'. Did you mean orders?"]
    metrics = CliRunner().invoke(app, ["metrics", "--once", "--include", "ordrs"], env={"FDBQUEUE_URL": url})
    assert metrics.exit_code == 0
    assert metrics.stderr == "No queue matches 'ordrs'. Did you mean orders?\n"


@pytest.mark.slow
def test_what_is_worth_a_look_is_a_warning(url: str) -> None:
    with fdbqueue.open(url) as db:
        orders = Leases(Queue("orders", codec="str"), max_attempts=1)
        orders.enqueue_many(db, ["a", "b"])
        for lease in orders.lease_many(db):
            orders.nack(db, lease, error="no stock")
        mails = Leases(Queue("mails", codec="str"))
        mails.enqueue(db, "x")
        mails.queue.pause(db, reason="stocktaking", by="Ann")
        late = Leases(Queue("late", codec="str"))
        late.enqueue(db, "x")
        for delay in (0, 0, 0, 0, 0, 3_600):
            again = late.lease(db)
            assert again is not None
            late.nack(db, again, delay=delay)
        accounts = Sessions(Queue("accounts", codec="str"))
        accounts.enqueue(db, "x", session="Ben")
        for delay in (0, 0, 7_200):
            held = accounts.lease(db)
            assert held is not None
            accounts.nack(db, held, delay=delay)
        Leases(Queue("quiet", codec="str")).enqueue(db, "x", delay=3_600)
    told = run("--json", url=url)
    assert told.exit_code == 0
    record = json.loads(told.stdout)
    assert record["ok"] is True
    assert record["problems"] == []
    assert set(record["warnings"]) == {"orders", "mails", "late", "accounts"}
    assert record["warnings"]["orders"] == ["2 dead letters: no stock."]
    assert record["warnings"]["mails"] == ["It is paused by Ann: stocktaking."]
    assert record["warnings"]["late"] == ["An item is at attempt 6: It was given back."]
    attempt, waits = record["warnings"]["accounts"]
    assert attempt == "An item is at attempt 3: It was given back."
    assert waits.startswith("The session 'Ben' waits until ")
    _, shown = on_terminal("health", url=url)
    assert "orders: 2 dead letters" in shown
    assert "accounts: The session 'Ben' waits until" in shown
