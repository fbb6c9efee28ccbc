"""Commands that lease, ack, and look after what was leased."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import LeaseLost, Position, Queue
from fdbqueue.cli import errors
from fdbqueue.cli.settling import with_those_held
from fdbqueue.cli.watchdog import run_one
from fdbqueue.engine import FDBError
from fdbqueue.layers.consumer import Watchdog
from fdbqueue.layers.leases import DeadLetters, LeaseHandle, Leases, constant
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.streams import Stream, Terms
from tests.cli.conftest import Run
from tests.cli.test_terminal import on_terminal
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.engines("file", "cluster")


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def leases(name: str) -> Leases:
    return Leases(fdbqueue.Queue(tuple(json.loads(name)), codec="json"), max_attempts=1)


def kill(db: Any, leases: Leases, *values: str) -> None:
    leases.enqueue_many(db, values)
    for lease in leases.lease_many(db):
        leases.nack(db, lease, error=f"no {lease.value}")


def test_leased_items_are_piped_into_ack_and_gone(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2", "3")

    leased = run("lease", name, "--limit", "2", "--consumer", "me", "--duration", "60").stdout

    assert [(line["value"], line["attempt"]) for line in lines(leased)] == [(1, 1), (2, 1)]
    assert run("ack", name, stdin=leased).exit_code == 0
    stats = lines(run("stats", name).stdout)[0]
    assert (stats["available"], stats["leased"], stats["dequeued"]) == (1, 0, 2)
    assert lines(run("check", name).stdout)[0]["ok"]


@pytest.mark.parametrize("command", ["ack", "nack"])
def test_an_empty_input_changes_nothing_and_says_so(run: Run, name: str, command: str) -> None:
    ended = run(command, name, stdin="")

    assert ended.exit_code == errors.EMPTY
    assert "Standard input had no handles of leases: nothing was" in ended.stderr


def test_a_lease_of_nothing_exits_with_1(run: Run, name: str) -> None:
    assert run("lease", name).exit_code == errors.EMPTY


def test_lost_leases_are_named_and_the_others_acked(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    first, second = (line["lease"] for line in lines(run("lease", name, "-n", "2").stdout))
    assert run("ack", name, first).exit_code == 0

    again = run("ack", name, first, second)

    assert again.exit_code == errors.LOST
    assert "is lost" in again.stderr
    assert lines(run("stats", name).stdout)[0]["dequeued"] == 2


def test_a_lease_lost_during_the_report_of_others_is_reported_too() -> None:
    handles = [LeaseHandle(Position(index, b"r"), b"t") for index in range(4)]

    gone = [handles[1].position, handles[3].position]
    told: list[LeaseHandle] = []

    def ack(leases: list[LeaseHandle]) -> None:
        if gone:
            raise LeaseLost("", lost=[gone.pop()])

    assert with_those_held(ack, handles, on_lost=told.append) == [handles[0], handles[2]]
    assert told == [handles[3], handles[1]]


def test_leases_given_back_return_to_their_places_and_are_reported(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    leased = run("lease", name, "--limit", "2").stdout
    first, second = (line["lease"] for line in lines(leased))

    given_back = run("nack", name, "--error", "no paper", stdin=leased)

    assert given_back.exit_code == 0
    assert lines(given_back.stdout) == [
        {"lease": first, "fate": "available"},
        {"lease": second, "fate": "available"},
    ]
    assert lines(run("browse", name).stdout) == [1, 2]
    again = lines(run("lease", name).stdout)[0]
    assert (again["value"], again["attempt"], again["error"]) == (1, 2, "no paper")


def test_a_lease_is_given_back_for_later_or_for_good(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    first, second = (line["lease"] for line in lines(run("lease", name, "-n", "2").stdout))

    assert lines(run("nack", name, first, "--delay", "60").stdout)[0]["fate"] == "delayed"
    assert lines(run("nack", name, second, "--max-attempts", "1", "--error", "jam").stdout)[0]["fate"] == "dead"
    assert [(letter["value"], letter["error"]) for letter in lines(run("dead", name).stdout)] == [(2, "jam")]


def test_a_lease_that_is_given_back_waits_by_the_back_off_of_its_queue(
    run: Run, name: str, db: Any, leases: Leases
) -> None:
    leases.queue.register(db, max_attempts=None, backoff=constant(60))
    run("enqueue", name, "1", "2")
    first, second = (line["lease"] for line in lines(run("lease", name, "-n", "2").stdout))
    assert lines(run("nack", name, first).stdout)[0]["fate"] == "delayed"
    assert lines(run("nack", name, second, "--delay", "0").stdout)[0]["fate"] == "available"


def test_a_lost_lease_can_not_be_given_back_and_the_others_are(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    first, second = (line["lease"] for line in lines(run("lease", name, "-n", "2").stdout))
    run("ack", name, first)

    given_back = run("nack", name, first, second)

    assert given_back.exit_code == errors.LOST
    assert "is lost" in given_back.stderr
    assert [line["lease"] for line in lines(given_back.stdout)] == [second]
    assert run("nack", name, stdin="nonsense\n").exit_code == errors.VALUE


def bundles_given_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many leases each transaction gives back, as it happens."""
    sizes: list[int] = []
    give_back = Leases.nack_many

    def counting(self: Leases, db: Any, handles: list[Any], **terms: Any) -> Any:
        sizes.append(len(handles))
        return give_back(self, db, handles, **terms)

    monkeypatch.setattr(Leases, "nack_many", counting)
    return sizes


def test_many_leases_are_given_back_in_batches_and_each_is_reported(
    run: Run, db: Any, name: str, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.cli.settling.NACKED_AT_ONCE", 3)
    sizes = bundles_given_back(monkeypatch)
    leases.enqueue_many(db, range(8))
    handles = [str(lease.handle) for lease in leases.lease_many(db)]
    leases.ack(db, LeaseHandle.parse(handles[1]))

    given_back = run("nack", name, *handles[:5], handles[3], *handles[5:])

    assert sizes == [3, 2, 2, 3, 2, 1], "without a lost one again; what is named twice comes in another one"
    assert given_back.exit_code == errors.LOST
    assert [line["lease"] for line in lines(given_back.stdout)] == [handles[0], *handles[2:]]
    assert [re.findall(r"The lease (\S+) is lost", line) for line in given_back.stderr.splitlines()] == [
        [handles[1]],
        [handles[3]],
    ]
    assert leases.stats(db).dead == 7, "by the queue's policy"


def test_leases_before_a_bad_handle_are_given_back(run: Run, name: str) -> None:
    run("enqueue", name, "1", "2")
    leased = run("lease", name, "-n", "2").stdout

    refused = run("nack", name, stdin=leased + "nonsense\n")

    assert refused.exit_code == errors.VALUE
    assert "Line 3" in refused.stderr
    assert [line["fate"] for line in lines(refused.stdout)] == ["available"] * 2


@pytest.mark.slow
def test_large_items_are_given_back_in_several_transactions(
    run: Run, db: Any, name: str, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.cli.settling.NACKED_AT_ONCE", 200)
    sizes = bundles_given_back(monkeypatch)
    leases.queue.enqueue_many(db, ["x" * 85_000] * 130)
    leased = run("lease", name, "--limit", "130", "--duration", "600").stdout

    assert len(lines(run("nack", name, stdin=leased).stdout)) == 130
    assert sizes == [130, 65, 65]
    assert leases.stats(db).dead == 130


def test_dead_letters_are_redriven_and_purged_by_their_names_together(
    run: Run, db: Any, name: str, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(db, leases, *"abcde")
    a, b, c, d, e = (letter["item"] for letter in lines(run("dead", name).stdout))
    asked: list[int] = []
    deal = DeadLetters._all

    def counting(self: DeadLetters, db: Any, verb: str, how: Any, names: Any, limit: Any) -> Any:
        asked.append(len(names))
        return deal(self, db, verb, how, names, limit)

    monkeypatch.setattr(DeadLetters, "_all", counting)
    assert run("redrive", name, c, a, c, "--tail").exit_code == 0
    assert lines(run("browse", name).stdout) == ["c", "a"]
    assert run("redrive", name, b, d, "--limit", "1").exit_code == 0
    assert run("purge", name, d, e, "--yes").exit_code == 0
    assert asked == [3, 2, 2]
    assert run("redrive", name, b, d, e).exit_code == errors.EMPTY
    assert lines(run("browse", name).stdout) == ["b", "c", "a"]


@pytest.mark.parametrize("line", ["nonsense", '{"no": "lease"}', '"7:zz"'])
def test_a_bad_lease_handle_is_refused_with_its_line(run: Run, name: str, line: str) -> None:
    refused = run("ack", name, stdin=line + "\n")

    assert refused.exit_code == errors.VALUE
    assert "Line 1" in refused.stderr


def test_dead_letters_are_shown_and_redriven_one_by_one_or_all(run: Run, name: str, db: Any, leases: Leases) -> None:
    assert run("dead", name).exit_code == errors.EMPTY
    kill(db, leases, "a", "b", "c")

    letters = lines(run("dead", name).stdout)

    assert [(letter["value"], letter["error"]) for letter in letters] == [("a", "no a"), ("b", "no b"), ("c", "no c")]
    assert run("redrive", name, letters[1]["item"]).exit_code == 0
    assert lines(run("browse", name).stdout) == ["b"]
    assert run("redrive", name, "--all", "--tail").exit_code == 0
    assert lines(run("browse", name).stdout) == ["b", "a", "c"]
    assert run("redrive", name, "--all").exit_code == errors.EMPTY
    assert run("redrive", name, "nonsense").exit_code == errors.USAGE


def test_purge_removes_nothing_unasked(run: Run, name: str, db: Any, leases: Leases) -> None:
    kill(db, leases, "a", "b")

    assert run("purge", name, "--all").exit_code == errors.USAGE
    assert run("purge", name, "--yes").exit_code == errors.USAGE
    assert len(lines(run("dead", name).stdout)) == 2
    assert run("purge", name, "--all", "--yes", "--older-than", "3600").exit_code == errors.EMPTY
    assert run("purge", name, "--all", "--yes", "--limit", "1").exit_code == 0
    assert [letter["value"] for letter in lines(run("dead", name).stdout)] == ["b"]


def test_top_shows_each_queue_at_each_look(run: Run, name: str, db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["x", "y"])

    looks = lines(run("top", name, "--count", "2", "--interval", "0.1").stdout)

    assert [look["queue"] for look in looks] == [name, name]
    assert looks[1]["available"] == 2
    assert looks[1]["enqueued_per_s"] == 0
    assert looks[1]["oldest_age_s"] > 0


def test_top_stats_check_and_clear_know_what_a_stream_has(run: Run, name: str, db: Any, leases: Leases) -> None:
    leases.enqueue_many(db, ["x", "y", "z"])
    Stream(leases, "s").claim(db, Terms(epoch="e", batch=1, run="", items=2, size_bytes=100))

    look = lines(run("top", name, "--count", "1").stdout)[0]

    assert (look["claimed"], look["available"]) == (2, 1)
    assert lines(run("stats", name).stdout)[0]["claimed"] == 2
    assert lines(run("check", name).stdout)[0]["ok"]
    db.clear(leases.layout.streams["s"].pack(("batch", 1)))
    checked = run("check", name)
    assert checked.exit_code != 0
    assert "which has no record" in checked.stdout
    assert "streams" in lines(checked.stdout)[0]["looked_at"]
    assert run("clear", name, "--yes").exit_code == 0
    assert list(db[leases.layout.space.range()]) == []


def test_stats_and_top_count_waiting_calls(run: Run, name: str, db: Any, leases: Leases) -> None:
    staged = StagedQueue(leases)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.dequeue_many, db, limit=3, timeout=60)
        wait_until(lambda: staged.stats(db).requests)
        stats = lines(run("stats", name).stdout)[0]
        look = lines(run("top", name, "--count", "1").stdout)[0]
        leases.enqueue(db, "x")
        assert [item.value for item in waiting.result(60)] == ["x"]

    assert (stats["requests"], stats["wanted"]) == (1, 3)
    assert (look["requests"], look["wanted"]) == (1, 3)
    assert lines(run("stats", name).stdout)[0]["requests"] == 0


def test_the_watchdog_runs_a_command_for_each_expired_lease(
    run: Run, name: str, db: Any, leases: Leases, tmp_path: Path
) -> None:
    past = Leases(Queue(leases.layout.space, codec=leases.queue.codec), clock=lambda: 1_000.0)
    past.enqueue_many(db, ["x", "y"])
    past.lease_many(db, consumer="printer 3")
    told = tmp_path / "told"
    script = f"import os; open({str(told)!r}, 'a').write(os.environ['FDBQUEUE_CONSUMER'] + ';')"

    swept = run("watchdog", name, "--once", "--exec", f'{sys.executable} -c "{script}"')

    assert swept.exit_code == 0
    assert [(line["consumer"], line["fate"]) for line in lines(swept.stdout)] == [("printer 3", "available")] * 2
    assert told.read_text() == "printer 3;printer 3;"
    assert lines(run("browse", name).stdout) == ["x", "y"]


@pytest.mark.slow
@pytest.mark.engines("file")
def test_a_terminal_shows_tables(name: str, url: str, db: Any, leases: Leases) -> None:
    kill(db, leases, "teapot")
    leases.enqueue(db, "cup")

    code, shown = on_terminal("dead", name, url=url)
    assert code == 0
    assert "teapot" in shown
    assert "no teapot" in shown
    code, shown = on_terminal("top", name, "--count", "1", url=url)
    assert code == 0
    assert "age s" in shown
    assert "claimed" in shown
    assert "wait" in shown
    code, shown = on_terminal("lease", name, url=url)
    assert code == 0
    assert "attempt" in shown


@pytest.mark.slow
@pytest.mark.engines("file")
@pytest.mark.parametrize(("answer", "left"), [("n", 2), ("y", 0)])
def test_purge_asks_on_a_terminal(name: str, url: str, db: Any, leases: Leases, answer: str, left: int) -> None:
    kill(db, leases, "a", "b")

    _, shown = on_terminal("purge", name, "--all", url=url, typed=answer + "\n")

    assert "Remove up to 2 dead letters" in shown
    assert leases.stats(db).dead == left


def test_purge_does_not_ask_about_no_dead_letters(run: Run, name: str) -> None:
    run("enqueue", name, "1")

    for arguments in ["--all"], ["1:00"], ["--all", "--limit", "3"], ["--where", "color = 'red'"]:
        purged = run("purge", name, *arguments)
        assert (purged.exit_code, purged.stderr) == (errors.EMPTY, "The queue has no dead letters to remove.\n")


@pytest.mark.parametrize(
    ("arguments", "number"),
    [(["--all", "--limit", "1"], 1), (["1:00", "2:00"], 2), (["--all", "--limit", "9"], 3), (["--where", "1 = 1"], 3)],
)
def test_purge_asks_about_as_many_as_it_may_remove(
    run: Run, name: str, db: Any, leases: Leases, arguments: list[str], number: int
) -> None:
    kill(db, leases, "a", "b", "c")

    assert f"to remove up to {number} dead letters" in run("purge", name, *arguments).stderr.replace("\n", " ")


def test_more_is_leased_than_fits_into_one_transaction(run: Run, name: str, db: Any, leases: Leases) -> None:
    leases.queue.enqueue_many(db, ["x" * 300_000] * 12)

    assert len(lines(run("lease", name, "--limit", "11", "--duration", "600").stdout)) == 11
    assert leases.stats(db).available == 1


class SilentAtFirst:
    """A database that does not answer at once."""

    def __init__(self, db: Any, dog: Watchdog) -> None:
        self._db = db
        self._dog = dog
        self._silent = 3  # the first time two transactions ask, one of them for old markers

    def create_transaction(self) -> Any:
        self._silent -= 1
        if self._silent >= 0:
            raise FDBError(1031)
        self._dog.stop()
        return self._db.create_transaction()


def test_a_watchdog_outlives_a_database_that_does_not_answer(
    db: Any, leases: Leases, capsys: pytest.CaptureFixture[str]
) -> None:
    dog = Watchdog(leases)
    silent: Any = SilentAtFirst(db, dog)
    run_one(dog, silent)
    assert capsys.readouterr().err == "The database did not answer in time.\n" * 2


def test_an_error_is_told_as_text_whatever_raised_it() -> None:
    class Theirs(FDBError):
        description = b"Invalid API call"  # type: ignore[assignment]

    assert errors.told(Theirs(2000)) == "Invalid API call (2000)."
    assert errors.told(FDBError(2000)) == "Invalid API call (2000)."
    assert "may have taken effect" in errors.told(FDBError(1031))
    assert errors.told(errors.BadValue("no JSON")) == "no JSON"


def test_an_item_that_can_not_be_read_is_buried_and_shown(run: Run, name: str, db: Any, leases: Leases) -> None:
    place = leases.enqueue(db, "x")
    db[leases.layout.item_key(place)] = b"\x10{"
    other = leases.enqueue(db, "y")

    assert run("bury", name, place.text, other.text, "--error", "no such order").exit_code == 0
    shown = [json.loads(line) for line in run("dead", name).stdout.splitlines()]

    assert [(one["item"], one["value"], one["error"]) for one in shown] == [
        (place.text, None, "no such order"),
        (other.text, "y", "no such order"),
    ]
    again = run("bury", name, place.text)
    assert again.exit_code == errors.EMPTY
    assert f"The item {place.text} is not available: it is dead." in again.stderr
    assert run("cancel", name, place.text).exit_code == 0


def test_a_buried_item_keeps_its_last_error_unless_another_is_given(
    run: Run, name: str, db: Any, leases: Leases
) -> None:
    plain = Leases(Queue(leases.layout.space, codec=leases.queue.codec))
    first, second, third, last = (plain.enqueue(db, value) for value in "abcd")
    for lease in plain.lease_many(db):
        plain.nack(db, lease, error=f"no {lease.value}")

    assert run("bury", name, first.text).exit_code == 0
    assert run("bury", name, second.text, "--error", "gave up").exit_code == 0
    assert run("bury", name, third.text, "--error", "").exit_code == 0
    assert leases.dead.bury(db, last, error="")

    assert [one["error"] for one in lines(run("dead", name).stdout)] == ["no a", "gave up", "no c", "no d"]


def test_a_watchdog_says_that_it_runs(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdbqueue.cli.watchdog.run_one", lambda dog, db: None)
    assert run("watchdog", name).stderr.startswith(f"Looking after {name}, at least every 1 s. Ctrl-C ends it.\n")
