"""``fdbqueue worker`` and ``fdbqueue schedules``."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli.worker import set_up_log
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks
from tests.cli.conftest import Run
from tests.helpers import forked
from tests.helpers.nightly import at_night

pytestmark = pytest.mark.slow

MODULE = """
import os, threading
from fdbqueue.layers import Tasks

app = Tasks("shop", retries=0)
not_an_app = 7

@app.task(keep_result=600)
def pid(stays: bool = False) -> int:
    if stays:
        print("stays", flush=True)
        threading.Event().wait()
    return os.getpid()

@app.task(keep_result=600)
def spin(number: int) -> int:
    "Keep a processor busy until the other one does."
    open(f"spins {number}", "w").close()
    while not os.path.exists(f"spins {1 - number}"):
        pass
    return os.getpid()

@app.task(keep_result=600, queue="other")
async def version() -> int:
    return 1
"""


class Shop:
    """A program with tasks, its database, and the commands that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop_tasks.py").write_text(MODULE)
        self.db = fdbqueue.open(f"file:{folder / 'db'}")
        self.started: list[subprocess.Popen[str]] = []
        names: dict[str, Any] = {"__name__": "shop_tasks"}
        exec(MODULE, names)
        self.app: Tasks = names["app"]
        self.pid: Any = names["pid"]
        self.version: Any = names["version"]
        self.spin: Any = names["spin"]

    def start(self, *options: str, app: str = "shop_tasks:app") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fdbqueue", "worker", app, *options]
        path = str(Path(fdbqueue.__file__).parents[1])
        environment = {**os.environ, "FDBQUEUE_URL": f"file:{self.folder / 'db'}", "PYTHONPATH": path}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        process = forked.Popen(command, cwd=self.folder, env=environment, text=True, **pipes)
        self.started.append(process)
        return process


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    made.db.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def test_a_worker_runs_tasks_and_ends_gracefully_at_sigterm(shop: Shop) -> None:
    process = shop.start("--json")
    assert shop.pid.enqueue(shop.db).result(timeout=60) != process.pid
    assert shop.version.enqueue(shop.db).result(timeout=60) == 1
    process.terminate()
    code, out, err = ended(process)

    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record.get("task") for record in records] == ["pid", "version", None]
    assert {"at", "process", "level", "message", "item", "attempt", "seconds"} <= records[0].keys()
    assert records[2]["message"].startswith("Stopped: 2 acked")


def test_lines_of_one_turn_of_the_event_loop_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    class Output(io.StringIO):
        def flush(self) -> None:
            written.append(self.getvalue()[sum(map(len, written)) :])

    async def log_in_two_turns() -> None:
        for turn in range(2):
            for number in range(3):
                log.info("turn %d, line %d", turn, number)
            assert len(written) == turn
            await asyncio.sleep(0)

    monkeypatch.setattr(sys, "stdout", Output())
    log = logging.getLogger("fdbqueue")
    before, level = list(log.handlers), log.level
    try:
        set_up_log(as_json=True)
        asyncio.run(log_in_two_turns())
        log.info("after it")
    finally:
        log.handlers[:] = before
        log.setLevel(level)

    told = [[json.loads(line)["message"] for line in lines.splitlines()] for lines in written]
    assert told == [[f"turn {turn}, line {number}" for number in range(3)] for turn in range(2)] + [["after it"]]


def test_queues_are_named(shop: Shop) -> None:
    process = shop.start("--queues", "other")
    waits = shop.pid.enqueue(shop.db)
    assert shop.version.enqueue(shop.db).result(timeout=60) == 1
    assert waits.outcome(shop.db) is None
    process.terminate()
    assert ended(process)[0] == 0


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_processes_are_started_again_when_they_die_and_end_together(shop: Shop, options: list[str]) -> None:
    process = shop.start(*options)
    first = shop.pid.enqueue(shop.db).result(timeout=60)
    assert first != process.pid
    os.kill(first, signal.SIGKILL)
    assert process.stderr is not None
    assert f"The worker {first} was killed by signal 9." in process.stderr.readline()
    assert shop.pid.enqueue(shop.db).result(timeout=60) != first
    process.terminate()
    code, _, err = ended(process)

    assert (code, err) == (0, "")


def test_tasks_that_keep_a_processor_busy_run_in_several_processes(shop: Shop) -> None:
    process = shop.start("--processes", "2", "--concurrency", "1")
    handles = [shop.spin.enqueue(shop.db, number) for number in range(2)]
    pids = {handle.result(timeout=60) for handle in handles}
    process.terminate()

    assert len(pids) == 2
    assert ended(process)[0] == 0


def test_workers_that_are_stopped_while_they_start_end_gracefully(shop: Shop) -> None:
    process = shop.start("--processes", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:
        assert process.poll() is None
    process.terminate()

    assert ended(process) == (0, "", "")


def test_workers_end_with_the_process_that_started_them(shop: Shop) -> None:
    process = shop.start("--processes", "2")
    child = os.pidfd_open(shop.pid.enqueue(shop.db).result(timeout=60))
    process.kill()

    assert select.select([child], [], [], 60)[0] == [child]
    os.close(child)


def test_workers_start_again_when_a_file_changes(shop: Shop) -> None:
    process = shop.start("--reload")
    assert shop.version.enqueue(shop.db).result(timeout=60) == 1
    (shop.folder / "shop_tasks.py").write_text(MODULE.replace("return 1", "return 2") + "\n\n")
    assert process.stderr is not None
    assert process.stderr.readline() == "A file has changed: the workers start again.\n"
    assert shop.version.enqueue(shop.db).result(timeout=60) == 2
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 0


def free_ports(number: int) -> int:
    """Return the first of some ports in a row that are free now. No connection of another program gets them."""
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for one in range(number):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + one))
            return port
    raise AssertionError("there are no free ports")


def answered(port: int, path: str = "/") -> str:
    while True:
        with contextlib.suppress(ConnectionRefusedError, urllib.error.URLError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=600).read().decode()  # type: ignore[no-any-return]


def test_health_and_metrics_of_a_worker(shop: Shop) -> None:
    health, metrics = free_ports(1), free_ports(1)
    process = shop.start("--health", str(health), "--metrics", f"127.0.0.1:{metrics}")
    shop.pid.enqueue(shop.db).result(timeout=60)
    told = json.loads(answered(health))
    assert (told["alive"], told["queues"]) == (True, ["shop", "other"])
    series = answered(metrics, "/metrics")
    assert re.search(r'fdbqueue_consumer_items_total\{consumer="[^"]+",outcome="acked",queue="shop"\} 1.0', series)
    assert 'fdbqueue_enqueued_total{queue="shop"} 1.0' in series
    process.terminate()
    code, _, err = ended(process)

    assert (code, err) == (0, "")


def test_each_process_has_its_own_health_and_metrics(shop: Shop) -> None:
    file, metrics = shop.folder / "health", free_ports(2)
    process = shop.start("--processes", "2", "--health", f"file:{file}", "--metrics", f"127.0.0.1:{metrics}")
    for number in range(2):
        assert "fdbqueue_up 1.0" in answered(metrics + number, "/metrics")
    assert json.loads(file.read_text())["alive"]
    assert json.loads((shop.folder / "health.1").read_text())["alive"]
    process.terminate()
    assert ended(process)[0] == 0
    assert [one.name for one in shop.folder.glob("health*")] == []


@pytest.mark.parametrize("processes", ["1", *at_night("2")])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--health", "nowhere"], "health is 'file:PATH', a port from 0 to 65535, or 'HOST:PORT'"),
        (["--health", "file:"], "names no file"),
        (["--health", "70000"], "a port from 0 to 65535"),
        (["--processes", "2", "--health", "65535"], "a port from 0 to 65535"),
        (["--processes", "2", "--metrics", "127.0.0.1:65535"], "listen is HOST:PORT"),
        (["--metrics", "9464"], "listen is HOST:PORT"),
    ],
)
def test_where_health_and_metrics_can_not_be_is_told(shop: Shop, options: list[str], told: str, processes: str) -> None:
    code, _, err = ended(shop.start("--processes", processes, *options))

    assert code == 2
    assert told in " ".join(err.replace("│", "").split())


def test_a_signal_ends_workers_that_have_a_long_task_when_a_file_changes(shop: Shop) -> None:
    process = shop.start("--reload", "--grace", "600")
    shop.pid.enqueue(shop.db, stays=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "stays\n"
    (shop.folder / "shop_tasks.py").write_text(MODULE + "\n\n")
    assert process.stderr.readline() == "A file has changed: the workers start again.\n"
    while process.poll() is None:  # two signals at once may be one
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)

    assert process.returncode in (0, -signal.SIGTERM)  # the last signal may come while Python ends
    assert shop.app.lane.leases.stats(shop.db).available == 1


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("shop_tasks", "is not MODULE:APP"),
        ("no_such_module:app", "there is no module 'no_such_module' here"),
        ("shop_tasks:missing", "shop_tasks has no 'missing'"),
        ("shop_tasks:apps", "shop_tasks has no 'apps': perhaps you mean 'app'"),
        ("shop_tasks:not_an_app", "'not_an_app' of shop_tasks is 7, and not Tasks"),
    ],
)
@pytest.mark.parametrize("options", [[], *at_night(["--processes", "2"])])
def test_what_is_no_app_is_told_once(shop: Shop, app: str, told: str, options: list[str]) -> None:
    code, _, err = ended(shop.start(*options, app=app))

    assert code == 2
    assert told in " ".join(err.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "told", "lines"),
    [
        ("x = 1\ndef f(:\n", "broken.py, line 2: SyntaxError: invalid syntax", 4),
        ("import os\nimport no_such_thing\n", "broken.py, line 2: ModuleNotFoundError: No module named", 3),
        ("from fdbqueue.layers import Nothing\n", "broken.py, line 1: ImportError: cannot import name 'Nothing'", 3),
        ("import json\njson.loads('{')\n", "broken.py, line 2: JSONDecodeError: Expecting", 3),
        ("def f():\n    raise ValueError('no\\npassword')\n\nf()\n", "broken.py, line 2: ValueError: no", 6),
    ],
)
def test_a_module_that_can_not_be_imported_is_told_by_a_sentence(shop: Shop, text: str, told: str, lines: int) -> None:
    (shop.folder / "broken.py").write_text(text)
    code, out, err = ended(shop.start(app="broken:app"))

    assert (code, out) == (2, "")
    first, *rest = err.splitlines()
    assert first.startswith(f"Error: broken can't be imported: {shop.folder / told}")
    assert len(rest) < lines
    assert "importlib" not in err


@pytest.mark.parametrize("option", ["--metrics", "--health"])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_port_that_is_taken_is_told_with_its_option(shop: Shop, option: str, processes: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = f"127.0.0.1:{port - processes + 1}" if option == "--metrics" else str(port - processes + 1)
        code, _, err = ended(shop.start(option, given, "--processes", str(processes)))
    assert code == 3
    what = option.removeprefix("--")
    assert err == f"Error: {what} can't be served at 127.0.0.1:{port}: Address already in use. Give another {option}.\n"


@pytest.mark.parametrize("processes", ["1", *at_night("2")])
def test_a_database_that_can_not_be_opened_is_told_and_no_process_starts_again(shop: Shop, processes: str) -> None:
    (shop.folder / "file").write_bytes(b"")
    code, _, err = ended(shop.start("--processes", processes, "--url", f"file:{shop.folder / 'file'}"))

    assert code == 3
    told = f"Error: {shop.folder / 'file'}: is a file. file: needs a folder."
    assert set(err.splitlines()) == {told}  # of two processes each may say so


def test_an_unknown_queue_is_told(shop: Shop) -> None:
    code, _, err = ended(shop.start("--queues", "missing"))

    assert code == 2
    assert "is in a queue 'missing'. Its queues are shop, other." in err


@pytest.mark.engines("file", "cluster")
def test_schedules_are_listed_and_changed(db: Any, name: str, space: Subspace, run: Run) -> None:
    app = Tasks(space)

    @app.task
    def work() -> None: ...

    app.periodic("*/5 * * * *", tz="Europe/Zurich")(work)
    app.periodic(every=30, name="often")(work)
    none = run("schedules", name)
    assert (none.exit_code, none.stdout, none.stderr) == (1, "", "The queue has no schedules.\n")
    app.run_due(db)

    def shown(*options: str) -> list[dict[str, Any]]:
        result = run("schedules", name, *options)
        assert result.exit_code == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    assert [(one["schedule"], one["task"], one["rule"], one["status"]) for one in shown()] == [
        ("often", "work", "every 30 s", "on time"),
        ("work", "work", "*/5 * * * * Europe/Zurich", "on time"),
    ]
    assert shown("--pause", "work")[1]["status"] == "paused"
    assert shown("--resume", "work")[1]["status"] == "on time"
    changed = shown("--change", "work", "--cron", "0 8 * * *", "--tz", "UTC")[1]
    assert (changed["rule"], changed["changed"]) == ("0 8 * * * UTC", True)
    assert not shown("--reset", "work")[1]["changed"]
    assert [one["schedule"] for one in shown("--remove", "often")] == ["work"]


@pytest.mark.engines("file", "cluster")
@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (["--pause", "missing"], 2, "has no schedule 'missing'"),
        (["--pause", "a", "--resume", "b"], 2, "give one of them at a time"),
        (["--cron", "* * * * *"], 2, "they go with --change NAME"),
        (["--change", "a", "--cron", "61 * * * *"], 2, "is no cron expression"),
        (["--change", "a"], 2, "Give a cron expression"),
    ],
)
def test_wrong_options_of_schedules_are_told(name: str, run: Run, options: list[str], code: int, told: str) -> None:
    result = run("schedules", name, *options)

    assert result.exit_code == code
    assert told in " ".join(result.stderr.replace("│", "").split())
