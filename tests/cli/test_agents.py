"""``fdbqueue agents``, as a shell runs it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue.agents import AgentClient, queue_of_type
from fdbqueue.cli import app
from fdbqueue.layers.leases import Leases
from tests.helpers import forked

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "fdbqueue", "agents"]


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return forked.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=60)


@contextmanager
def serving(folder: Path, *options: str, stop: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Run a server on a folder; yield its address."""
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    command = [*COMMAND, "serve", "--url", f"file:{folder}", "--wait", "0", *listen, *options]
    server = forked.Popen(command, stderr=subprocess.PIPE)
    try:
        assert server.stderr is not None
        assert select.select([server.stderr], [], [], 60)[0]
        said = server.stderr.readline().decode()
        assert said.startswith("Serving agents at "), said + server.stderr.read().decode()
        yield said.removeprefix("Serving agents at ").removesuffix(".\n")
        server.send_signal(stop)
        assert server.wait(600) == 0
        assert server.stderr.read() == b""
    finally:
        server.kill()
        server.wait()
        if server.stderr is not None:
            server.stderr.close()


def test_a_shell_sends_receives_and_confirms(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\xff\0of a file")
    with serving(tmp_path / "db") as address:
        at = ("--at", address)
        assert run("receive", "5", *at).returncode == 1
        assert run("send", "5", *at, stdin=b"of a pipe").returncode == 0
        assert run("send", "5", str(tmp_path / "in"), *at).returncode == 0
        first = run("receive", "5", *at)
        received = json.loads(first.stdout)
        assert received == {"id": received["id"], "data": "of a pipe"}
        second = run("receive", "5", str(tmp_path / "out"), *at)
        assert (tmp_path / "out").read_bytes() == b"\xff\0of a file"
        for id in (str(received["id"]), second.stdout.decode().strip()):
            assert run("confirm", "5", id, *at).returncode == 0
            again = run("confirm", "5", id, *at)
            assert again.returncode == 5
            assert b"at the step 'confirm' the server said 'Bye.'" in again.stderr
            assert f"agents of type 5, nothing is locked under the ID {id}. Its lock is over" in again.stderr.decode()
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        assert Leases(queue_of_type(5)).stats(db).dequeued == 2


def test_a_file_stays_what_it_was_if_nothing_is_received(tmp_path: Path) -> None:
    kept = tmp_path / "out"
    kept.write_bytes(b"of yesterday")
    with serving(tmp_path / "db") as address:
        assert run("receive", "5", str(kept), "--at", address).returncode == 1
    assert kept.read_bytes() == b"of yesterday"
    refused = run("receive", "5", str(kept), "--at", address)  # the server is gone
    assert refused.returncode == 3
    assert kept.read_bytes() == b"of yesterday"
    assert sorted(os.listdir(tmp_path)) == ["db", "out"]


def test_a_server_serves_the_given_types_and_sizes(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--types", "5,7-9", "--max-size", "4", stop=signal.SIGINT) as address:
        assert run("send", "8", "--at", address, stdin=b"data").returncode == 0
        for type, data in (("6", b"data"), ("5", b"data and more")):
            refused = run("send", type, "--at", address, stdin=data)
            assert refused.returncode == 3
            assert b"the server said 'Bye.'" in refused.stderr
            why = b"no agents of this type, or its access file" if type == "6" else b"The data is over its --max-size"
            assert why in refused.stderr
        for wrong, told in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
            refused = run("send", "8", str(wrong), "--at", address)
            assert (refused.returncode, refused.stderr.decode()) == (3, f"Error: {wrong}: {told}\n")


def test_the_address_may_come_from_the_environment_and_be_a_path(tmp_path: Path) -> None:
    with serving(tmp_path / "db", "--listen", f"unix:{tmp_path / 'agents'}") as address:
        assert address == f"unix:{tmp_path / 'agents'}"
        environment = {**os.environ, "FDBQUEUE_AGENTS": address}
        sent = forked.run([*COMMAND, "send", "5"], input=b"data", env=environment, timeout=60)
        assert sent.returncode == 0
    assert not (tmp_path / "agents").exists()


def test_a_lock_from_before_a_kill_is_confirmed_after_it(tmp_path: Path) -> None:
    command = [*COMMAND, "serve", "--url", f"file:{tmp_path / 'db'}", "--listen", f"unix:{tmp_path / 'agents'}"]
    with forked.Popen(command, stderr=subprocess.PIPE) as killed:
        assert killed.stderr is not None
        killed.stderr.readline()
        client = AgentClient(f"unix:{tmp_path / 'agents'}")
        client.send(5, b"data")
        received = client.receive(5)
        assert received is not None
        killed.kill()
    with serving(tmp_path / "db", "--listen", f"unix:{tmp_path / 'agents'}"):
        client.confirm(5, received.id)
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        assert Leases(queue_of_type(5)).stats(db).leased == 0


def test_a_file_stays_as_it_was_unless_data_was_received_and_locked(tmp_path: Path) -> None:
    file = tmp_path / "order.txt"
    file.write_bytes(b"the last order")
    with serving(tmp_path / "db") as address:
        assert run("receive", "5", str(file), "--at", address).returncode == 1
        assert file.read_bytes() == b"the last order"
    assert run("receive", "5", str(file), "--at", address).returncode == 3, "no server"
    assert file.read_bytes() == b"the last order"
    cut = forked.run(
        [*COMMAND, "receive", "5", str(file), "--at", cut_off_at(tmp_path / "cut")], capture_output=True, timeout=60
    )
    assert cut.returncode == 3, cut.stderr
    assert file.read_bytes() == b"the last order"
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".part") == []


def cut_off_at(path: Path) -> str:
    """Return the address of a server that goes away in the middle of its data."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        with listening, listening.accept()[0] as client:
            client.sendall(b"Hi.\nOK.\nOK.\nOK.\nData size is 1000. Data ID is 7.\nData:\nsome")
            while b"receive.\nOK.\n" not in client.recv(4_096, socket.MSG_PEEK):
                pass

    threading.Thread(target=serve, daemon=True).start()
    return f"unix:{path}"


def test_a_received_file_keeps_its_mode_and_a_link_its_target_and_a_pipe_is_written(tmp_path: Path) -> None:
    target, link, new, pipe = (tmp_path / name for name in ("target", "link", "new", "pipe"))
    target.write_bytes(b"before")
    target.chmod(0o640)
    link.symlink_to(target)
    os.mkfifo(pipe)
    with serving(tmp_path / "db") as address:
        for data in (b"linked", b"new", b"piped"):
            AgentClient(address).send(5, data)
        for file in (link, new):
            assert run("receive", "5", str(file), "--at", address).returncode == 0
        reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
        assert run("receive", "5", str(pipe), "--at", address).returncode == 0
        assert reader.communicate(timeout=600)[0] == b"piped"
    assert link.is_symlink()
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"linked", 0o640)
    usual = tmp_path / "usual"
    usual.touch()
    assert (new.read_bytes(), new.stat().st_mode) == (b"new", usual.stat().st_mode)


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["serve", "--listen", "0.0.0.0:0", "--url", "file:{}/db"], 2, "let-everybody-in"),
        (["serve", "--listen", "nonsense", "--url", "file:{}/db"], 2, "no address"),
        (["serve", "--cert", "x", "--url", "file:{}/db"], 2, "TLS needs"),
        (["serve", "--cert", "{}/x", "--key", "{}/x", "--client-ca", "{}/x", "--url", "file:{}/db"], 3, "No such file"),
        (["serve", "--access", "{}/x", "--url", "file:{}/db"], 3, "No such file"),
        (["serve", "--types", "5,x", "--url", "file:{}/db"], 2, "no agent type"),
        (["serve", "--url", "memory:"], 2, "memory:"),
        (["serve"], 2, "FDBQUEUE_URL"),
        (["send", "65537"], 2, "65536"),
        (["send", "5", "{}/x"], 3, "No such file"),
        (["send", "5", "--at", "127.0.0.1:1"], 3, "127.0.0.1:1"),
        (["receive", "5", "--at", "x"], 2, "no address"),
        (["receive", "5", "{}/no/such"], 3, "No such file"),
        (["receive", "5", "--cert", "x"], 2, "needs --ca"),
        (["receive", "5", "--ca", "{}/x"], 2, "can't be used"),
        (["confirm", "5", "-1"], 2, "-1"),
    ],
)
def test_mistakes_are_reported_with_an_exit_code(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    failed = CliRunner().invoke(app, ["agents", *(argument.replace("{}", str(tmp_path)) for argument in arguments)])

    assert failed.exit_code == code, failed.stderr
    assert told in " ".join(failed.stderr.replace("│", "").split())
