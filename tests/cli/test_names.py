"""Names that commands are given: of queues that are not there, of databases that would be gone, and empty ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Queue, QueueFull, UnknownQueue
from fdbqueue.base.position import Position
from fdbqueue.cli import app, errors
from fdbqueue.cli.app import COMMANDS
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.errors import ClusterError, LeaseLost, SessionClosed, StorageError, StreamError
from fdbqueue.layers.leases import LeaseHandle
from fdbqueue.stored.names import name_text
from tests.cli.conftest import Run
from tests.cli.test_terminal import on_terminal

ITEM = Position(7, b"random").text
HANDLE = f"{ITEM}:{'00' * 8}"
NEED_A_QUEUE = {
    "ack": [HANDLE],
    "browse": [],
    "bury": [ITEM],
    "cancel": [ITEM],
    "check": [],
    "clear": ["--yes"],
    "copy": ["{url}", "{other}"],
    "dead": [],
    "dequeue": [],
    "export": ["--to", "{folder}/out.jsonl"],
    "get": [ITEM],
    "groups": [],
    "inspect": [],
    "lease": [],
    "nack": [HANDLE],
    "peek": [],
    "purge": ["--all", "--yes"],
    "redrive": ["--all"],
    "rename": ["other"],
    "reschedule": [ITEM, "--delay", "1"],
    "resume": [],
    "schedules": [],
    "streams": [],
    "sessions": [],
    "stats": [],
    "subscriptions": [],
    "sweep": [],
    "top": ["--count", "1"],
    "troubles": [],
    "unsubscribe": ["red"],
    "update": [ITEM, "--value", "1"],
}
"""The arguments behind the queue's name, for each command that needs the queue."""
MAY_CREATE = {
    "agents run": ["--once", "true"],
    "pause": [],
    "quota": ["--items", "9"],
    "register": [],
    "subscribe": ["red"],
    "watch": ["--timeout", "0"],
    "watchdog": ["--once"],
}
"""The same for each command that makes the queue with --create."""
pytestmark = pytest.mark.engines("file", "cluster")
NO_QUEUE = {"enqueue", "import", "queues", "backup", "agents", "health", "metrics", "web", "worker"}
"""Commands that make the queue that they name, or name none."""


def command_line(command: str, queue: str, more: list[str], *options: str) -> list[str]:
    if command == "agents run":
        return ["agents", "run", *options, "--queue", queue, *more]
    if command in ("queues", "agents serve"):
        return [*command.split(), *options]
    return [command, *options, queue, *more]


def kept(db: Any, queue: Queue) -> list[tuple[bytes, bytes]]:
    """Return all keys of a queue."""
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range(*queue.layout.whole_range())]


def test_each_command_is_in_one_of_the_tables_above() -> None:
    named = {command.__name__ for command in COMMANDS} | {group.name for group in app.registered_groups}
    assert named == {name.split()[0] for name in (*NEED_A_QUEUE, *MAY_CREATE)} | NO_QUEUE


@pytest.mark.parametrize("command", [*NEED_A_QUEUE, *MAY_CREATE])
def test_a_mistyped_queue_is_an_error_that_proposes_the_nearest_name(
    db: Any, space: Subspace, url: str, run: Run, command: str, tmp_path: Path
) -> None:
    Queue(space["orders"], codec="json").enqueue(db, 1)
    mistyped = name_text(fdb_tuple.unpack(space["order"].key()))
    places = {"url": url, "other": f"file:{tmp_path / 'other'}", "folder": str(tmp_path)}
    more = [one.format(**places) for one in {**NEED_A_QUEUE, **MAY_CREATE}[command]]

    for queue, told in ((mistyped, "Did you mean"), ("zebra", "There is no queue")):
        refused = run(*command_line(command, queue, more), stdin="")
        assert refused.exit_code == errors.USAGE, refused.stderr
        assert told in refused.stderr
        assert refused.stdout == ""
    assert not (tmp_path / "out.jsonl").exists()
    assert not list(db.get_range(space["order"].key(), space["orders"].key()))


@pytest.mark.engines("file")
@pytest.mark.parametrize("command", MAY_CREATE)
def test_a_command_makes_the_queue_and_its_database_if_it_is_told_to(run: Run, command: str, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'new'}"
    assert run(*command_line(command, "orders", MAY_CREATE[command], "--url", url)).exit_code == errors.ENGINE
    made = run(*command_line(command, "orders", MAY_CREATE[command], "--url", url, "--create"))

    assert made.exit_code in (0, errors.EMPTY), made.stderr
    assert (tmp_path / "new" / "data.mdb").exists()


@pytest.mark.engines("file")
@pytest.mark.parametrize("wrong", ["[1", "[1.5, {}]"])
def test_a_name_that_is_no_key_tuple_is_blamed_on_the_queue(run: Run, wrong: str) -> None:
    told = run("enqueue", wrong, "1")
    assert told.exit_code == 2
    assert "for QUEUE" in told.stderr
    assert "codec" not in told.stderr


@pytest.mark.engines("file")
def test_a_name_above_or_behind_that_of_a_queue_is_not_a_queue(db: Any, space: Subspace, run: Run) -> None:
    Queue(space["orders"], codec="json").enqueue(db, 1)
    above = name_text(fdb_tuple.unpack(space.key()))

    for name in (above, "orders"):
        refused = run("stats", name)
        assert refused.exit_code == errors.USAGE
        assert "Did you mean" in refused.stderr
        assert '"orders"]' in refused.stderr


@pytest.mark.engines("file")
def test_a_queue_without_a_registration_is_there_if_it_has_a_key(db: Any, space: Subspace, run: Run, name: str) -> None:
    queue = Queue(space, codec="json")
    queue.layout.known.registration = None
    queue.enqueue(db, 1)
    queue.dequeue(db)

    assert run("stats", name).exit_code == 0
    assert run("peek", name).exit_code == errors.EMPTY


@pytest.mark.engines("file")
@pytest.mark.parametrize("command", [*NEED_A_QUEUE, *MAY_CREATE, "enqueue", "import", "queues", "agents serve"])
def test_no_command_uses_a_database_that_ends_with_it(
    url: str, run: Run, name: str, command: str, tmp_path: Path
) -> None:
    exported = tmp_path / "in.jsonl"
    if command == "import":
        assert run("enqueue", name, "1").exit_code == 0
        assert run("export", name, "--to", str(exported)).exit_code == 0
    own = {"enqueue": ["1"], "import": ["--from", str(exported)]}
    more = {**NEED_A_QUEUE, **MAY_CREATE, **own}.get(command, [])
    places = {"url": "memory:", "other": url, "folder": str(tmp_path)}
    options = [] if command == "copy" else ["--url", "memory:"]

    refused = run(*command_line(command, name, [one.format(**places) for one in more], *options))

    assert refused.exit_code == errors.USAGE, refused.stderr
    assert "memory: database ends with the command" in refused.stderr


@pytest.mark.engines("file")
def test_items_are_not_moved_into_a_database_that_ends_with_the_command(url: str, run: Run, name: str) -> None:
    assert run("enqueue", name, "1", "2").exit_code == 0

    refused = run("copy", name, url, "memory:")

    assert refused.exit_code == errors.USAGE
    assert "memory: database ends with the command" in refused.stderr
    assert '"available":2' in run("stats", name).stdout


EMPTY = [
    ["stats", ""],
    ["stats", "[]"],
    ["enqueue", "", "1"],
    ["enqueue", "{queue}", "1", "--session", ""],
    ["enqueue", "{queue}", "1", "--session", "[]"],
    ["enqueue", "{queue}", "1", "--session", "a", "--gate", ""],
    ["enqueue", "{queue}", "1", "--session", "a", "--gate", "=1"],
    ["enqueue", "{queue}", "1", "--group", ""],
    ["enqueue", "{queue}", "1", "--codec", ""],
    ["enqueue", "{queue}", "1", "--url", ""],
    ["enqueue", "{queue}", "1", "--levels", ""],
    ["enqueue", "{queue}", "1", "--headers", ""],
    ["browse", "{queue}", "--where", ""],
    ["browse", "{queue}", "--where", " "],
    ["browse", "{queue}", "--after", ""],
    ["dead", "{queue}", "--where", ""],
    ["watch", "{queue}", "--where", "", "--timeout", "0"],
    ["watch", "{queue}", "--name", "", "--timeout", "0"],
    ["export", "{queue}", "--to", "{folder}/out.jsonl", "--where", ""],
    ["export", "{queue}", "--to", ""],
    ["import", "{queue}", "--from", ""],
    ["cancel", "{queue}"],
    ["cancel", "{queue}", ""],
    ["cancel", "{queue}", "--where", "", "--yes"],
    ["cancel", "{queue}", ITEM, "--session", ""],
    ["get", "{queue}", ""],
    ["update", "{queue}", "", "--value", "1"],
    ["reschedule", "{queue}", "", "--delay", "1"],
    ["purge", "{queue}", "--yes"],
    ["purge", "{queue}", "--limit", "1", "--yes"],
    ["purge", "{queue}", "--older-than", "0", "--yes"],
    ["purge", "{queue}", "", "--yes"],
    ["purge", "{queue}", "--where", "", "--yes"],
    ["purge", "{queue}", ITEM, "--all", "--yes"],
    ["redrive", "{queue}"],
    ["redrive", "{queue}", ""],
    ["redrive", "{queue}", "--where", ""],
    ["redrive", "{queue}", "--error", ""],
    ["purge", "{queue}", "--error", "", "--yes"],
    ["reschedule", "{queue}", "--where", "", "--delay", "1", "--yes"],
    ["dead", "{queue}", "--error", ""],
    ["sessions", "{queue}", "--after", ""],
    *(["sessions", "{queue}", f"--{verb}", ""] for verb in ("pause", "resume", "remove", "skip", "redrive", "purge")),
    ["groups", "{queue}", ""],
    ["groups", "{queue}", "--after", ""],
    ["subscribe", "{queue}", ""],
    ["subscribe", "{queue}", "red", "--selector", ""],
    ["unsubscribe", "{queue}", ""],
    ["lease", "{queue}", "--subscription", ""],
    ["lease", "{queue}", "--consumer", ""],
    ["lease", "{queue}", "--sessions", "--consumer", ""],
    ["pause", "{queue}", "--by", ""],
    ["queues", "--within", ""],
    ["rename", "{queue}", ""],
    ["rename", "", "{queue}"],
    ["copy", "{queue}", "", "file:{folder}/other"],
    ["copy", "{queue}", "{url}", ""],
    ["backup", "", "{folder}/other"],
    ["backup", "{url}", ""],
    ["top", ""],
    ["top", "{queue}", "", "--count", "1"],
    ["watchdog", "{queue}", "--once", "--exec", ""],
    ["agents", "run", "--queue", "", "--once", "true"],
    ["agents", "run", "--queue", "{queue}", "--once", ""],
    ["agents", "serve", "--types", ""],
    ["agents", "serve", "--listen", ""],
    ["agents", "receive", "5", "", "--at", "127.0.0.1:1"],
    ["agents", "send", "5", "", "--at", "127.0.0.1:1"],
    ["agents", "send", "5", "--at", ""],
]


@pytest.mark.engines("file")
@pytest.mark.parametrize("given", EMPTY, ids=" ".join)
def test_an_empty_argument_is_wrong_usage_and_changes_nothing(
    db: Any, url: str, space: Subspace, run: Run, name: str, given: list[str], tmp_path: Path
) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, 1)
    before = kept(db, queue)

    refused = run(*(one.format(folder=tmp_path, url=url, queue=name) for one in given), stdin="")

    assert refused.exit_code in (errors.USAGE, errors.ENGINE), refused.stdout
    assert refused.stderr
    assert kept(db, queue) == before
    assert os.listdir(tmp_path) == []


@pytest.mark.engines("file")
@pytest.mark.parametrize("handle", ["", " "])
@pytest.mark.parametrize("command", ["ack", "nack"])
def test_an_empty_handle_is_no_handle(run: Run, name: str, command: str, handle: str) -> None:
    assert run("enqueue", name, "1").exit_code == 0
    assert run(command, name, handle).exit_code == errors.VALUE


@pytest.mark.engines("file")
def test_a_folder_without_a_database_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    for command in (["queues"], ["stats", "orders"], ["dequeue", "orders"], ["rename", "orders", "sales"]):
        refused = run(*command, "--url", f"file:{tmp_path}")
        assert refused.exit_code == errors.ENGINE
        assert "there is no database in the folder" in refused.stderr
    assert os.listdir(tmp_path) == []


def test_a_handle_of_this_form_is_read() -> None:
    assert LeaseHandle.parse(HANDLE).position == Position.parse(ITEM)


def test_the_guide_and_the_help_have_all_exit_codes(repository: Path) -> None:
    guide = (repository / "docs/guides/command-line.md").read_text()
    for code, meaning in errors.CODES.items():
        assert f"| {code} | {meaning} |" in guide
        assert f"{code} {meaning}" in errors.EXIT_CODES_HELP


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QueueFull("full", limit=1), 10),
        (SessionClosed("closing"), 10),
        (StreamError("it has sessions"), 2),
        (UnknownQueue("no such queue"), 2),
        (LeaseLost("lost", lost=[]), 5),
        (ValueError("not an argument"), 2),
        (StorageError("the disk"), 3),
        (ClusterError("no answer"), 3),
    ],
)
def test_each_error_has_the_exit_code_of_its_meaning(error: Exception, code: int) -> None:
    assert errors.exit_code_of(error) == code


@pytest.mark.engines("file")
def test_an_export_that_the_disk_refuses_is_no_wrong_usage(run: Run, name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run("enqueue", name, "1").exit_code == 0

    refused = run("export", name, "--to", str(tmp_path / "file" / "out.jsonl"))

    assert refused.exit_code == errors.ENGINE
    assert "can't be written" in refused.stderr


def test_a_full_queue_and_a_closing_session_have_an_exit_code_of_their_own(space: Subspace, run: Run) -> None:
    closing, full = (name_text(fdb_tuple.unpack(space[one].key())) for one in ("closing", "full"))
    assert run("enqueue", closing, "1", "--session", "ann").exit_code == 0
    assert run("sessions", closing, "--remove", "ann").exit_code == 0
    assert run("enqueue", closing, "2", "--session", "ann").exit_code == errors.FULL
    assert run("quota", full, "--items", "1", "--create").exit_code == 0
    assert run("enqueue", full, "1").exit_code == 0
    assert run("enqueue", full, "2").exit_code == errors.FULL


@pytest.mark.slow
def test_cancel_asks_with_the_number_of_items(db: Any, space: Subspace, url: str, run: Run, name: str) -> None:
    for color in ("red", "blue", "red"):
        assert run("enqueue", name, "1", "--headers", f'{{"color": "{color}"}}').exit_code == 0

    unasked = run("cancel", name, "--where", "color = 'red'")
    assert unasked.exit_code == errors.USAGE
    assert "remove 2 items" in " ".join(unasked.stderr.split())
    code, shown = on_terminal("cancel", name, "--where", "color = 'red'", url=url, typed="n\n")
    assert (code, "Remove 2 items" in shown) == (1, True)
    assert Queue(space).stats(db).available == 3
    assert run("cancel", name, "--where", "color = 'red'", "--yes").exit_code == 0
    assert Queue(space).stats(db).available == 1
