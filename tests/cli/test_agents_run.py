"""``fdbqueue agents run``, as a shell runs it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fdbqueue
from fdbqueue.agents import AgentClient, queue_of_type
from fdbqueue.cli import app
from fdbqueue.cli.errors import SIGNALS
from fdbqueue.layers.leases import Leases, constant
from fdbqueue.verbs.queue import Queue
from tests.cli.test_agents import COMMAND, run, serving
from tests.helpers import forked
from tests.helpers.nightly import at_night

pytestmark = pytest.mark.slow


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*COMMAND, "run", "--url", f"file:{folder / 'db'}", *arguments]
    return forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(text: str | bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_items_are_worked_on_and_everything_is_reported(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        Leases(queue_of_type(5)).enqueue_many(db, [b"good", b"bad"])
    script = "echo output; grep -q good || { echo sorry >&2; exit 3; }"
    ran = run(
        *("run", "--type", "5", "--processes", "2", "--max-attempts", "1", "--once", "--url"),
        *(f"file:{tmp_path / 'db'}", "--", "sh", "-c", script),
    )
    assert ran.returncode == 1, ran.stderr
    *events, ended = lines(ran.stdout)

    assert sorted(event["what"] for event in events) == ["confirmed", "failed", "started", "started"]
    [failed] = [event for event in events if event["what"] == "failed"]
    assert failed["fate"] == "dead"
    assert failed["why"] == "The command ended with exit code 3. Its standard error ended: sorry"
    totals = {"started": 2, "confirmed": 1, "failed": 1, "killed": 0, "dead": 1, "returned": 0, "lost": 0}
    assert ended == {"what": "ended", **totals}
    assert b"output" in ran.stderr
    assert b"output" not in ran.stdout


@pytest.mark.parametrize(
    ("script", "options", "code"),
    [
        ("exit 3", (), 1),  # it waits for its next attempt
        ("sleep 600", ("--lock", "0.1", "--max-attempts", "1"), 1),
        ('test "$FDBQUEUE_ATTEMPT" = 2', ("--backoff", "0"), 0),
        ("exit 0", (), 0),
    ],
)
def test_once_tells_by_its_exit_code_whether_all_items_were_confirmed(
    tmp_path: Path, script: str, options: tuple[str, ...], code: int
) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        Queue("jobs").enqueue(db, b"x")
    ran = run("run", "--url", url, "--queue", "jobs", "--once", *options, "--", "sh", "-c", script)

    assert ran.returncode == code, ran.stderr
    if code == 0:
        assert run("run", "--url", url, "--queue", "jobs", "--once", "true").returncode == 0, "an empty queue"


def test_what_nobody_gave_is_neither_stored_nor_told(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        Queue("jobs").enqueue(db, b"x")
        run("run", "--url", url, "--queue", "jobs", "--once", "--backoff", "0", "false")
        assert Leases(Queue("jobs")).stats(db).dead == 1
        assert fdbqueue.queues(db)[0].policy == "backoff=immediately"

        Queue("jobs").register(db, max_attempts=2, backoff=constant(60))
        Queue("jobs").enqueue(db, b"y")
        ran = run("run", "--url", url, "--queue", "jobs", "--once", "false")
        assert Leases(Queue("jobs")).stats(db).delayed == 1
    assert b"Warning" not in ran.stderr


@pytest.mark.parametrize("number", [SIGNALS[0], *at_night(*SIGNALS[1:])])
def test_a_signal_lets_the_command_end_and_starts_no_other(tmp_path: Path, number: signal.Signals) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        Queue("jobs").enqueue_many(db, [b"x", b"y"])
        script = 'until [ -e "$0/go" ]; do sleep 0.01; done'
        process = started(tmp_path, "--queue", "jobs", "--", "sh", "-c", script, str(tmp_path))
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["what"] == "started"
        process.send_signal(number)
        (tmp_path / "go").touch()
        out, errors = process.communicate(timeout=600)

        assert process.returncode == 0, errors
        assert [event["what"] for event in lines(out)] == ["confirmed", "ended"]
        assert Leases(Queue("jobs")).stats(db).available == 1


def test_a_second_signal_kills_the_command_and_gives_the_item_back(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        Queue("jobs").enqueue(db, b"x")
        process = started(tmp_path, "--queue", "jobs", "sleep", "600")
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=600)

        assert process.returncode == 0, errors
        assert [event["what"] for event in lines(out)] == ["returned", "ended"]
        assert not Path(f"/proc/{first['pid']}/cmdline").exists()
        lease = Leases(Queue("jobs")).lease(db)
        assert lease is not None
        assert lease.attempt == 1


def test_data_that_a_killed_server_took_is_still_processed(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    with serving(folder) as address:
        AgentClient(address).send(5, b"sent")
        AgentClient(address).send(5, b"sent later")
    address = f"unix:{tmp_path / 'socket'}"
    server = forked.Popen(
        [*COMMAND, "serve", "--url", f"file:{folder}", "--listen", address, "--lock", "1"], stderr=subprocess.PIPE
    )
    assert server.stderr is not None
    server.stderr.readline()
    assert AgentClient(address).receive(5) is not None
    server.kill()
    server.communicate()
    process = started(tmp_path, "--type", "5", "--", "sh", "-c", "cat; echo")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(4)]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)

    assert [event["what"] for event in seen].count("confirmed") == 2
    assert sorted(errors.split("\n")) == ["", "sent", "sent later"]
    [again] = [event for event in seen if event["what"] == "started" and event["attempt"] == 2]
    assert again["why"].startswith("The lease of "), "the lock of the client that never confirmed"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["true"], "give a type"),
        (["--type", "5", "--queue", "q", "true"], "give a type"),
        (["--type", "5"], "COMMAND"),
        (["--type", "65537", "true"], "65536"),
        (["--type", "5", "--", "no-such-program"], "There is no command 'no-such-program'"),
        (["--type", "5", "--lock", "0", "true"], "--lock"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: list[str], told: str) -> None:
    refused = CliRunner().invoke(app, ["agents", "run", "--url", f"file:{tmp_path / 'db'}", *arguments])

    assert refused.exit_code == 2
    assert told in refused.stderr
    assert isinstance(refused.exception, SystemExit)


def test_options_behind_the_program_are_its_own(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path / 'db'}") as db:
        Queue("jobs").enqueue(db, b"x")
    ran = run("run", "--url", f"file:{tmp_path / 'db'}", "--queue", "jobs", "--once", "sh", "-c", "echo $0", "--lock")

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == b"--lock\n"
