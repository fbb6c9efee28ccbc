"""Every view tells the same troubles of the same queues: the shell, the page, notebooks and the metrics."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shlex
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue import Queue, UnknownQueue
from fdbqueue.cli import app
from fdbqueue.cli.looking import figures_record
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, StagedQueue, Subscriptions
from fdbqueue.layers.subscriptions.records import SubscriptionPointer, pack_record, pointer_key
from fdbqueue.observe.figures import Wanted, find_wanted, read_these
from fdbqueue.observe.serving import Figures, scraped
from fdbqueue.reads.trouble import KINDS, SEVERITIES, Troubles
from fdbqueue.stored.items import envelope
from fdbqueue.stored.names import name_text, queue_text, session_named, session_text
from fdbqueue.verbs.queues import Registered
from fdbqueue.web import AdminApp
from tests.helpers.counted import Counted
from tests.helpers.troubles import NEVER_TOGETHER, PLANTS, an_hour_ago, plant
from tests.web.conftest import Browser

ALONE = [(kind,) for kind in PLANTS]
PAIRS = [pair for pair in combinations(PLANTS, 2) if frozenset(pair) not in NEVER_TOGETHER]
ALERTS = Path(fdbqueue.__file__).parents[1] / "containers/monitoring/alerts.yml"


def queue_of(kinds: tuple[str, ...]) -> Queue[Any]:
    return Queue(("-".join(kinds), "q"), codec="json")


def text_of(kinds: tuple[str, ...]) -> str:
    return name_text(("-".join(kinds), "q"))


@pytest.fixture
def own() -> Iterator[Any]:
    """A database without the queues of other tests."""
    with fdbqueue.open("memory:") as db:
        yield db


def kinds_of(found: Any) -> dict[str, set[str]]:
    told: dict[str, set[str]] = {}
    for one in found:
        told.setdefault(one.queue, set()).add(one.kind)
    return told


def shell(url: str, *arguments: str) -> list[dict[str, Any]]:
    ran = CliRunner().invoke(app, list(arguments), env={"FDBQUEUE_URL": url})
    assert ran.exit_code in (0, 1), (arguments, ran.output)
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_every_kind_is_planted_but_those_that_a_limit_decides() -> None:
    assert set(KINDS) - set(PLANTS) == {"old_item", "slow_commit"}


@pytest.mark.slow
def test_all_views_tell_the_same_troubles_alone_and_in_pairs(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'db'}?durability=relaxed"
    cases = [*ALONE, *PAIRS]
    with fdbqueue.open(url) as db:
        for kinds in cases:
            plant(db, queue_of(kinds), kinds)
        wanted = kinds_of(fdbqueue.troubles(db))

        # Each is found, and alone nothing else is.
        assert {text_of(kinds): set(kinds) for kinds in ALONE} == {
            text_of(kinds): wanted[text_of(kinds)] for kinds in ALONE
        }
        assert [kinds for kinds in PAIRS if not set(kinds) <= wanted[text_of(kinds)]] == []

        metrics: dict[str, set[str]] = {}
        lines = re.findall(
            r'^fdbqueue_troubles\{kind="(\w+)",queue="(.*)"\}', scraped(Figures(db, Wanted())).decode(), re.M
        )
        for kind, queue in lines:
            metrics.setdefault(queue.replace('\\"', '"'), set()).add(kind)
        assert metrics == wanted

        # A queue whose rename has not ended can't be looked at under this name: the error says why.
        opened = [kinds for kinds in cases if "rename_under_way" not in kinds]
        pages = Browser(AdminApp(db))
        for kinds in opened:
            page = queue_of(kinds).inspect(db)
            assert {one.kind for one in page.troubles} == wanted[text_of(kinds)], kinds
            shown = pages.text("queue", queue=text_of(kinds))
            assert set(re.findall(r'<li [^>]*data-kind="(\w+)"', shown)) == wanted[text_of(kinds)], kinds

        front: dict[str, set[str]] = {}
        ranks, after = [], ""
        while True:
            shown = pages.get("", after=after).text
            for row in re.findall(r"<tr>.*?</tr>", shown, re.S):
                if found := re.search(r'class="name"[^>]*>\s*<a [^>]*>(.*?)</a>', row):
                    name = html.unescape(found[1])
                    front[name] = set(re.findall(r'data-kind="(\w+)"', row))
                    severities = re.findall(r'class="(\w+)[^"]*" data-kind', row)
                    ranks.append(min((SEVERITIES.index(one) for one in severities), default=len(SEVERITIES)))
            more = re.search(r'<a href="/\?([^"]*)">More queues', shown)
            if more is None:
                break
            after = name
        assert {name: kinds for name, kinds in front.items() if kinds} == wanted
        assert ranks == sorted(ranks), "the queues with the worst troubles come first"

    assert kinds_of_records(shell(url, "troubles")) == wanted
    [health] = shell(url, "health")
    assert kinds_of_records(one for one in health["troubles"] if one["queue"]) == wanted
    assert {one["queue"] for one in health["troubles"] if one["severity"] == "problem"} == {
        problem.partition(": ")[0] for problem in health["problems"]
    }
    listed = {one["queue"]: one.get("troubles", []) for one in shell(url, "queues")}
    assert {name: {one["kind"] for one in found} for name, found in listed.items() if found} == wanted
    tops = shell(url, "top", *map(text_of, opened), "--count", "1")
    assert {one["queue"]: {found["kind"] for found in one["troubles"]} for one in tops} == {
        text_of(kinds): wanted[text_of(kinds)] for kinds in opened
    }
    assert kinds_of_records(shell(url, "top", "--count", "1")) == wanted
    for kinds in ALONE:
        if kinds in opened:
            [record] = shell(url, "inspect", text_of(kinds))
            assert [one["kind"] for one in record["troubles"]] == [*kinds]


def kinds_of_records(found: Any) -> dict[str, set[str]]:
    told: dict[str, set[str]] = {}
    for one in found:
        told.setdefault(one["queue"], set()).add(one["kind"])
    return told


@pytest.mark.parametrize("kind", PLANTS)
def test_a_trouble_has_all_that_a_person_needs(db: Any, space: Subspace, kind: str) -> None:
    queue: Queue[Any] = Queue(space[kind]["q"], codec="json")
    plant(db, queue, [kind])
    [one] = fdbqueue.troubles(db, within=queue.layout.space)
    assert one.kind == kind
    assert one.severity in SEVERITIES
    assert one.text.endswith((".", "?"))
    assert one.queue == queue_text(queue.layout.prefix)
    assert one.many >= 1
    assert one.method
    assert one.since is None or one.since <= time.time()
    words = shlex.split(one.command)
    assert words[0] == "fdbqueue"
    if words[1] != "--version":
        commands = {
            command.name or command.callback.__name__ for command in app.registered_commands if command.callback
        }
        assert words[1] in commands
        assert one.queue in words
        ran = CliRunner().invoke(app, [words[1], "--help"])
        for option in re.findall(r"--[\w-]+", one.command):
            assert option in ran.output


def test_the_named_parts_of_troubles(own: Any) -> None:
    for kind in PLANTS:
        plant(own, queue_of((kind,)), [kind])
    found = {one.kind: one for one in fdbqueue.troubles(own)}
    assert found["blocked_session"].session == "Bob"
    assert "dead letter: stock is negative" in found["blocked_session"].text
    assert found["paused_session"].session == "Eve"
    assert found["long_wait"].session == "Dan"
    assert found["stopped_schedule"].schedule == "clean"
    assert found["suspended_subscription"].subscription == "red"
    assert found["unreadable"].position == found["newer_format"].position
    assert found["unreadable"].position is not None
    assert found["dead_letters"].since is not None


def test_the_worst_come_first(own: Any) -> None:
    for kind in PLANTS:
        plant(own, queue_of((kind,)), [kind])
    found = fdbqueue.troubles(own)
    assert [SEVERITIES.index(one.severity) for one in found] == sorted(SEVERITIES.index(one.severity) for one in found)
    assert found.worst == "problem"
    number = sum(one.severity != "note" for one in found)
    assert found.heading == f"{number} things need you"
    assert Troubles().heading == "Nothing needs you"
    assert "severity" in found._repr_html_()


def test_one_queue_or_those_below_a_name(own: Any) -> None:
    plant(own, queue_of(("dead_letters",)), ["dead_letters"])
    plant(own, queue_of(("paused_queue",)), ["paused_queue"])
    [one] = fdbqueue.troubles(own, queue_of(("paused_queue",)).layout.space)
    assert one.kind == "paused_queue"
    [one] = fdbqueue.troubles(own, within="dead_letters")
    assert one.kind == "dead_letters"
    assert len(fdbqueue.troubles(own.create_transaction())) == 2
    assert len(asyncio.run(fdbqueue.troubles.aio(own))) == 2
    with pytest.raises(UnknownQueue, match="dead_letters"):
        fdbqueue.troubles(own, ("dead_letter", "q"))
    with pytest.raises(TypeError, match="not both"):
        fdbqueue.troubles(own, "a", within="b")


def test_a_first_item_is_old_by_the_limit_that_is_given(own: Any) -> None:
    plant(own, queue_of(("no_consumer",)), ["no_consumer"])
    assert {one.kind for one in fdbqueue.troubles(own, max_age=60.0)} == {"no_consumer", "old_item"}
    assert {one.kind for one in fdbqueue.troubles(own, max_age=7_200.0)} == {"no_consumer"}


def test_an_expired_lease_is_a_note_while_consumers_run(own: Any) -> None:
    queue = Queue("orders", codec="json")
    clock = time.time() - 8
    leases = Leases(queue, clock=lambda: clock)
    leases.enqueue_many(own, ["a", "b"])
    assert leases.lease(own, duration=1.0, consumer="dead")
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.severity) == ("expired_leases", "note")  # its consumer was there 7 seconds ago
    assert "a moment ago" in one.text
    old = Leases(Queue("old", codec="json"), clock=lambda: clock)
    old.enqueue_many(own, ["a", "b"])
    assert old.lease(own, duration=1.0, consumer="dead")
    assert Leases(old.queue, clock=lambda: clock).lease(own, duration=600.0, consumer="alive")
    [one] = fdbqueue.troubles(own, "old")
    assert (one.kind, one.severity) == ("expired_leases", "note")
    assert "1 consumer runs and will end it in a moment" in one.text


def test_consumers_that_run_excuse_no_lease_for_long(own: Any) -> None:
    clock = time.time() - 100
    leases = Leases(Queue("orders", codec="json"), clock=lambda: clock)
    leases.enqueue_many(own, ["a", "b"])
    assert leases.lease(own, duration=1.0, consumer="dead")
    assert leases.lease(own, duration=600.0, consumer="alive")
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.severity) == ("expired_leases", "problem")
    assert "1 consumer runs and did not end it" in one.text


def test_blocked_sessions_are_looked_for_among_so_many(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_RECORDS", "MOST_RECORDS_WITH_DEAD"):
        monkeypatch.setattr(f"fdbqueue.observe.reading.{name}", 2)
    queue = Queue("orders", codec="json")
    for session in ("a", "b", "c"):
        sessions: Sessions[Any] = Sessions(queue)
        sessions.enqueue(own, 1, session=session)
        sessions.pause(own, session)
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.many, one.session) == ("paused_session", 2, "a")


def test_nobody_ends_it_if_the_last_consumer_is_gone_for_long(own: Any) -> None:
    leases = Leases(Queue("orders", codec="json"), clock=lambda: time.time() - 40)
    leases.enqueue(own, "a")
    assert leases.lease(own, duration=1.0, consumer="dead")
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.severity, one.many) == ("expired_leases", "problem", 1)
    assert "nobody ends it" in one.text


def test_sessions_that_are_ready_are_no_items(own: Any) -> None:
    queue = Queue("orders", codec="json")
    leases, sessions = Leases(queue, clock=an_hour_ago), Sessions(queue, clock=an_hour_ago)
    sessions.enqueue_many(own, [1, 2, 3], session="ann")
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.text.partition(",")[0]) == ("no_consumer", "1 session is ready")
    leases.enqueue_many(own, ["a", "b"])
    sessions.enqueue(own, 1, session="bob")
    [one] = fdbqueue.troubles(own)
    assert one.text.partition(",")[0] == "2 items are available and 2 sessions are ready"


@pytest.mark.parametrize(("number", "told"), [(3, "3 timers are overdue"), (120, "100 or more timers are overdue")])
def test_all_views_have_one_number_of_late_timers(own: Any, number: int, told: str) -> None:
    queue = Queue("orders", codec="json")
    Leases(queue, clock=an_hour_ago).enqueue_many(own, [*range(number)], delay=60.0)
    Leases(queue).enqueue(own, "due this moment", delay=0.001)
    most = min(number, 100)

    [one] = fdbqueue.troubles(own)
    assert (one.many, one.text.partition(",")[0]) == (most, told)
    [figures] = read_these(own, [Registered(queue.layout.prefix)])
    assert figures_record(figures)["overdue"] == most
    page = queue.inspect(own)
    assert page.overdue == most
    assert told.replace(" are", "") in page.text()


def test_a_full_quota_whose_producers_wait_is_a_warning(own: Any) -> None:
    queue = Queue("orders", codec="json")
    Leases(queue).enqueue(own, "a", delay=3_600.0)
    queue.set_quota(own, 1, when_full="wait")
    [one] = fdbqueue.troubles(own)
    assert (one.kind, one.severity) == ("full_quota", "warning")
    queue.set_quota(own, 2)
    assert fdbqueue.troubles(own) == []


def test_dead_letters_beside_a_blocked_session_are_told_too(own: Any) -> None:
    queue = queue_of(("both",))
    plant(own, queue, ["blocked_session", "session_dead_letters"])
    blocked, dead = fdbqueue.troubles(own)
    assert (blocked.kind, blocked.many) == ("blocked_session", 1)
    assert (dead.kind, dead.many) == ("session_dead_letters", 1)


def test_the_reads_do_not_grow_with_items_or_sessions(own: Any) -> None:
    def reads(name: str, number: int) -> int:
        queue = Queue(name, codec="json")
        Leases(queue).enqueue_many(own, range(number))
        Sessions(queue).enqueue_many(own, range(number), session="one")
        for session in range(number):
            Sessions(queue).enqueue(own, session, session=f"s{session}")
        counted = Counted(own)
        fdbqueue.troubles(counted, name)
        return counted.did["reads"]

    assert reads("few", 20) == reads("many", 200) < 40


def test_a_queue_at_work_has_no_trouble(own: Any) -> None:
    staged = StagedQueue(Leases(Queue("orders", codec="json")))
    staged.leases.enqueue_many(own, range(3))
    assert staged.lease(own)
    assert fdbqueue.troubles(own) == []


def test_each_kind_has_an_alert() -> None:
    named = {
        kind
        for told in re.findall(r'fdbqueue_troubles\{kind=~?"([\w|]+)"', ALERTS.read_text())
        for kind in told.split("|")
    }
    # How old is too old, and how slow, is for each site to say: these have alerts of their own, by the figures.
    assert named == set(KINDS) - {"old_item", "slow_commit"}


def test_foreign_keys_anywhere_break_no_look(own: Any) -> None:
    queue = Queue("orders", codec="json")
    Sessions(queue).enqueue(own, "a", session="Ann")
    layout = queue.layout
    for key in (b"\x02schedule\x00\x15\x07", b"\x02session\x00\x00\xff", b"\x02subscription\x00\xfe"):
        own[layout.prefix + key] = b"?"
    own[layout.timers_prefix + b"x"] = b""
    own[layout.prefix + b"\x14\x05"] = envelope(b"1")
    found = {one.kind: one for one in fdbqueue.troubles(own)}
    assert found["foreign_key"].many >= 2
    assert found["unreadable"].position is None
    assert found["unreadable"].command == "fdbqueue check orders --remove-foreign"
    assert fdbqueue.check(own, queue, remove_foreign=True).removed
    assert fdbqueue.troubles(own) == []


def test_a_foreign_key_among_the_items_is_no_newer_format(own: Any) -> None:
    queue = Queue("orders")
    queue.enqueue(own, b"item")
    own[queue.layout.prefix + b"\x14\x05"] = b"x"  # as the value of a newer format
    (found,) = (one for one in fdbqueue.troubles(own) if one.kind in ("unreadable", "newer_format"))
    assert found.kind == "unreadable"
    assert found.command == "fdbqueue check orders --remove-foreign"


def test_the_exit_code_tells_of_problems_only(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'db'}"

    def code(*arguments: str) -> int:
        return CliRunner().invoke(app, [*arguments], env={"FDBQUEUE_URL": url}).exit_code

    with fdbqueue.open(url) as db:
        plant(db, queue_of(("dead_letters", "paused_queue")), ["dead_letters", "paused_queue"])
    assert (code("troubles"), code("health")) == (0, 0)
    with fdbqueue.open(url) as db:
        plant(db, queue_of(("blocked_session",)), ["blocked_session"])
    assert (code("troubles"), code("health")) == (1, 1)
    assert (code("troubles", "--within", "dead_letters-paused_queue"), code("top", "-n", "1")) == (0, 0)
    assert code("troubles", "orders", "--within", "x") == 2


def test_a_subscription_that_has_looked_at_everything_breaks_no_look(db: Any, space: Subspace) -> None:
    queue: Queue[Any] = Queue(space, codec="json")
    subscriptions = Subscriptions(queue)
    subscriptions.subscribe(db, "red")
    subscriptions.enqueue(db, 1)
    layout = queue.layout
    db[pointer_key(layout, "red")] = pack_record(SubscriptionPointer([], 0, 0, 0))
    [figures] = read_these(db, find_wanted(db, Wanted([queue_text(layout.prefix)])))
    assert figures.lags == {"red": 0}
    assert queue.inspect(db).troubles == []


@pytest.mark.parametrize("name", [("vip", 7), '["vip", 7]', b"ann", "a\u202eb"])
def test_a_sentence_has_the_one_text_of_a_sessions_name(db: Any, space: Subspace, name: Any) -> None:
    sessions = Sessions(Queue(space, codec="str"))
    sessions.enqueue(db, "x", session=name)
    sessions.pause(db, name)

    [paused] = [one for one in fdbqueue.troubles(db, space) if one.kind == "paused_session"]

    assert paused.text == f"The session '{session_text(name)}' is paused."
    assert session_named(paused.text.split("'")[1]) == name
