"""``fdbqueue watch``, and ``--where`` of the commands that look at items or change them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from fdbqueue import LeaseLost, Queue
from fdbqueue.cli.errors import Interrupted, OutputFailed
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Subscriptions
from tests.cli.conftest import Run
from tests.helpers.raw import raw

pytestmark = pytest.mark.engines("file", "cluster")


def painted(db: Any, space: Subspace, *, dead: bool = False) -> Leases[Any]:
    leases: Leases[Any] = Leases(Queue(space, codec="json"), max_attempts=1)
    for number, color in enumerate(["red", "blue", "red", "blue", "red"]):
        leases.enqueue(db, number, headers={"color": color, "n": number})
    if dead:
        leases.nack_many(db, leases.lease_many(db), error="no stock")
    return leases


def values(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines()]


def test_watch_prints_what_is_there_and_leaves_it(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space)
    printed = run("watch", name, "--head", "--timeout", "0")

    assert (printed.exit_code, values(printed.stdout)) == (0, [0, 1, 2, 3, 4])
    assert leases.stats(db).available == 5
    assert Subscriptions(leases).count(db) == 0, "it leaves no browser behind"
    assert run("watch", name, "--timeout", "0").exit_code == 1


def test_watch_goes_on_under_its_name(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space)
    assert values(run("watch", name, "--name", "audit", "--head", "--limit", "2").stdout) == [0, 1]
    leases.enqueue(db, 5)
    assert values(run("watch", name, "--name", "audit", "--timeout", "0").stdout) == [2, 3, 4, 5]
    assert run("watch", name, "--name", "audit", "--timeout", "0").exit_code == 1
    assert json.loads(run("subscriptions", name).stdout)["browser"]
    assert run("unsubscribe", name, "audit").exit_code == 0


@pytest.mark.parametrize("error", [OutputFailed("Broken pipe"), Interrupted(signal.SIGTERM)])
def test_items_that_watch_did_not_print_come_again_under_its_name(
    run: Run, db: Any, space: Subspace, name: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    Queue(space, codec="json").enqueue_many(db, range(3))
    with monkeypatch.context() as patched:
        patched.setattr("fdbqueue.cli.watch.write_lines", lambda lines: (_ for _ in ()).throw(error))
        assert run("watch", name, "--name", "audit", "--head", "--timeout", "0").exit_code != 0

    assert values(run("watch", name, "--name", "audit", "--timeout", "0").stdout) == [0, 1, 2]


def test_watch_goes_on_after_an_item_that_does_not_decode(run: Run, db: Any, space: Subspace, name: str) -> None:
    raw(space).enqueue(db, b"no json")
    Queue(space, codec="json").enqueue(db, 1)
    printed = run("watch", name, "--codec", "json", "--head", "--timeout", "0")

    assert values(printed.stdout) == [1]
    assert "does not decode" in printed.stderr


def test_watch_refuses_a_wrong_condition_and_the_name_of_a_subscription(
    run: Run, db: Any, space: Subspace, name: str
) -> None:
    assert run("subscribe", name, "red").exit_code == 0
    assert run("watch", name, "--name", "red").exit_code == 2
    assert run("watch", name, "--where", "color =").exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_prints_arrivals_until_a_signal_and_removes_its_browser(
    db: Any, space: Subspace, url: str, name: str, number: signal.Signals
) -> None:
    leases: Leases[Any] = Leases(Queue(space, codec="json"))
    leases.enqueue(db, "first")
    command = [sys.executable, "-m", "fdbqueue", "watch", name, "--head", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline()) == "first"
        leases.enqueue(db, "later")
        assert json.loads(watching.stdout.readline()) == "later"
        watching.send_signal(number)
        assert watching.wait(30) == 128 + number
    assert Subscriptions(leases).count(db) == 0


def test_browse_where_shows_items_whose_headers_fit(run: Run, db: Any, space: Subspace, name: str) -> None:
    painted(db, space)

    assert values(run("browse", name, "--where", "color = 'red'").stdout) == [0, 2, 4]
    assert values(run("browse", name, "--where", "color = 'red' AND n > 1", "--limit", "1").stdout) == [2]
    assert values(run("browse", name, "-w", "color = 'blue'", "--reverse").stdout) == [3, 1]
    assert values(run("browse", name, "-w", "fdbqueue_index = 2", "--records").stdout)[0]["value"] == 1
    assert run("browse", name, "--where", "color = 'green'").exit_code == 1
    assert run("browse", name, "--where", "color = ").exit_code == 2


def test_dead_redrive_and_purge_where(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space, dead=True)

    assert [one["value"] for one in values(run("dead", name, "--where", "color = 'red'").stdout)] == [0, 2, 4]
    assert run("redrive", name, "--where", "color = 'red'", "--limit", "2").exit_code == 0
    assert [item.value for item in leases.queue.browse(db)] == [0, 2]
    assert run("purge", name, "--where", "n = 1", "--yes").exit_code == 0
    assert [letter.value for letter in leases.dead.browse(db)] == [3, 4]
    assert run("purge", name, "--where", "n = 1", "--yes").exit_code == 1
    assert run("redrive", name, "--where", "fdbqueue_index = 4", "--tail").exit_code == 0
    assert [item.value for item in leases.queue.browse(db)] == [0, 2, 3]
    assert run("redrive", name, "1:00", "--where", "n = 1").exit_code == 2


def test_cancel_where_removes_fitting_items_in_all_states(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space)
    lease = leases.lease(db)
    assert lease is not None
    leases.enqueue(db, 5, headers={"color": "red"}, delay=1e6)

    assert run("cancel", name, "--where", "color = 'red'").exit_code == 2  # it asks, and there is no terminal
    assert run("cancel", name, "--where", "color = 'red'", "--limit", "1", "--yes").exit_code == 0
    with pytest.raises(LeaseLost, match="cancelled"):
        leases.ack(db, lease)
    assert run("cancel", name, "--where", "color = 'red'", "--yes").exit_code == 0
    assert [item.value for item in leases.queue.browse(db)] == [1, 3]
    assert (leases.stats(db).delayed, leases.check(db).problems) == (0, ())
    assert run("cancel", name, "--where", "color = 'red'", "--yes").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--where", "color =", "--yes"),
        ("1:00", "--where", "n = 1", "--yes"),
        ("1:00", "--limit", "1"),
        ("--where", "n = 1", "--session", "ann", "--yes"),
        (),
    ],
)
def test_a_wrong_cancel_removes_nothing(
    run: Run, db: Any, space: Subspace, name: str, arguments: tuple[str, ...]
) -> None:
    leases = painted(db, space)
    assert run("cancel", name, *arguments).exit_code == 2
    assert leases.stats(db).available == 5
