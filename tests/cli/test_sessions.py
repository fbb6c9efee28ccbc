"""Commands over queues with sessions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.cli.sessions import COLUMNS
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.sessions import Gate, Sessions
from fdbqueue.stored.names import session_named
from tests.cli.conftest import Run
from tests.cli.test_terminal import on_terminal
from tests.helpers.sessions import lease_of

pytestmark = pytest.mark.engines("file", "cluster")


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def sessions(name: str) -> Sessions:
    return Sessions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"))


def test_items_of_sessions_are_leased_in_their_order_and_acked(run: Run, name: str) -> None:
    for session, value in (("ann", "1"), ("ann", "2"), ('["bob", 7]', "3")):
        assert run("enqueue", name, value, "--session", session).exit_code == 0
    assert run("enqueue", name, '"now"', "--session", "ann", "--level", "0").exit_code == 0

    leased = run("lease", name, "--sessions", "--limit", "9", "--consumer", "me")

    assert [(one["session"], one["value"], one["level"]) for one in lines(leased.stdout)] == [
        ("ann", "now", 0),
        (["bob", 7], 3, 1),
    ]
    assert run("lease", name, "--sessions").exit_code == errors.EMPTY
    assert run("ack", name, stdin=leased.stdout).exit_code == 0
    assert [one["value"] for one in lines(run("lease", name, "--sessions", "-n", "5").stdout)] == [1]
    assert run("ack", name, stdin=leased.stdout).exit_code == errors.LOST
    assert lines(run("check", name).stdout)[0]["ok"]


def test_a_session_is_given_back(run: Run, name: str) -> None:
    run("enqueue", name, "1", "--session", "ann")
    run("enqueue", name, "2", "--plain")
    both = run("lease", name, "--sessions").stdout + run("lease", name).stdout

    given = run("nack", name, "--error", "printer is off", stdin=both)

    assert [one["fate"] for one in lines(given.stdout)] == ["available", "available"]
    assert lines(run("lease", name, "--sessions").stdout)[0]["error"] == "printer is off"


def test_a_wrong_codec_blocks_no_session(run: Run, name: str) -> None:
    run("enqueue", name, "teapot", "--session", "ann", "--codec", "str")

    assert run("lease", name, "--sessions", "--codec", "json").exit_code == errors.VALUE
    assert lines(run("lease", name, "--sessions").stdout)[0]["value"] == "teapot"


def test_sessions_are_listed_with_their_workers(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    sessions.enqueue_many(db, ["ann", "ann", "bob"], session=lambda value: value)
    sessions.enqueue(db, "later", session=b"cid", delay=600)
    lease_of(Sessions(sessions.queue, consumer="worker 7"), db)

    found = lines(run("sessions", name).stdout)

    assert [(one["session"], one["status"], one["items"], one["delayed"]) for one in found] == [
        ({"base64": "Y2lk"}, "waiting", 0, 1),
        ("ann", "busy", 2, 0),
        ("bob", "ready", 1, 0),
    ]
    assert found[1]["worker"] == "worker 7"
    assert found[1]["until"] > found[1]["since"]
    assert [one["session"] for one in lines(run("sessions", name, "--status", "busy").stdout)] == ["ann"]
    assert [one["session"] for one in lines(run("sessions", name, "--after", "ann").stdout)] == ["bob"]
    assert run("sessions", name, "--status", "blocked").exit_code == errors.EMPTY


def test_a_session_is_paused_resumed_and_removed(run: Run, name: str) -> None:
    run("enqueue", name, "1", "--session", "ann")

    assert lines(run("sessions", name, "--pause", "ann").stdout)[0]["status"] == "paused"
    assert run("lease", name, "--sessions").exit_code == errors.EMPTY
    assert lines(run("sessions", name, "--resume", "ann").stdout)[0]["status"] == "ready"
    assert lines(run("sessions", name, "--remove", "ann").stdout)[0]["closing"]
    refused = run("enqueue", name, "2", "--session", "ann")
    assert refused.exit_code != 0
    assert "is being removed" in refused.stderr
    run("ack", name, stdin=run("lease", name, "--sessions").stdout)
    assert run("sessions", name).exit_code == errors.EMPTY
    assert run("sessions", name, "--remove", "ann").exit_code == errors.EMPTY


def test_a_lease_says_which_sessions_are_paused_or_blocked(run: Run, name: str, db: Any) -> None:
    for session in ("ann", "bob"):
        run("enqueue", name, "1", "--session", session)
        run("sessions", name, "--pause", session)
    typed = f"fdbqueue sessions '{json.dumps(json.loads(name))}'"

    told = run("lease", name, "--sessions")

    assert told.exit_code == errors.EMPTY
    assert told.stderr == f"2 sessions are paused, the first is 'ann'. Next: `{typed} --resume ann`.\n"
    run("sessions", name, "--resume", "ann")
    told = run("lease", name, "--sessions", "--limit", "2")
    assert told.exit_code == 0
    assert told.stderr == f"The session 'bob' is paused. Next: `{typed} --resume bob`.\n"
    run("ack", name, stdin=told.stdout)
    blocking = Sessions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"), max_attempts=1, on_dead="block")
    blocking.enqueue(db, 1, session="cid")
    lease = blocking.lease(db)
    assert lease is not None
    blocking.nack(db, lease, error="the printer burns")
    told = run("lease", name, "--sessions")
    assert told.exit_code == errors.EMPTY
    assert "is blocked" in told.stderr
    assert "is paused" in told.stderr


def test_a_blocked_session_is_redriven_or_skipped(run: Run, name: str, db: Any) -> None:
    sessions = Sessions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"), max_attempts=1, on_dead="block")
    for session in ("ann", "bob"):
        sessions.enqueue_many(db, [1, 2], session=session)
        sessions.nack(db, lease_of(sessions, db), error="no paper")

    assert [one["reason"] for one in lines(run("sessions", name, "--status", "blocked").stdout)] == ["no paper"] * 2
    assert lines(run("sessions", name, "--redrive", "ann").stdout)[0]["items"] == 2
    skipped = lines(run("sessions", name, "--skip", "bob").stdout)[0]
    assert (skipped["status"], skipped["items"], skipped["dead"]) == ("ready", 1, 1)


def test_the_dead_letters_of_a_session_are_purged_when_that_is_confirmed(run: Run, name: str, db: Any) -> None:
    sessions = Sessions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"), max_attempts=1)
    sessions.enqueue_many(db, range(102), session="ann")
    for _ in range(101):
        sessions.nack(db, lease_of(sessions, db), error="no paper")

    unasked = run("sessions", name, "--purge", "ann")
    assert (unasked.exit_code, "the 101 dead letters" in " ".join(unasked.stderr.split())) == (errors.USAGE, True)
    left = lines(run("sessions", name, "--purge", "ann", "--yes").stdout)[0]
    assert (left["items"], left["dead"]) == (1, 0)


def test_stats_check_and_top_know_sessions(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    assert "sessions_ready" not in lines(run("stats", name).stdout)[0]
    sessions.enqueue_many(db, ["ann", "ann", "bob"], session=lambda value: value)
    lease_of(sessions, db)

    stats = lines(run("stats", name).stdout)[0]
    assert (stats["sessions_ready"], stats["sessions_busy"], stats["sessions_available"]) == (1, 1, 3)
    checked = lines(run("check", name).stdout)[0]
    assert (checked["ok"], checked["items"]) == (True, 3)
    top = lines(run("top", name, "--count", "1").stdout)[0]
    assert (top["available"], top["leased"], top["enqueued"]) == (2, 1, 3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("1", "--level", "0"), "give --session too"),
        (("1", "--session", ""), "empty"),
        (("1", "--session", "[7"), "names no session"),
        (("1", "--session", "ann", "--priority", "0", "--levels", "3"), "take no --priority"),
        (("1", "--session", "ann", "--level", "256"), "less than or equal to 255"),
        (('{"value": 1}', "--session", "ann", "--records"), "take no --records"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Run, name: str, arguments: tuple[str, ...], told: str) -> None:
    refused = run("enqueue", name, *arguments)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.replace("│", " ").split())


def test_one_session_is_changed_at_a_time(run: Run, name: str) -> None:
    assert run("sessions", name, "--pause", "ann", "--resume", "bob").exit_code == 2
    assert run("lease", name, "--sessions", "--subscription", "red").exit_code == 2


@pytest.mark.slow
@pytest.mark.engines("file")
def test_a_terminal_shows_a_table_of_sessions(url: str, name: str, db: Any, sessions: Sessions) -> None:
    sessions.enqueue(db, 1, session=("shop", 7))
    code, shown = on_terminal("sessions", name, url=url, COLUMNS="140")
    assert code == 0
    assert '["shop", 7]' in shown
    assert "ready" in shown


@pytest.mark.slow
def test_a_session_that_waits_at_a_gate_is_shown_with_it(
    run: Run, db: Any, name: str, url: str, sessions: Sessions
) -> None:
    own = Sessions(sessions.queue, gates=lambda _: (Gate(("tenant", 1), 1),))
    for session in ("ann", "bob"):
        own.enqueue(db, 1, session=session)
    shown = lines(run("sessions", name, "--status", "gated").stdout)
    assert [(one["session"], one["gate"]) for one in shown] == [("bob", ["tenant", 1])]
    _, told = on_terminal("sessions", name, url=url, COLUMNS="200")
    assert 'waits at the gate ["tenant", 1]' in told
    leased = run("lease", name, "--sessions")
    assert run("ack", name, stdin=leased.stdout).exit_code == 0
    assert lines(run("lease", name, "--sessions").stdout)[0]["session"] == "bob"


def test_a_session_is_not_begun_without_the_gates_that_others_have(run: Run, name: str, db: Any) -> None:
    queue = fdbqueue.Queue(tuple(json.loads(name)), codec="json")
    gated = Sessions(queue, gates=lambda session: [Gate(("tenant", session[0]), limit=1)])
    gated.enqueue(db, 1, session=("acme", "ann"))

    refused = run("enqueue", name, "2", "--session", '["acme", "bob"]')

    assert refused.exit_code == errors.USAGE
    assert '["tenant", "acme"]' in refused.stderr.replace("\n", " ")
    assert "--gate" in refused.stderr
    assert gated.info(db, ("acme", "bob")) is None
    assert run("enqueue", name, "3", "--session", '["acme", "ann"]').exit_code == 0, "it keeps the gates that it has"
    given = run("enqueue", name, "4", "--session", '["acme", "bob"]', "--gate", '["tenant", "acme"]=1')
    assert given.exit_code == 0
    info = gated.info(db, ("acme", "bob"))
    assert info is not None
    assert (info.status, info.gate) == ("gated", ("tenant", "acme"))
    assert run("enqueue", name, "5", "--session", "free", "--gate", "none").exit_code == 0
    assert gated.check(db).problems == ()


def test_a_plain_item_beside_sessions_must_be_meant(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    assert run("enqueue", name, '"plain"').exit_code == 0
    sessions.enqueue(db, "in a session", session="ann")

    for refused in (run("enqueue", name, '"slip"'), run("subscribe", name, "all")):
        assert refused.exit_code == 2
        assert "--plain" in refused.stderr
        assert sessions.queue.stats(db).available == 1
    assert run("enqueue", name, '"meant"', "--plain").exit_code == 0
    assert run("subscribe", name, "all", "--plain").exit_code == 0
    assert run("enqueue", name, '"both"', "--plain", "--session", "ann").exit_code == 2
    assert sessions.queue.stats(db).available == 2
    assert sessions.stats(db).enqueued == 1


def test_a_wrong_gate_is_refused_before_anything_is_enqueued(run: Run, name: str, sessions: Sessions, db: Any) -> None:
    for wrong in ("acme", "acme=", "acme=many", "=3", "acme=-1", '["a"=2', "none"):
        more = ("--gate", "b=1") if wrong == "none" else ()
        refused = run("enqueue", name, "1", "--session", "ann", "--gate", wrong, *more)
        assert (refused.exit_code, "--gate" in refused.stderr) == (errors.USAGE, True), wrong
    assert run("enqueue", name, "1", "--gate", "a=1").exit_code == errors.USAGE
    assert sessions.info(db, "ann") is None


def test_the_watchdog_gives_back_what_dead_workers_of_sessions_held(
    run: Run, name: str, sessions: Sessions, db: Any
) -> None:
    def past() -> float:
        return time.time() - 1_000

    slow = Sessions(sessions.queue, clock=past)  # its leases are over by the clock of the command
    for session in ("ann", ("bob", 7)):
        slow.enqueue(db, 1, session=session)
        lease_of(slow, db)
    plain = Leases(sessions.queue, clock=past)
    plain.enqueue(db, 2)
    assert plain.lease(db) is not None

    told = run("watchdog", name, "--once", "--exec", "sh -c 'test $FDBQUEUE_FATE = available'")

    assert (told.exit_code, told.stderr) == (0, "")
    ended = lines(told.stdout)
    assert [one.get("session") for one in ended] == [None, "ann", ["bob", 7]]
    assert {one["fate"] for one in ended} == {"available"}
    assert sessions.stats(db).ready == 2


@pytest.mark.slow
def test_pages_and_lists_count_the_items_of_sessions(
    run: Run, name: str, sessions: Sessions, db: Any, url: str
) -> None:
    for number in range(3):
        sessions.enqueue(db, number, session="ann")
        sessions.enqueue(db, number, session=("bob", 7))
    sessions.enqueue(db, 9, session="ann", delay=1_000)
    lease_of(sessions, db)

    [page] = lines(run("inspect", name).stdout)
    found = [one for one in lines(run("queues").stdout) if one["queue"].startswith('["fdbqueue tests"')]
    listed = [one for one in found if json.loads(one["queue"]) == json.loads(name)]

    told = page["sessions"]
    assert told["totals"] == listed[0]["sessions"]
    assert (told["totals"]["ready"], told["totals"]["busy"], told["totals"]["available"]) == (1, 1, 6)
    assert [one["session"] for one in told["busy"]] == ["ann"]
    sizes = [(one["session"], one["available"], one["delayed"]) for one in told["largest"]]
    assert sizes == [("ann", 3, 1), (["bob", 7], 3, 0)]
    assert (told["counted"], told["more"]) == (2, False)
    _, shown = on_terminal("inspect", name, url=url)
    assert "who works on what" in shown


def test_a_verb_without_an_effect_on_a_session_says_why(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    place = sessions.enqueue(db, "x", session="Ben")
    lease = sessions.lease(db)
    assert lease is not None
    sessions.nack(db, lease, delay=7_200)

    for verb, why in (
        ("--resume", "is not paused"),
        ("--skip", "is not blocked"),
        ("--redrive", "has no dead letters"),
        ("--purge", "has no dead letters"),
    ):
        told = run("sessions", name, verb, "Ben")
        assert told.exit_code == 0
        assert lines(told.stdout)[0]["status"] == "waiting"
        assert told.stderr.startswith(f"Ben {why}; its first item waits until 20")
        assert f"reschedule '{name}' {place.text} --session Ben --delay 0`." in told.stderr
    again = run("reschedule", name, place.text, "--session", "Ben", "--delay", "0")
    assert again.exit_code == 0
    assert run("sessions", name, "--resume", "Ben").stderr == "Ben is not paused; it is ready.\n"
    assert run("sessions", name, "--pause", "Ben").stderr == ""
    assert "it is paused: `fdbqueue sessions" in run("sessions", name, "--skip", "Ben").stderr
    assert run("sessions", name, "--resume", "Ben").stderr == ""


def test_a_busy_session_tells_that_it_is_paused(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    run("enqueue", name, "1", "--session", "ann")
    run("lease", name, "--sessions")
    assert run("sessions", name, "--resume", "ann").stderr == "ann is not paused; it is busy.\n"
    run("sessions", name, "--pause", "ann")
    [record] = lines(run("sessions", name).stdout)
    assert (record["status"], record["paused"]) == ("busy", True)
    info = sessions.info(db, "ann")
    assert info is not None
    assert [column.cell(info) for column in COLUMNS][1] == "busy, paused"
    assert run("sessions", name, "--resume", "ann").stderr == ""


def test_a_mistyped_session_has_a_proposal(run: Run, name: str) -> None:
    run("enqueue", name, "1", "--session", "Ben")
    run("enqueue", name, "1", "--session", '["shop", 7]')
    for option in ("--items", "--pause", "--resume", "--skip", "--redrive", "--purge"):
        told = run("sessions", name, option, "Bem")
        assert told.exit_code == errors.EMPTY
        assert told.stderr == "There is no session Bem. Did you mean Ben?\n"
    assert "Did you mean [" in run("sessions", name, "--items", '["shop", 8]').stderr


def test_a_pause_of_a_session_without_items_is_ended(run: Run, name: str, db: Any, sessions: Sessions) -> None:
    run("enqueue", name, "1")
    sessions.pause(db, "Ann")
    refused = run("rename", name, "elsewhere")
    assert "A paused session ends only after `fdbqueue sessions --resume`" in refused.stderr
    assert run("sessions", name, "--resume", "Ann").stderr == "The session Ann has nothing any more.\n"
    assert sessions.info(db, "Ann") is None


def test_what_is_not_there_is_told_with_what_is_in_sessions(run: Run, name: str, db: Any) -> None:
    typed = json.dumps(json.loads(name))
    for words in ("browse", "dead", "dead --by-error", "sessions", "redrive --all", "purge --all"):
        command, *options = words.split()
        told = run(command, name, *options)
        assert told.exit_code == errors.EMPTY
        assert told.stderr.startswith("The queue has no "), words
        assert told.stderr.count("\n") == 1
    paused = run("resume", name)
    assert paused.exit_code == errors.EMPTY
    assert paused.stderr.endswith(" was not paused.\n")
    run("enqueue", name, "1", "2", "--session", "Ben")
    hint = f"; 2 are in sessions: `fdbqueue sessions '{typed}'`.\n"
    assert run("browse", name).stderr == f"The queue has no available plain items{hint}"
    own = Sessions(fdbqueue.Queue(tuple(json.loads(name)), codec="json"), max_attempts=1)
    lease = own.lease(db)
    assert lease is not None
    own.nack(db, lease)
    hint = f"; 1 is in sessions: `fdbqueue sessions '{typed}'`.\n"
    assert run("dead", name).stderr == f"The queue has no dead letters{hint}"
    assert run("redrive", name, "--all").stderr == f"The queue has no dead letters to redrive{hint}"


def test_the_names_of_sessions_in_json_can_be_given_back(run: Run, name: str, sessions: Sessions, db: Any) -> None:
    names: list[Any] = ["ann", ("vip", 7), '["vip", 7]', b"cid", '{"text": "x"}', "a\nb"]
    for one in names:
        sessions.enqueue(db, "x", session=one)
    shown = [one["session"] for one in lines(run("sessions", name, "--json").stdout)]
    texts = [one if isinstance(one, str) else json.dumps(one) for one in shown]
    assert {session_named(text) for text in texts} == set(names)
    for text in texts:
        assert run("sessions", name, "--items", text).exit_code == 0


def test_a_removed_session_may_keep_the_items_that_come_later(run: Run, name: str, sessions: Sessions, db: Any) -> None:
    sessions.enqueue(db, "x", session="ann")
    assert run("sessions", name, "--remove", "ann").exit_code == 0
    refused = run("enqueue", name, "1", "--session", "ann")
    assert refused.exit_code == errors.FULL
    assert "or remove it with --later renew, which keeps later items" in refused.stderr
    assert run("sessions", name, "--remove", "ann", "--later", "renew").exit_code == 0
    assert run("enqueue", name, "1", "--session", "ann").exit_code == 0


def test_later_items_go_with_a_removal_only(run: Run, name: str) -> None:
    wrong = run("sessions", name, "--pause", "ann", "--later", "renew")
    assert wrong.exit_code == errors.USAGE
    assert "it goes with --remove only" in wrong.stderr
