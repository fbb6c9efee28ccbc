"""Errors name the command in the shell, and the method in Python; and both name a queue as one types it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import fdbqueue
from fdbqueue import Queue, QueueFull, UnknownQueue
from fdbqueue.cli import app
from fdbqueue.cli.remedies import COMMANDS, OPTIONS
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases
from tests.cli.conftest import Run

LIBRARY = Path(fdbqueue.__file__).parent


def texts() -> Iterator[str]:
    """Yield the texts in the library's code."""
    for path in (*LIBRARY.rglob("*.py"), *(LIBRARY / "layers").resolve().rglob("*.py")):
        if LIBRARY / "cli" not in path.parents:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.mark.slow
def test_every_remedy_is_in_a_message_and_every_command_exists() -> None:
    library = "\n".join(texts())
    commands: Any = get_command(app)

    assert [remedy for remedy in (*COMMANDS, *OPTIONS) if remedy not in library] == []
    for command in COMMANDS.values():
        _, name, *options = command.split()
        known = {option for parameter in commands.commands[name].params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


@pytest.mark.slow
def test_messages_of_the_library_name_no_command() -> None:
    commands: Any = get_command(app)
    named = [text for text in texts() for name in commands.commands if f"`fdbqueue {name}" in text and "\n" not in text]

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
