"""Commands around subscriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.layers.subscriptions import Subscriptions
from tests.cli.conftest import Run
from tests.cli.test_terminal import on_terminal

pytestmark = pytest.mark.engines("file", "cluster")


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def subscriptions(name: str) -> Subscriptions:
    return Subscriptions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"))


def fill(db: Any, subscriptions: Subscriptions) -> None:
    for n, color in enumerate(["blue", "red", "red"]):
        subscriptions.leases.enqueue(db, n, headers={"color": color})


def test_a_subscription_is_registered_served_listed_and_removed(
    run: Run, db: Any, name: str, subscriptions: Subscriptions
) -> None:
    fill(db, subscriptions)
    assert run("subscribe", name, "red", "--selector", "color = 'red'", "--credit", "1").exit_code == 0

    leased = run("lease", name, "-n", "5", "--subscription", "red").stdout

    assert [line["value"] for line in lines(leased)] == [1]
    [shown] = lines(run("subscriptions", name).stdout)
    assert (shown["name"], shown["selector"], shown["credit"], shown["held"]) == ("red", "color = 'red'", 1, 1)
    assert lines(run("stats", name).stdout)[0]["subscriptions"] == 1
    assert lines(run("check", name).stdout)[0]["ok"]
    assert run("ack", name, stdin=leased).exit_code == 0
    assert [line["value"] for line in lines(run("lease", name, "-n", "5", "-s", "red").stdout)] == [2]
    assert run("unsubscribe", name, "red").exit_code == 0
    assert run("unsubscribe", name, "red").exit_code == errors.EMPTY
    none = run("subscriptions", name, "--json")
    assert (none.exit_code, none.stdout, none.stderr) == (1, "", "The queue has no subscriptions.\n")
    none = run("streams", name)
    assert (none.exit_code, none.stdout, none.stderr) == (1, "", "The queue has no streams.\n")


def test_a_bad_selector_is_refused_with_the_place_of_the_fault(run: Run, name: str) -> None:
    refused = run("subscribe", name, "bad", "--selector", "color ==")
    assert refused.exit_code == errors.USAGE
    assert "Line 1, column 8" in refused.stderr


def test_an_unknown_subscription_is_a_usage_error(run: Run, name: str) -> None:
    refused = run("lease", name, "--subscription", "nobody")
    assert refused.exit_code == errors.USAGE
    assert "no subscription 'nobody'" in refused.stderr


@pytest.mark.slow
def test_a_terminal_shows_subscriptions_as_a_table(url: str, db: Any, name: str, subscriptions: Subscriptions) -> None:
    subscriptions.subscribe(db, "red", selector="color = 'red'").suspend(db)
    subscriptions.subscribe(db, "short", selector=lambda headers: len(headers) < 2)
    _, shown = on_terminal("subscriptions", name, url=url)
    for word in ("red", "color = 'red'", "suspended", "a function"):
        assert word in shown


def test_the_check_finds_what_a_subscription_would_miss(
    run: Run, db: Any, name: str, subscriptions: Subscriptions
) -> None:
    fill(db, subscriptions)
    subscriptions.subscribe(db, "all").lease_many(db, limit=2)
    layout = subscriptions.leases.layout
    db[layout.item_key(fdbqueue.Position(0, b"hidden"))] = b"\x101"
    checked = run("check", name)
    assert checked.exit_code == errors.EMPTY
    assert "passed by" in checked.stdout
