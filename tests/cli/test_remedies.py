"""Errors name the command in the shell, and the method in Python; and both name a queue as one types it."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import fdbqueue
from fdbqueue import Queue, QueueFull, UnknownQueue
from fdbqueue.cli import app, errors
from fdbqueue.cli.helptext import COMMANDS, OPTIONS, PLAIN, in_shell
from fdbqueue.engine import Subspace
from fdbqueue.engine import tuple as fdb_tuple
from fdbqueue.engine.url import THREE
from fdbqueue.layers import Leases, Sessions
from fdbqueue.stored.names import name_text
from tests.cli.conftest import Run
from tests.helpers.sources import nodes

LIBRARY = Path(fdbqueue.__file__).parent


def texts() -> Iterator[str]:
    """Yield the texts in the library's code."""
    for path in (*LIBRARY.rglob("*.py"), *(LIBRARY / "layers").resolve().rglob("*.py")):
        # A trouble names the command and the method.
        if path.name != "trouble.py" and not {LIBRARY / "cli", LIBRARY / "observe"} & set(path.parents):
            for node in nodes(path.read_text()):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
                elif isinstance(node, ast.JoinedStr):
                    yield joined(node)


def joined(text: ast.expr) -> str:
    """Return a text in the code, with 'x' in place of each value."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "'x'" for part in parts)


@pytest.mark.slow
def test_every_remedy_is_in_a_message_and_every_command_exists() -> None:
    library = "\n".join(texts())
    commands: Any = get_command(app)

    remedies = [remedy.replace(THREE, "'x'") for remedy in (*COMMANDS, *OPTIONS, *PLAIN)]
    of_verbs = re.compile(r"Sessions\.\w+(?=\(db, session, position\))")
    assert [one for one in remedies if one not in library and of_verbs.sub("Sessions.'x'", one) not in library] == []
    for command in COMMANDS.values():
        _, name, *options = command.split()
        known = {option for parameter in commands.commands[name].params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


PYTHON = re.compile(r"\b[a-z]\w*=(?![= ])|\b[A-Z][a-z]\w*(?:\.[a-z]\w+|\()|\bdb\b|\w\(…?\)")
"""What a person who knows no Python does not understand: arguments, classes and their methods."""
NOT_IN_THE_SHELL = (
    "The size must be known before the data is sent",
    "… can be reached from other machines",
    "The item … of … does not decode by the codec",
    "The token is a text of at least 16 characters",
    "… is not the name of a copy",
    "… Lease it and read it with `fdbqueue.layers.Blobs`",
    "… can't …: it is closed",
    "… is closed. Blobs.read opens",
    "This transaction or future is from before a fork",
    "…: is open in this process with durability=relaxed",
    "…: is open in this process with checksums=ignore",
    "An update changes the value or the headers",
    "A reschedule changes the time or the priority",
    "The codec of … is …, which is a program's own",
    "…: the database is full at max_size=",
    "durability=… is neither fsync",
    "checksums=… is neither check",
    "… is a directory, whose keys",
    "… would block the running event loop",
    "… is not held by this object",
    "… has no database to wait in",
    "health='file:' names no file",
    "The state_codec of … does not take",
    "The type … uses a key",
    "… has fetched several copies",
    "… has no levels, and so no priorities",
    "… keeps no results to wait for",
    "… has a task … already",
    "… has a schedule … already",
)
"""Errors of programs, which no command meets; or which tell of a part of a URL, or of the task file of a worker."""


def raised() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each message that the library raises, except TypeErrors: a shell has no types."""
    for path in (*LIBRARY.rglob("*.py"), *(LIBRARY / "layers").resolve().rglob("*.py")):
        if {"cli", "spark", "notebook.py", "testing.py"} & set(path.parts):
            continue
        for node in nodes(path.read_text()):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                kind, first = ast.unparse(node.exc.func), node.exc.args[0]
                if "TypeError" in kind or not isinstance(first, ast.Constant | ast.JoinedStr):
                    continue
                yield f"{path.name}:{node.lineno}", joined(first)


@pytest.mark.slow
def test_no_remedy_in_the_shell_is_pythons() -> None:
    starts = tuple(start.replace("…", "'x'") for start in NOT_IN_THE_SHELL)
    found = list(raised())
    told = [(place, in_shell(text)) for place, text in found if not text.startswith(starts)]
    pythons = [(place, text) for place, text in told if PYTHON.search(text)]

    assert pythons == [], (
        "Add what a shell says to fdbqueue/cli/helptext.py; or NOT_IN_THE_SHELL, if no command raises it"
    )
    assert [start for start in starts if not any(text.startswith(start) for _, text in found)] == []


@pytest.mark.slow
def test_messages_of_the_library_name_no_command() -> None:
    commands: Any = get_command(app)
    told = [
        text.replace("`fdbqueue check --file", "") for text in texts() if "\n" not in text
    ]  # it has no verb in Python
    named = [text for text in told for name in commands.commands if f"`fdbqueue {name}" in text]

    assert named == []


@pytest.mark.engines("file", "cluster")
def test_a_full_queue_names_the_command_in_the_shell_and_the_method_in_python(
    db: Any, space: Subspace, run: Run, name: str
) -> None:
    queue: Queue[Any] = Queue(space, codec="json")
    queue.set_quota(db, 1)
    queue.enqueue(db, 1)

    with pytest.raises(QueueFull, match=r"Or raise the quota: Queue\.set_quota\.$"):
        queue.enqueue(db, 2)
    assert run("enqueue", name, "2").stderr.strip().endswith("Or raise the quota: `fdbqueue quota`.")


@pytest.mark.engines("file", "cluster")
def test_a_wrong_codec_names_the_option_in_the_shell(db: Any, space: Subspace, run: Run, name: str) -> None:
    Queue(space, codec="json").enqueue(db, 1)

    told = run("peek", name, "--codec", "msgpack").stderr

    assert "Give --codec json, or leave --codec out." in told
    assert "`fdbqueue register --on-codec replace`" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("queues",),
        ("queues", "--url", "shop"),
        ("queues", "--url", "redis:shop"),
        ("queues", "--url", "memory:"),
        ("enqueue", "q", "1", "--url", "memory://shop"),
        ("queues", "--url", "file:"),
        ("queues", "--url", "fdb:/nowhere/fdb.cluster"),
    ],
)
def test_a_wrong_url_is_answered_with_one_that_a_command_takes(arguments: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, arguments, env={"FDBQUEUE_URL": ""})

    assert told.exit_code in (errors.USAGE, errors.ENGINE)
    assert "memory: (" not in told.stderr
    assert not re.search(r"\b(Give|write|Without)\b.*memory:", told.stderr)


@pytest.mark.engines("file", "cluster")
def test_an_error_about_a_closing_session_names_no_argument_of_python(run: Run, db: Any, space: Subspace) -> None:
    sessions = name_text(fdb_tuple.unpack(space.key()))
    assert run("enqueue", sessions, "1", "--session", "ann").exit_code == 0
    assert run("sessions", sessions, "--remove", "ann").exit_code == 0

    told = run("enqueue", sessions, "2", "--session", "ann").stderr

    assert "Enqueue again when it is gone" in told
    assert not PYTHON.search(told)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("web", "--port", "80"), "--listen"),
        (("agents", "serve", "--port", "80"), "--listen"),
        (("browse", "q", "--max", "3"), "--limit"),
        (("redrive", "q", "--filter", "x"), "--where"),
        (("queues", "--cluster-file", "x"), "--url"),
        (("bury", "q", "1:ab", "--reason", "x"), "--error"),
        (("queues", "--jsn"), "--json"),
        (("web", "--zzz"), None),
    ],
)
def test_an_option_that_is_not_there_is_answered_with_the_one_that_is_meant(
    typed: tuple[str, ...], meant: str | None
) -> None:
    told = CliRunner().invoke(app, typed, env={"COLUMNS": "200"}).stderr

    assert re.findall(r"\(Possible options?: (.*?)\)|Did you mean (.*?)\?", told) == (
        [] if meant is None else [(meant, "")]
    )


@pytest.mark.engines("memory")
def test_an_unknown_queue_is_named_as_it_is_typed(db: Any) -> None:
    Queue("orders").enqueue(db, b"x")
    Queue(("shop", "orders")).enqueue(db, b"x")

    with pytest.raises(UnknownQueue, match=r"^No queue 'order' is registered\. Did you mean 'orders'\?"):
        Queue.open(db, "order")
    with pytest.raises(UnknownQueue, match=r"^No queue \('shop', 'order'\) .* Did you mean \('shop', 'orders'\)\?"):
        Queue.open(db, ("shop", "order"))
    assert repr(Leases(Queue("orders"))).startswith("Leases('orders', ")


@pytest.mark.engines("file")
def test_a_shell_names_a_tuple_as_json(tmp_path: Path, run: Run) -> None:
    url = f"file:{tmp_path / 'db'}"
    assert run("enqueue", '["shop", "orders"]', "1", "--url", url).exit_code == 0

    told = run("peek", '["shop", "order"]', "--url", url).stderr

    assert """There is no queue '["shop", "order"]'. Did you mean '["shop", "orders"]'?""" in told


@pytest.mark.engines("file")
def test_the_commands_of_troubles_take_a_name_that_begins_with_a_dash(tmp_path: Path, run: Run) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        leases = Leases(fdbqueue.Queue("-rf", codec="json"), max_attempts=1)
        leases.enqueue(db, 1)
        [item] = leases.lease_many(db, limit=1)
        leases.nack(db, item)
        sessions = Sessions(leases.queue)
        sessions.enqueue(db, 1, session="-x")
        sessions.pause(db, "-x")
    told = [json.loads(line) for line in run("troubles", "--url", url, "--json").stdout.splitlines()]

    commands = [one["command"] for one in told if "command" in one]
    assert """fdbqueue dead '["-rf"]' --by-error""" in commands
    assert """fdbqueue sessions '["-rf"]' --resume '{"text": "-x"}'""" in commands
    for command in commands:
        done = run(*shlex.split(command)[1:], "--url", url)
        assert done.exit_code in (0, errors.EMPTY), (command, done.stderr)


@pytest.mark.engines("file")
def test_answers_show_the_one_text_of_a_queue(tmp_path: Path, run: Run) -> None:
    url = f"file:{tmp_path / 'db'}"
    typed = '["shop","orders"]'
    assert run("enqueue", typed, "1", "--url", url).exit_code == 0

    for command in ("stats", "inspect", "check"):
        assert json.loads(run(command, typed, "--url", url).stdout)["queue"] == '["shop", "orders"]'


def test_the_release_of_a_copy_names_the_queue() -> None:
    text = "End it: fdbqueue.transfer.release_copy(source, Queue('-rf'), target=target)."
    assert in_shell(text) == """End it: `fdbqueue copy --release '["-rf"]' FROM TO`."""
