"""The library does not run the bytes that it reads, and listens to no network."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fdbqueue.agents import words as agent_words
from fdbqueue.cli.serving import DEFAULT as WEB_DEFAULT
from fdbqueue.cli.serving import metrics
from fdbqueue.layers.consumer.health import Probe
from fdbqueue.observe import serving
from tests.helpers.sources import nodes

RUNS_WHAT_IT_READS = frozenset({"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"})
CALLS = frozenset({"eval", "exec", "compile", "__import__"})
LISTENS = frozenset({"bind", "listen", "create_server", "start_server", "serve_forever"})
ALLOWED = {
    # The binding's own directory layer, of the installed package, without its import of the client library.
    ("fdbqueue/engine/directory.py", "exec"),
    ("fdbqueue/engine/directory.py", "compile"),
    # An `__init__` made of the names of a class's own fields, as dataclasses make theirs.
    ("fdbqueue/base/typed.py", "exec"),
}


def sources(repository: Path) -> Iterator[tuple[str, list[ast.AST]]]:
    for package in ("fdbqueue", "layers"):
        for path in sorted((repository / package).rglob("*.py")):
            yield path.relative_to(repository).as_posix(), nodes(path.read_text())


def called(tree: list[ast.AST]) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield f".{node.func.attr}"


def imported(tree: list[ast.AST]) -> Iterator[str]:
    for node in tree:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.slow
def test_no_payload_is_unpickled_or_executed(repository: Path) -> None:
    for path, tree in sources(repository):
        assert not set(imported(tree)) & RUNS_WHAT_IT_READS, path
        found = {(path, name) for name in called(tree) if name in CALLS}
        assert found <= ALLOWED, found


@pytest.mark.slow
def test_yaml_and_shells_are_not_used_on_what_is_read(repository: Path) -> None:
    for path, tree in sources(repository):
        assert "yaml" not in set(imported(tree)), path
        for node in tree:
            if isinstance(node, ast.keyword) and node.arg == "shell":
                pytest.fail(f"{path} runs a shell")


LISTENERS = frozenset(
    {
        "fdbqueue/agents/server.py",  # the agent server
        "fdbqueue/cli/serving.py",  # it only looks whether a port is free
        "fdbqueue/base/http.py",  # the web page, metrics, Consumer(health=PORT)
    }
)
"""What listens, if a user starts it."""


def listens(tree: list[ast.AST]) -> set[str]:
    """Return what a module calls or imports to listen. Without `socket`, `bind` is that of a signature."""
    modules = set(imported(tree))
    calls = {name.removeprefix(".") for name in called(tree)} & LISTENS if modules & {"socket", "asyncio"} else set()
    if "socket" not in modules:
        calls.discard("bind")
    froms = [node.module for node in tree if isinstance(node, ast.ImportFrom)]
    servers = {"http.server"} & set(froms)
    return calls | servers | modules & {"socketserver", "wsgiref", "uvicorn"}


@pytest.mark.slow
def test_nothing_listens_but_what_a_user_starts_for_that(repository: Path) -> None:
    assert {path for path, tree in sources(repository) if listens(tree)} == LISTENERS


def test_what_listens_does_so_on_the_loopback_interface_if_not_told_otherwise() -> None:
    assert Probe(8080).host == "127.0.0.1"
    for address in (agent_words.DEFAULT, serving.DEFAULT, WEB_DEFAULT):
        assert address.startswith("127.0.0.1:")
    assert inspect.signature(metrics).parameters["listen"].default == serving.DEFAULT


USE = """
import asyncio, os, fdbqueue
from fdbqueue.layers.consumer import Consumer
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.consumer._watchdog import Watchdog

db = fdbqueue.open("memory:")
leases = Leases(fdbqueue.Queue("q", codec="str"))
leases.enqueue_many(db, ["a", "b", "c"])
StagedQueue(leases).dequeue(db)
Consumer(leases, lambda lease: None).drain(db)
Watchdog(leases).sweep(db)
descriptors = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
own = {os.readlink(path) for path in descriptors if os.path.islink(path)}
for table in ("tcp", "tcp6", "udp", "udp6"):
    for line in open(f"/proc/self/net/{table}").read().splitlines()[1:]:
        parts = line.split()
        if f"socket:[{parts[9]}]" in own:
            print(table, parts[1], parts[3])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="open sockets are looked up in /proc: Linux only")
def test_a_process_that_uses_everything_has_no_internet_socket() -> None:
    ended = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""


def test_containers_publish_on_loopback_only(repository: Path) -> None:
    compose = yaml.safe_load((repository / "docker-compose.yml").read_text())
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(re.match(r"127\.0\.0\.1:", port) for port in published)
