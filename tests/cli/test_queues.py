"""Commands list, register, pause and resume queues, and propose the nearest name for a mistyped one."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.cli import opening
from fdbqueue.cli.opening import complete_queue
from fdbqueue.cli.output import Output
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.layers import Leases, PriorityQueue, Sessions, Subscriptions
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text
from fdbqueue.stored.places import STATES
from fdbqueue.verbs import renaming
from tests.cli.conftest import Run, beside
from tests.cli.test_terminal import on_terminal
from tests.helpers.counted import Counted
from tests.helpers.nightly import at_night

pytestmark = pytest.mark.engines("file", "cluster")


@dataclass
class Sku:
    sku: str


def objects(text: str) -> list[Any]:
    return [msgspec.json.decode(line) for line in text.splitlines()]


def test_queues_are_listed_and_those_of_older_versions_are_found_and_registered(
    db: Any, space: Subspace, run: Run, name: str
) -> None:
    Queue(space["orders"], codec="json").enqueue_many(db, [1, 2])
    Queue(space["old"], codec="str").enqueue(db, "a")
    del db[Queue(space["old"]).layout.catalogue_key]
    within = ["--within", name]

    [orders] = objects(run("queues", *within).stdout)
    assert (orders["codec"], orders["available"], orders["enqueued"]) == ("json", 2, 2)
    assert run("stats", orders["queue"]).exit_code == 0
    old, _ = objects(run("queues", "--scan", *within).stdout)
    assert (old["available"], "codec" in old) == (1, False)
    assert run("register", old["queue"], "--codec", "str").exit_code == 0
    assert [one.get("codec") for one in objects(run("queues", *within).stdout)] == ["str", "json"]
    assert run("queues", "--within", f'{name[:-1]},"none"]').exit_code == 1


def test_queues_are_listed_a_page_at_a_time(db: Any, space: Subspace, run: Run, name: str) -> None:
    for number in range(7):
        Queue(space[f"q{number}"], codec="str").enqueue(db, "a")
    counted = Counted(db)

    everything = fdbqueue.queues(db, within=space)
    assert fdbqueue.queues(counted, within=space, limit=2) == everything[:2]
    assert counted.did["reads"] <= 1 + 2 * 10
    assert fdbqueue.queues(db, within=space, after=everything[4].name) == everything[5:]
    assert fdbqueue.queues(db.create_transaction(), within=space, after=everything[4].name, limit=1) == everything[5:6]
    texts = [info.text for info in everything]
    page = objects(run("queues", "--within", name, "--after", texts[1], "--limit", "3").stdout)
    assert [one["queue"] for one in page] == texts[2:5]
    assert run("queues", "--within", name, "--after", texts[-1]).exit_code == 1
    assert run("queues", "--scan", "--after", texts[0]).exit_code == 2
    assert len(objects(run("queues", "--scan", "--within", name, "-n", "3").stdout)) == 3


def test_a_pause_shows_who_and_why(db: Any, space: Subspace, run: Run, name: str) -> None:
    Queue(space, codec="json").enqueue(db, 1)

    assert run("pause", name, "--reason", "stocktaking", "--by", "Ann").exit_code == 0
    assert run("dequeue", name).exit_code == 1
    for command in (("stats", name), ("queues", "--within", name)):
        [shown] = objects(run(*command).stdout)
        assert (shown["paused"]["by"], shown["paused"]["reason"]) == ("Ann", "stocktaking")
    assert run("resume", name).exit_code == 0
    assert run("resume", name).exit_code == 1
    assert run("dequeue", name).stdout == "1\n"


TAKING = {
    "dequeue": ("dequeue",),
    "dequeue --all": ("dequeue", "--all"),
    "lease": ("lease",),
    "lease --sessions": ("lease", "--sessions"),
    "lease --subscription": ("lease", "--subscription", "all"),
}


@pytest.mark.parametrize("command", TAKING)
def test_a_command_that_takes_items_of_a_paused_queue_says_so(
    db: Any, space: Subspace, run: Run, name: str, command: str
) -> None:
    queue = Queue(space, codec="json")
    if "subscription" in command:
        Subscriptions(queue).subscribe(db, "all")
    if "sessions" in command:
        Sessions(queue).enqueue(db, 1, session="Ann")
    else:
        queue.enqueue(db, 1)
    verb, *options = TAKING[command]
    queue.pause(db, by="Ann", reason="stock-\ntaking")

    paused = run(verb, name, *options)

    assert (paused.exit_code, paused.stdout) == (1, "")
    [told] = paused.stderr.splitlines()
    assert "is paused by Ann since" in told
    assert "stock- taking. `fdbqueue resume` ends that." in told
    queue.resume(db)
    taken = run(verb, name, *options)
    assert (taken.exit_code, taken.stderr) == (0, "")


def test_a_command_that_is_stopped_by_a_pause_says_so_behind_what_it_took(
    db: Any, space: Subspace, run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue_many(db, [1, 2, 3])
    write = Output.write

    def pause_and_write(self: Output, lines: Any) -> None:
        queue.pause(db, by="Ann")
        write(self, lines)

    monkeypatch.setattr(Output, "write", pause_and_write)
    monkeypatch.setattr("fdbqueue.cli.taking.BATCH_ITEMS", 2)

    taken = run("dequeue", name, "--all")

    assert (taken.exit_code, taken.stdout) == (0, "1\n2\n")
    assert "is paused by Ann" in taken.stderr
    assert queue.stats(db).available == 1


def test_a_lease_of_a_suspended_subscription_says_so(db: Any, space: Subspace, run: Run, name: str) -> None:
    subscription = Subscriptions(Queue(space, codec="json")).subscribe(db, "all")
    subscription.suspend(db)

    empty = run("lease", name, "--subscription", "all")

    assert empty.exit_code == 1
    assert "The subscription 'all' is suspended" in empty.stderr


def test_a_mistyped_name_is_an_error_that_proposes_the_nearest(db: Any, space: Subspace, run: Run, name: str) -> None:
    Queue(space["orders"], codec="json").enqueue(db, 1)
    right = f'{name[:-1]},"orders"]'
    wrong = f'{name[:-1]},"ordres"]'

    refused = run("stats", wrong)  # test_names.py tries all commands
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Did you mean" in refused.stderr
    assert "Did you mean" not in run("dequeue", right, "--all").stderr
    assert run("stats", right).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        "enqueue {} 1",
        "enqueue {} 1 --session ann",
        "pause {} --create",
        "quota {} --items 10 --create",
        "register {} --create",
        "subscribe {} red --create",
        "rename {from} {}",
        "clear {} --yes",
    ],
)
def test_a_name_within_a_queue_is_wrong_usage_and_the_remedy_is_a_command(
    db: Any, space: Subspace, run: Run, name: str, command: str
) -> None:
    Queue(space, codec="json").enqueue(db, 1)
    inner = msgspec.json.encode([*msgspec.json.decode(name), 0]).decode()
    run("enqueue", beside(name), "1")
    words = [{"{}": inner, "{from}": beside(name)}.get(word, word) for word in command.split()]
    if words[0] == "clear":
        db.add(Layout(space[0]).count_key("returned"), bytes(8))

    refused = run(*words)

    assert refused.exit_code == 2, refused.stderr
    assert "Nothing was changed" in refused.stderr
    assert f"`fdbqueue rename {shlex.quote(queue_text(space.key()))} NEW`" in refused.stderr


def test_the_shell_completes_names(db: Any, url: str, space: Subspace) -> None:
    Queue(space["orders"], codec="json").enqueue(db, 1)

    [info] = fdbqueue.queues(db, within=space)

    def completed(url: str, typed: str) -> list[str]:
        context: Any = SimpleNamespace(params={"url": url})
        return complete_queue(context, typed)

    assert completed(url, info.text[:-4]) == [info.text]
    assert completed("file:/no/such/folder", "") == completed("memory:", "") == []


@pytest.mark.engines("file")
def test_the_shell_reads_only_names_that_begin_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path}/many"
    with fdbqueue.open(url) as many:
        for number in range(300):
            Queue(f"q{number:03}", codec="str").enqueue(many, "a")
    monkeypatch.setattr(opening, "MOST_NAMES", 10)
    assert complete_queue(SimpleNamespace(params={"url": url}), "q12") == [f"q12{n}" for n in range(10)]  # type: ignore[arg-type]


def test_a_queue_is_renamed(db: Any, space: Subspace, run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renaming, "LONGEST_SECONDS", 0.0)
    new = msgspec.json.encode(fdb_tuple.unpack(space["new"].key())).decode()
    inside = run("rename", name, new)
    assert (inside.exit_code, "inside the other" in inside.stderr) == (2, True)
    old = msgspec.json.encode(fdb_tuple.unpack(space["old"].key())).decode()
    Queue(space["old"], codec="json").enqueue(db, 1)

    assert run("rename", old, new).exit_code == 0

    assert run("dequeue", new).stdout == "1\n"
    for command in (("enqueue", old, "1"), ("dequeue", old), ("stats", old), ("pause", old), ("register", old)):
        done = run(*command)
        assert (done.exit_code, "was renamed to" in done.stderr) == (2, True), command
    assert "was renamed to" in run("browse", old).stderr
    assert run("rename", old, name).exit_code == 2
    assert run("clear", old, "--yes").exit_code == 0
    assert run("enqueue", old, "2").exit_code == 0


def test_a_quota_is_set_shown_and_removed(db: Any, space: Subspace, run: Run, name: str) -> None:
    assert run("enqueue", name, "1").exit_code == 0
    assert run("quota", name).exit_code == 1
    assert objects(run("quota", name, "--items", "1").stdout)[0]["quota"] == {"items": 1, "when_full": "refuse"}
    full = run("enqueue", name, "2")
    assert (full.exit_code, "its quota is 1" in full.stderr) == (10, True)
    [found] = objects(run("quota", name, "--items", "2", "--when-full", "wait").stdout)
    for command in ("quota", "stats", "inspect"):
        assert objects(run(command, name).stdout)[0]["quota"] == found["quota"] == {"items": 2, "when_full": "wait"}
    assert objects(run("queues", "--within", name).stdout)[0]["quota"] == found["quota"]
    for wrong in (("--items", "0"), ("--items", "1", "--none"), ("--items", "1", "--when-full", "drop")):
        assert run("quota", name, *wrong).exit_code == 2
    [found] = objects(run("quota", name, "--bytes", "5000000").stdout)
    assert found["quota"] == {"size_bytes": 5_000_000, "when_full": "refuse"}
    [found] = objects(run("quota", name, "--when-full", "wait").stdout)
    assert found["quota"] == {"size_bytes": 5_000_000, "when_full": "wait"}
    assert run("quota", name, "--when-full", "wait", "--none").exit_code == 2
    assert run("quota", name, "--none").exit_code == 0
    told = run("quota", name, "--when-full", "wait")
    assert (told.exit_code, "the queue has no quota" in told.stderr) == (2, True)
    assert run("enqueue", name, "2").exit_code == 0


def test_the_codec_is_the_registered_one_unless_it_is_given(
    db: Any, space: Subspace, run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue(space, codec="msgpack").enqueue_many(db, [5, {"sku": "cup"}])

    assert run("enqueue", name, '{"sku": "pot"}').exit_code == 0
    assert objects(run("browse", name).stdout) == [5, {"sku": "cup"}, {"sku": "pot"}]
    assert objects(run("peek", name).stdout) == [5]
    assert [one["value"] for one in objects(run("inspect", name).stdout)[0]["first"]] == [
        5,
        {"sku": "cup"},
        {"sku": "pot"},
    ]
    assert objects(run("lease", name).stdout)[0]["value"] == 5
    assert run("register", name).exit_code == 0
    assert [info.codec for info in fdbqueue.queues(db, within=space)] == ["msgpack"]
    refused = run("dequeue", name, "--codec", "json")
    assert (refused.exit_code, "registered with the codec 'msgpack'" in refused.stderr) == (4, True)
    empty = Queue(tuple(msgspec.json.decode(beside(name))), codec="msgpack")
    empty.register(db)
    for command in (["dead"], ["dead", "--by-error"], ["peek"], ["browse"], ["inspect"], ["dequeue"], ["get", "1:72"]):
        refused = run(
            command[0],
            beside(name),
            *command[1:],
            "--codec",
            "json",
        )
        assert (refused.exit_code, "registered with the codec 'msgpack'" in refused.stderr) == (4, True), command
    monkeypatch.setenv("FDBQUEUE_CODEC", "json")
    assert run("dequeue", name).exit_code == 4
    monkeypatch.delenv("FDBQUEUE_CODEC")
    assert objects(run("dequeue", name, "--all").stdout) == [{"sku": "cup"}, {"sku": "pot"}]


def test_the_codec_is_json_for_a_queue_that_is_not_registered_or_has_a_codec_of_its_own(
    db: Any, space: Subspace, run: Run, name: str
) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, {"sku": "pot"})
    del db[queue.layout.catalogue_key]
    assert objects(run("peek", name).stdout) == [{"sku": "pot"}]
    Queue(space, codec=Sku).register(db)
    assert objects(run("peek", name).stdout) == [{"sku": "pot"}]


def test_a_command_that_needs_no_codec_registers_none(db: Any, space: Subspace, run: Run, name: str) -> None:
    leases = Leases(Queue(space, codec="json"), max_attempts=1)
    leases.enqueue(db, 1)
    lease = leases.lease(db)
    assert lease is not None
    leases.nack(db, lease, error="no such user")
    del db[leases.layout.catalogue_key]
    assert run("redrive", name, "--all", "--tail").exit_code == 0
    assert fdbqueue.queues(db, within=space) == []


def policy(run: Run, name: str) -> str:
    [stats], [page] = (objects(run(command, name, "--json").stdout) for command in ("stats", "inspect"))
    assert stats.get("policy") == page.get("policy")
    return str(stats.get("policy", ""))


def test_register_changes_the_policy_and_leaves_the_rest_as_it_is(db: Any, space: Subspace, run: Run) -> None:
    name = queue_text(space.key())
    PriorityQueue(Queue(space, codec=Sku), levels=3).enqueue(db, Sku("pot"), priority=1)

    run("register", name, "--max-attempts", "3", "--backoff", "2")
    assert policy(run, name) == "max_attempts=3, backoff=exponential(first=2.0, factor=2.0, longest=3600.0, jitter=0.0)"
    run("register", name, "--backoff", "constant(5)")
    assert policy(run, name) == "max_attempts=3, backoff=constant(5.0)"
    run("register", name, "--max-attempts", "none", "--backoff", "exponential(first=1, jitter=0.5)")
    assert policy(run, name) == "backoff=exponential(first=1.0, factor=2.0, longest=3600.0, jitter=0.5)"
    run("register", name, "--backoff", "none")
    assert policy(run, name) == ""
    [info] = fdbqueue.queues(db, within=space)
    assert (info.codec, info.order) == (Queue(space, codec=Sku).codec.name, "levels/3")


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("--max-attempts", "0", "at least 1"),
        ("--max-attempts", "many", "neither a whole number nor none"),
        ("--backoff", "doubling", "is no back-off: give seconds"),
        ("--backoff", "-1", "is no back-off"),
        ("--backoff", "constant(5, 6)", "is no back-off"),
        ("--backoff", "open('/etc/passwd')", "is no back-off"),
        ("--backoff", "constant(*[5])", "is no back-off"),
        ("--backoff", "[]", "is no back-off"),
    ],
)
def test_register_refuses_what_is_no_policy(run: Run, name: str, option: str, text: str, told: str) -> None:
    run("enqueue", name, "1")
    refused = run("register", name, option, text)
    assert (refused.exit_code, told in " ".join(refused.stderr.replace("│", " ").split())) == (2, True)
    assert policy(run, name) == ""


@pytest.mark.parametrize(
    "command", [["lease"], ["lease", "--sessions"], ["watchdog", "--once"]], ids=["lease", "sessions", "watchdog"]
)
def test_a_command_stores_the_attempts_that_it_is_given_and_is_told_of_others(
    run: Run, name: str, command: list[str]
) -> None:
    session = ["--session", "ann"] if "--sessions" in command else []
    run("enqueue", name, "1", "2", *session)
    if not session:
        run("dequeue", name, "--all")
    verb, *options = command

    assert run(verb, name, *options, "--max-attempts", "3").exit_code in (0, 1)
    assert policy(run, name) == "max_attempts=3"
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        told = run("lease", name, *session and ["--sessions"], "--max-attempts", "7").stderr
    assert "Warning: " in told
    assert "max_attempts=3 is stored with it and applies, not 7." in told
    assert "`fdbqueue register QUEUE --max-attempts 7`" in told
    assert "Queue.register" not in told
    assert ".py" not in told
    assert policy(run, name) == "max_attempts=3"


LONG = '["shop", "europe", "warehouse-notifications", "outgoing-emails-to-customers"]'


@pytest.mark.slow
@pytest.mark.engines("file")
@pytest.mark.parametrize("columns", [80, *at_night(120)])
def test_a_list_of_queues_fits_a_terminal(tmp_path: Path, columns: int) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        orders = Queue("orders", codec="json")
        orders.enqueue_many(db, range(2_000))
        orders.pause(db, by="ann@warehouse-7.example.org:4711", reason="stocktaking\nuntil " + "Monday morning " * 9)
        PriorityQueue(Queue("jobs", codec="json")).enqueue(db, 1)
        Sessions(Queue("deliveries", codec="json")).enqueue(db, 1, session="Ann")
        long = Queue(("shop", "europe", "warehouse-notifications", "outgoing-emails-to-customers"), codec="json")
        long.enqueue(db, 1)
        long.set_quota(db, 100_000, when_full="wait")

    _, shown = on_terminal("queues", url=url, COLUMNS=str(columns))

    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == ["queue", "codec", "order", *STATES, "in", "sessions"]
    assert [line.split()[0] for line in lines if line[0] != " "] == [
        "queue",
        "deliveries",
        "jobs",
        "orders",
        '["shop",',
    ]
    begin = lines.index(LONG)
    assert lines[begin + 1] == f"{'json':>16}{'1':>23}{'0':>8}{'0':>9}{'0':>6}"
    assert lines[begin + 2].startswith("  note: 1 item is available, and no consumer")
    assert lines[-1] == "  quota: at most 100,000 items, then wait"
    [orders_line] = [at for at, line in enumerate(lines) if line.startswith("orders")]
    told = " ".join(line.strip() for line in lines[orders_line + 1 : begin])
    assert told.startswith("note: It is paused by ann@warehouse-7.example.org:4711: ")
    assert "stocktaking until Monday morning Monday" in told


@pytest.mark.slow
@pytest.mark.engines("file")
@pytest.mark.parametrize("columns", [80, *at_night(120)])
def test_a_page_about_a_queue_fits_a_terminal(tmp_path: Path, columns: int) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        leases = Leases(Queue(("shop", "orders"), codec="json"), max_attempts=1)
        leases.enqueue_many(db, ["long words " * 20] * 12, headers={"color": "red " * 40})
        taken = leases.lease_many(db, limit=3, consumer="mailer-with-a-long-name.example.org:12345" * 3)
        leases.nack(db, taken[0], error="the printer is on fire " * 9)

    _, shown = on_terminal("inspect", '["shop", "orders"]', url=url, COLUMNS=str(columns))

    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith('["shop", "orders"] (json) at ')
    assert sum(taken[-1].position.random.hex() in line for line in lines) == 9, "each item has one line"


def test_a_pause_is_one_line_wherever_it_is_shown(db: Any, space: Subspace, run: Run, name: str) -> None:
    queue: Queue[Any] = Queue(space, codec="json")
    queue.enqueue(db, 1)
    queue.pause(db, reason="stock-\ntaking", by="Ann")

    told = run("dequeue", name).stderr
    assert len(told.splitlines()) == 1
    assert ": stock- taking. " in told
    [info] = fdbqueue.queues(db, within=space)
    for shown in (info._repr_html_(), fdbqueue.queues(db, within=space)._repr_html_()):  # type: ignore[attr-defined]
        assert "UTC: stock- taking<" in shown
