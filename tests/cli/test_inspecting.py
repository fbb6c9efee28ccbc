"""``fdbqueue inspect``."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from fdbqueue import Queue
from fdbqueue.cli import errors
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, Subscriptions
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file", "cluster")


def test_inspect_prints_a_page_of_a_queue(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = Leases(Queue(space, codec="json"), max_attempts=1)
    for number in range(20):
        leases.enqueue(db, {"n": number}, headers={"color": "red"})
    leases.lease(db, consumer="Ann")
    failed = leases.lease(db)
    assert failed is not None
    leases.nack(db, failed, error="no stock")
    page = json.loads(run("inspect", name, "--limit", "2").stdout)

    assert page["states"]["available"] == 18
    assert [one["value"]["n"] for one in (*page["first"], *page["last"])] == [2, 3, 18, 19]
    assert page["first"][0]["headers"] == {"color": "red"}
    assert [(one["consumer"], one["items"]) for one in page["holders"]] == [("Ann", 1)]
    assert [(one["error"], one["items"]) for one in page["errors"]] == [("no stock", 1)]
    assert sum(page["ages"].values()) == page["ages_sampled"] == 18


def test_inspect_says_that_a_queue_is_paused(run: Run, db: Any, space: Subspace, name: str) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, 1)
    assert "paused" not in json.loads(run("inspect", name).stdout)

    queue.pause(db, by="Ann", reason="stocktaking")

    shown = json.loads(run("inspect", name).stdout)["paused"]
    assert (shown["by"], shown["reason"]) == ("Ann", "stocktaking")


def test_inspect_says_which_sessions_are_paused_and_which_subscriptions_are_suspended(
    run: Run, db: Any, space: Subspace, name: str
) -> None:
    queue = Queue(space, codec="json")
    sessions = Sessions(queue)
    sessions.enqueue(db, 1, session="ann")
    sessions.pause(db, "ann")
    Subscriptions(queue).subscribe(db, "all").suspend(db)

    page = json.loads(run("inspect", name).stdout)

    told = {one["kind"]: (one["text"], one["command"]) for one in page["troubles"]}
    typed = shlex.quote(json.dumps(json.loads(name)))
    assert told["paused_session"] == ("The session 'ann' is paused.", f"fdbqueue sessions {typed} --resume ann")
    assert told["suspended_subscription"] == ("The subscription 'all' is suspended.", f"fdbqueue subscriptions {typed}")
    assert page["sessions"]["paused"] == 1
    assert "The session 'ann' is paused.\n    fdbqueue sessions" in queue.inspect(db).text()


def test_inspect_refuses_another_codec_than_the_queues(run: Run, db: Any, space: Subspace, name: str) -> None:
    Queue(space, codec="str").enqueue(db, "no json")
    refused = run("inspect", name, "--codec", "json")

    assert refused.exit_code == errors.VALUE
    assert "is registered with the codec 'str'" in refused.stderr
    assert json.loads(run("inspect", name).stdout)["first"][0]["value"] == "no json"


def test_inspect_of_an_empty_queue_is_no_error(run: Run, db: Any, name: str) -> None:
    assert json.loads(run("inspect", name).stdout)["states"]["available"] == 0
    assert run("inspect", name, "--limit", "0").exit_code == 2


def test_inspect_says_how_many_errors_are_left_out_and_why_items_failed(
    run: Run, db: Any, space: Subspace, name: str
) -> None:
    leases = Leases(Queue(space, codec="json"))
    for _ in range(14):
        leases.enqueue(db, 1)
    last = leases.lease_many(db)
    for number, lease in enumerate(last[1:]):
        leases.nack(db, lease, error=f"no {number:02}", last=True)
    leases.nack(db, last[0], error="printer is off\nask Ann")

    page = json.loads(run("inspect", name).stdout)
    text = leases.queue.inspect(db).text()

    assert (page["dead_read"], len(page["errors"]), page["other_errors"]) == (13, 10, 3)
    assert "dead letters by error; 3 more have other errors" in text
    assert "\n…" in text
    assert (page["first"][0]["attempt"], page["first"][0]["error"]) == (1, "printer is off")
    assert "printer is off" in text
    assert "ask Ann" not in text
