"""Commands that wait for the end of items and groups, and say how they ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.cli import errors, parts
from fdbqueue.cli.helptext import with_limits
from fdbqueue.cli.parts import HOLD_SECONDS
from fdbqueue.layers import Groups, Leases, Results, Sessions, StagedQueue
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file", "cluster")
TO_WAIT = "30"


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def queue(name: str) -> Queue:
    return fdbqueue.Queue(tuple(json.loads(name)), codec="json")


@pytest.fixture
def leases(queue: Queue) -> Leases:
    return Leases(queue, max_attempts=1)


@contextmanager
def worker(work: Callable[[], object]) -> Iterator[None]:
    """Work in a thread, while a command waits in this one. Raise what it raised."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def squares(db: Any, leases: Leases, count: int) -> Callable[[], None]:
    """Return work that leases so many items, waits for each, and acks it with its square."""
    staged = StagedQueue(leases)

    def work() -> None:
        for _ in range(count):
            lease = staged.lease(db, timeout=30)
            assert lease is not None
            leases.ack(db, lease, result=lease.value**2)

    return work


def test_an_enqueue_waits_for_its_items_and_prints_their_results(run: Run, name: str, db: Any, leases: Leases) -> None:
    with worker(squares(db, leases, 3)):
        ended = run("enqueue", name, "7", "8", "9", "--wait")
    assert (ended.exit_code, ended.stdout) == (0, "49\n64\n81\n")


def test_a_line_of_json_says_how_each_item_ended(run: Run, name: str, db: Any, leases: Leases) -> None:
    def work() -> None:
        staged = StagedQueue(leases)
        for fails in (True, False):
            lease = staged.lease(db, timeout=30)
            assert lease is not None
            if fails:
                leases.nack(db, lease, error="no paper")
            else:
                leases.ack(db, lease, result={"pages": 3})

    with worker(work):
        ended = run("enqueue", name, "1", "2", "--wait", TO_WAIT, "--json")
    dead, done = lines(ended.stdout)
    assert ended.exit_code == errors.DEAD
    assert (dead["state"], dead["error"]) == ("dead", "no paper")
    assert (done["state"], done["result"]) == ("done", {"pages": 3})
    assert Results(leases).completion(db, done["item"]).wait(timeout=600) == {"pages": 3}
    assert "became a dead letter" in ended.stderr


def test_an_item_that_has_not_ended_in_time_stays_and_is_named(run: Run, name: str, db: Any, leases: Leases) -> None:
    ended = run("enqueue", name, "7", "--wait", "0", "--json")
    [told] = lines(ended.stdout)
    assert (ended.exit_code, told["state"]) == (errors.TIMED_OUT, "pending")
    assert told["item"] in ended.stderr
    squares(db, leases, 1)()
    assert Results(leases).completion(db, told["item"]).wait(timeout=600) == 49


def test_a_wait_outlasts_the_time_of_a_transaction(
    run: Run, name: str, db: Any, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOOK_SECONDS", 0.01)
    assert run("enqueue", name, "7", "--wait", "0.1").exit_code == errors.TIMED_OUT


def test_an_item_that_expires_or_is_cancelled_has_an_exit_code_of_its_own(run: Run, name: str, db: Any) -> None:
    expired = run("enqueue", name, "7", "--ttl", "0.05", "--wait", TO_WAIT)
    assert (expired.exit_code, expired.stdout) == (errors.EXPIRED, "")

    def cancel() -> None:
        groups = Groups(Leases(Queue(tuple(json.loads(name)))))
        while not any(group.stats(db).available for group in groups.list(db)):
            pass
        groups.group(db, "book").cancel(db)

    with worker(cancel):
        cancelled = run("enqueue", name, "8", "--group", "book", "--wait", TO_WAIT)
    assert cancelled.exit_code == errors.REMOVED
    assert "its group was cancelled" in cancelled.stderr


def test_an_enqueue_waits_for_items_of_sessions(run: Run, name: str, db: Any, queue: Queue) -> None:
    sessions = Sessions(queue)

    def work() -> None:
        lease = sessions.lease(db, timeout=30)
        assert lease is not None
        sessions.ack(db, lease, result=[lease.session, lease.value])

    with worker(work):
        ended = run("enqueue", name, "7", "--session", "ann", "--wait", TO_WAIT)
    assert (ended.exit_code, ended.stdout) == (0, '["ann",7]\n')


def test_records_and_lines_of_standard_input_are_waited_for_too(run: Run, name: str, db: Any, leases: Leases) -> None:
    with worker(squares(db, leases, 3)):
        by_lines = run("enqueue", name, "--wait", TO_WAIT, stdin="2\n3\n")
        by_records = run("enqueue", name, "--wait", TO_WAIT, "--records", stdin='{"value": 4, "headers": {"a": 1}}\n')
    assert (by_lines.stdout, by_records.stdout) == ("4\n9\n", "16\n")


def test_a_number_behind_wait_is_its_limit_and_anything_else_is_not() -> None:
    assert with_limits(["q", "--wait"]) == ["q", "--wait", "inf"]
    assert with_limits(["q", "--wait", '"x"']) == ["q", "--wait", "inf", '"x"']
    assert with_limits(["q", "--wait", "1.5", "7"]) == ["q", "--wait", "1.5", "7"]
    assert with_limits(["q", "--wait=3", "--", "--wait"]) == ["q", "--wait=3", "--", "--wait"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--wait", "-1"), "greater than or equal to 0"),
        (("--wait", "nan"), "greater than or equal to 0"),
        (("--json",), "give --wait too"),
        (("--group", ""), "1 to 100 bytes"),
        (("--group", "g" * 101), "1 to 100 bytes"),
        (("--wait", "--group", "g", "--codec", "str", "--headers", "7"), "Expected `object`"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_enqueued(
    run: Run, name: str, db: Any, queue: Queue, arguments: tuple[str, ...], told: str
) -> None:
    refused = run("enqueue", name, "7", *arguments)
    assert (refused.exit_code, refused.stdout) == (errors.USAGE, "")
    assert told in " ".join(refused.stderr.replace("│", " ").split())
    assert queue.is_empty(db)
    assert list(Groups(Leases(queue)).list(db)) == []


def test_items_join_a_group_which_is_closed_and_waited_for(run: Run, name: str, db: Any, leases: Leases) -> None:
    assert run("enqueue", name, "1", "2", "--group", "book").exit_code == 0
    assert run("enqueue", name, "--group", "book", stdin="3\n").exit_code == 0
    [listed] = lines(run("groups", name).stdout)
    assert (listed["group"], listed["state"], listed["available"]) == ("book", "open", 3)
    squares(db, leases, 3)()
    open_yet = run("groups", name, "book", "--wait", "0")
    assert (open_yet.exit_code, lines(open_yet.stdout)[0]["ended"]) == (errors.TIMED_OUT, False)

    done = run("groups", name, "book", "--close", "--wait")

    assert (done.exit_code, lines(done.stdout)[0]["state"], lines(done.stdout)[0]["done"]) == (0, "done", 3)
    refused = run("enqueue", name, "4", "--group", "book")
    assert (refused.exit_code, "is done" in refused.stderr) == (errors.USAGE, True)
    assert lines(run("check", name).stdout)[0]["ok"]


def test_a_closed_group_takes_items_as_long_as_it_is_open_and_is_not_held_again(
    run: Run, name: str, db: Any, leases: Leases
) -> None:
    run("enqueue", name, "1", "--group", "book")
    run("groups", name, "book", "--close")
    assert run("enqueue", name, "2", "--group", "book").exit_code == 0
    squares(db, leases, 2)()
    assert Groups(leases).group(db, "book").wait(timeout=600).done == 2


def test_a_group_of_a_program_is_not_held_by_the_command(run: Run, name: str, db: Any, leases: Leases) -> None:
    group = Groups(leases).open(db, "book")
    run("enqueue", name, "1", "--group", "book")
    group.close(db)
    squares(db, leases, 1)()
    assert group.wait(timeout=600).done == 1


def test_a_group_that_no_command_closes_ends_after_an_hour(run: Run, name: str, db: Any, queue: Queue) -> None:
    run("enqueue", name, "1", "--group", "book")
    clock = Leases(queue).clock
    later = Leases(queue, clock=lambda: clock() + HOLD_SECONDS + 60)
    squares(db, later, 1)()
    assert Groups(later).group(db, "book").wait(timeout=600).done == 1


def test_a_group_is_cancelled(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2", "--group", "book")
    cancelled = run("groups", name, "book", "--cancel")
    assert (cancelled.exit_code, lines(cancelled.stdout)[0]["cancelled"]) == (0, 2)
    waited = run("groups", name, "book", "--wait", TO_WAIT)
    assert (waited.exit_code, lines(waited.stdout)[0]["state"]) == (errors.REMOVED, "cancelled")
    assert lines(run("stats", name).stdout)[0]["available"] == 0


def test_groups_of_items_in_sessions_are_listed_apart(run: Run, name: str) -> None:
    for group in ("a", "b", "c"):
        run("enqueue", name, "1", "--group", group, "--session", "ann")
    run("enqueue", name, "1", "--group", "plain", "--plain")
    assert [one["group"] for one in lines(run("groups", name).stdout)] == ["plain"]
    assert [one["group"] for one in lines(run("groups", name, "--sessions").stdout)] == ["a", "b", "c"]
    assert [one["group"] for one in lines(run("groups", name, "-S", "--after", "a", "-n", "1").stdout)] == ["b"]
    assert lines(run("groups", name, "b", "-S", "--cancel").stdout)[0]["cancelled"] == 1


def test_a_group_that_is_not_there_exits_with_1_and_a_wrong_use_with_2(run: Run, name: str) -> None:
    run("enqueue", name, "1")
    none = run("groups", name)
    assert (none.exit_code, none.stdout, none.stderr) == (1, "", "The queue has no groups of plain items.\n")
    for options in ((), ("--wait",), ("--close",)):
        missing = run("groups", name, "book", *options)
        assert (missing.exit_code, missing.stdout) == (errors.EMPTY, "")
        assert "Nothing is known of the group" in missing.stderr
    assert run("groups", name, "book", "--cancel").exit_code == errors.USAGE
    assert run("groups", name, "--close").exit_code == errors.USAGE
    assert run("groups", name, "book", "--close", "--cancel").exit_code == errors.USAGE


def test_an_ack_stores_results_of_the_option_and_of_the_lines(run: Run, name: str, db: Any, queue: Queue) -> None:
    results, of_sessions = Results(Leases(queue)), Results(Sessions(queue))
    first, second = results.enqueue(db, 1), results.enqueue(db, 2)
    third = of_sessions.enqueue(db, 3, session="ann")
    leased = lines(run("lease", name, "-n", "2").stdout) + lines(run("lease", name, "--sessions").stdout)
    assert all(one["wants_result"] for one in leased)
    leased[1]["result"] = {"base64": "/w=="}
    text = "".join(json.dumps(one) + "\n" for one in leased)

    assert run("ack", name, "--result", '{"paid": 9}', stdin=text).exit_code == 0

    assert first.wait(timeout=600) == {"paid": 9}
    assert second.wait(timeout=600) == b"\xff"
    assert third.wait(timeout=600) == {"paid": 9}


def test_a_result_that_can_not_be_stored_acks_nothing(run: Run, name: str, db: Any, queue: Queue) -> None:
    completion = Results(Leases(queue)).enqueue(db, 1)
    run("enqueue", name, "2")
    leased = lines(run("lease", name, "-n", "2").stdout)
    leased[1]["result"] = "x" * 100_000
    text = "".join(json.dumps(one) + "\n" for one in leased)

    refused = run("ack", name, stdin=text)

    assert refused.exit_code == errors.VALUE
    assert "100,005 bytes" in refused.stderr
    assert completion.outcome(db) is None
    for wrong in ("[7", "[" + "1" * 30 + "]", '{"base64": 7}'):
        assert run("ack", name, "--result", wrong, stdin=text).exit_code == errors.USAGE
    assert run("ack", name, stdin=json.dumps(leased[0] | {"result": 7})).exit_code == 0
    assert completion.wait(timeout=600) == 7


def test_leased_lines_with_a_wish_for_results_are_records(run: Run, name: str, db: Any, queue: Queue) -> None:
    Results(Leases(queue)).enqueue(db, 1)
    leased = run("lease", name).stdout
    assert run("enqueue", name, "--records", stdin=leased).exit_code == 0


def test_a_terminal_shows_a_table_of_groups(
    run: Run, name: str, db: Any, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    Groups(Leases(queue)).open(db, "book").enqueue_many(db, range(1_000))
    monkeypatch.setattr("fdbqueue.cli.parts.wants_table", lambda as_json: True)
    shown = run("groups", name)
    assert shown.exit_code == 0
    assert "book" in shown.stdout
    assert "1,000" in shown.stdout
