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
from tests.helpers import forked
from tests.helpers.nightly import at_night
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


def test_watch_refuses_another_codec_when_it_begins(run: Run, db: Any, space: Subspace, name: str) -> None:
    Queue(space, codec="json").register(db)
    printed = run("watch", name, "--codec", "msgpack", "--name", "audit", "--timeout", "5")
    assert printed.exit_code == 4
    assert "is registered with the codec 'json'" in printed.stderr
    assert Subscriptions(Queue(space, codec="json")).count(db) == 0


@pytest.mark.parametrize("error", [OutputFailed("Broken pipe"), Interrupted(signal.SIGTERM)])
def test_items_that_watch_did_not_print_come_again_under_its_name(
    run: Run, db: Any, space: Subspace, name: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    Queue(space, codec="json").enqueue_many(db, range(3))
    with monkeypatch.context() as patched:
        patched.setattr("fdbqueue.cli.taking.write_lines", lambda lines: (_ for _ in ()).throw(error))
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, *at_night(signal.SIGINT, signal.SIGHUP)])
def test_watch_prints_arrivals_until_a_signal_and_removes_its_browser(
    db: Any, space: Subspace, url: str, name: str, number: signal.Signals
) -> None:
    leases: Leases[Any] = Leases(Queue(space, codec="json"))
    leases.enqueue(db, "first")
    command = [sys.executable, "-m", "fdbqueue", "watch", name, "--head", "--url", url]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline()) == "first"
        leases.enqueue(db, "later")
        assert json.loads(watching.stdout.readline()) == "later"
        watching.send_signal(number)
        assert watching.wait(600) == 128 + number
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


def test_reschedule_where_moves_fitting_items_of_the_chosen_states(
    run: Run, db: Any, space: Subspace, name: str
) -> None:
    leases = painted(db, space)
    lease = leases.lease(db)
    assert lease is not None
    leases.enqueue(db, 5, headers={"color": "red"}, delay=1e6)
    red = ("--where", "color = 'red'")

    unasked = run("reschedule", name, *red, "--delay", "0")
    assert (unasked.exit_code, "to reschedule 4 items" in " ".join(unasked.stderr.split())) == (2, True)
    moved = run("reschedule", name, *red, "--state", "available", "--delay", "1000", "--limit", "1", "--yes")
    assert [list(one) for one in values(moved.stdout)] == [["item"]]
    assert (leases.stats(db).available, leases.stats(db).delayed) == (3, 2)
    assert run("reschedule", name, *red, "--state", "delayed", "--delay", "0", "--yes").exit_code == 0
    assert leases.stats(db).delayed == 0
    assert leases.stats(db).leased == 1, "the leased item was not chosen"
    assert run("reschedule", name, *red, "--delay", "1000", "--yes").exit_code == 0
    with pytest.raises(LeaseLost):
        leases.ack(db, lease)
    assert leases.check(db).problems == ()
    assert run("reschedule", name, "--where", "color = 'green'", "--delay", "1", "--yes").exit_code == 1
    assert run("reschedule", name, "1:00", "--state", "dead", "--delay", "1").exit_code == 2


def test_cancel_where_takes_the_chosen_states_only(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space)
    leases.enqueue(db, 5, headers={"color": "red"}, delay=1e6)

    assert run("cancel", name, "-w", "color = 'red'", "--state", "delayed", "--yes").exit_code == 0
    assert (leases.stats(db).available, leases.stats(db).delayed) == (5, 0)


def two_kinds(db: Any, space: Subspace) -> Leases[Any]:
    """Dead letters of two kinds: 0 and 2 for want of stock, 1 in time."""
    leases: Leases[Any] = Leases(Queue(space, codec="json"), max_attempts=1)
    for number, error in enumerate(["no stock", "TimeoutError: 3 s\ntraceback", "no stock"]):
        leases.enqueue(db, number, headers={"n": number})
        lease = leases.lease(db)
        assert lease is not None
        leases.nack(db, lease, error=error)
    return leases


def test_dead_letters_are_grouped_and_chosen_by_the_beginning_of_their_errors(
    run: Run, db: Any, space: Subspace, name: str
) -> None:
    leases = two_kinds(db, space)

    grouped = values(run("dead", name, "--by-error").stdout)
    assert grouped == [{"error": "no stock", "items": 2}, {"error": "TimeoutError: 3 s", "items": 1}]
    assert values(run("dead", name, "--by-error", "--where", "n > 0", "--limit", "1").stdout)[0]["items"] == 1
    assert [one["value"] for one in values(run("dead", name, "--error", "Timeout").stdout)] == [1]
    assert run("dead", name, "--error", "stock").exit_code == 1, "it is no beginning"
    assert run("dead", name, "--error", "").exit_code == 2
    assert run("redrive", name, "--error", "Timeout").exit_code == 0
    assert [item.value for item in leases.queue.browse(db)] == [1]
    assert run("purge", name, "--error", "no stock", "--where", "n = 2", "--yes").exit_code == 0
    assert [letter.value for letter in leases.dead.browse(db)] == [0]
    assert run("redrive", name, "--error", "no stock", "--all").exit_code == 2
    assert run("purge", name, "--error", "no stock").exit_code == 2, "it asks, and there is no terminal"
    assert run("purge", name, "--all", "--yes").exit_code == 0
    assert run("dead", name, "--by-error").exit_code == 1


def test_browse_shows_items_of_another_state(run: Run, db: Any, space: Subspace, name: str) -> None:
    leases = painted(db, space)
    leases.lease_many(db, limit=2)
    leases.enqueue(db, 5, headers={"color": "red"}, delay=1e6)

    assert values(run("browse", name, "--state", "leased").stdout) == [0, 1]
    assert values(run("browse", name, "--state", "delayed").stdout) == [5]
    assert values(run("browse", name, "--state", "leased", "-w", "color = 'red'").stdout) == [0]
    assert run("browse", name, "--state", "dead").exit_code == 1
