"""Commands run in this process, on a queue of the test's own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol
from unittest.mock import patch

import msgspec
import pytest
import typer.testing
from typer import rich_utils
from typer.testing import CliRunner

from fdbqueue.cli import app
from fdbqueue.engine import Subspace
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.names import queue_text


def deep() -> list[Any]:
    """Return nested lists that MessagePack can hold, and JSON can't.

    What walks through them for JSON is written in Python. Since 3.12 it needs one frame a level instead of two.
    """
    nested: list[Any] = []
    for _ in range(600 if sys.version_info < (3, 12) else 1_100):
        nested = [nested]
    return nested


class Result(Protocol):
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str


Run = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """Build the commands once for each width. Each run would build them all, which takes longer than most commands."""
    built = cache(lambda app, width: typer.main.get_command(app))
    with patch.object(typer.testing, "_get_command", lambda app: built(app, rich_utils.MAX_WIDTH)):
        yield


@pytest.fixture
def name(db: Any, space: Subspace) -> str:
    """The name, as the command line takes it, of a queue that is there, is empty, and is not registered."""
    db.add(Layout(space).count_key("returned"), bytes(8))
    return queue_text(space.key())


def beside(name: str) -> str:
    """Return the name, as the command line takes it, of another queue of the test, which lies beside the first one."""
    *above, last = msgspec.json.decode(name)
    return msgspec.json.encode([*above, f"{last} other"]).decode()


@pytest.fixture
def run(url: str) -> Run:
    """Run a command on the engine's database; what it prints goes into a pipe."""

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, [*arguments], input=stdin, env={"FDBQUEUE_URL": url})

    return invoke


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """Let commands hear their signals: a test run behind `nohup` or `&` passes on that some are ignored."""
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
