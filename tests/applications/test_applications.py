"""The example applications start, take an order and handle it. The files for systemd and Kubernetes are well formed."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
import yaml

import fdbqueue
from fdbqueue.cli.app import app as commands
from fdbqueue.layers import Leases
from tests.helpers import forked

FOLDER = Path(__file__).parents[2] / "examples" / "applications"
MODULES = "examples.applications"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'shop'}"


@pytest.fixture
def environment(tmp_path: Path, url: str) -> dict[str, str]:
    return {**os.environ, "FDBQUEUE_URL": url, "SHOP_DB": str(tmp_path / "shop.sqlite3"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *arguments]
        started.append(
            forked.Popen(
                command,
                cwd=FOLDER.parents[1],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def ran(start: Start, *arguments: str) -> str:
    """Run a command to its end, and return what it printed."""
    process = start(*arguments)
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    return printed


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def answering(process: subprocess.Popen[str], port: int) -> Iterator[httpx.Client]:
    """A client of a server, when it answers."""
    until = time.monotonic() + 60
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        while True:
            try:
                client.get("/healthz")
                break
            except httpx.TransportError:
                if process.poll() is not None or time.monotonic() > until:
                    process.kill()
                    raise AssertionError(f"It does not answer: {process.communicate()[0]}") from None
                time.sleep(0.05)  # nothing tells that another process listens
        yield client


def available(url: str) -> int:
    with fdbqueue.open(url) as db:
        return Leases(fdbqueue.Queue("orders", codec="json")).stats(db).available


@pytest.mark.slow
def test_fastapi_takes_an_order_handles_it_and_has_the_web_page(start: Start, url: str) -> None:
    port = free_port()
    server = start("uvicorn", f"{MODULES}.fastapi_app:app", "--port", str(port))
    with answering(server, port) as shop:
        assert shop.post("/orders/teapot").json()["item"]
        page = shop.get("/queues/")
        assert page.status_code == 200
        assert "orders" in page.text
        with fdbqueue.open(url) as db:
            sent = db[b"sent/teapot"]
            while sent == None:  # noqa: E711 - a future of the binding
                watch = db.get_and_watch(b"sent/teapot")
                watch[1].wait()
                sent = db[b"sent/teapot"]
    server.terminate()
    printed, _ = server.communicate(timeout=600)
    assert "Application shutdown complete" in printed, printed


@pytest.mark.slow
def test_a_fastapi_server_ends_when_its_consumer_fails(start: Start, url: str) -> None:
    with fdbqueue.open(url) as db:
        fdbqueue.Queue("orders").enqueue(db, b"of another codec")
    server = start("uvicorn", f"{MODULES}.fastapi_app:app", "--port", str(free_port()))
    printed, _ = server.communicate(timeout=600)
    assert "The consumer failed, so this server ends." in printed, printed
    assert "OtherCodec" in printed, printed


@pytest.mark.slow
def test_flask_takes_an_order_and_its_command_handles_it(start: Start, url: str) -> None:
    pytest.importorskip("flask", reason="the Flask example needs flask: pip install flask")
    port = free_port()
    server = start("flask", "--app", f"{MODULES}.flask_app", "run", "--port", str(port))
    with answering(server, port) as shop:
        assert shop.post("/orders/teapot").json()["item"]
        assert shop.get("/healthz").json() == {"available": 1}

    assert "sent teapot\n1 orders sent" in ran(start, "flask", "--app", f"{MODULES}.flask_app", "work", "--drain")
    assert available(url) == 0


DJANGO = f"""
from {MODULES} import django_app as shop
from django.db import connection, transaction

with connection.schema_editor() as schema:
    schema.create_model(shop.Order)
"""


@pytest.fixture
def shell(environment: dict[str, str]) -> Callable[[str], None]:
    """Run lines in a process of the Django project."""
    pytest.importorskip("django", reason="the Django example needs django: pip install django")

    def run(lines: str) -> None:
        done = forked.run(
            [sys.executable, "-c", lines], cwd=FOLDER.parents[1], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.slow
def test_django_enqueues_after_the_commit_and_its_command_handles_it(
    start: Start, url: str, shell: Callable[[str], None]
) -> None:
    shell(DJANGO + "shop.place_order('teapot')")
    assert available(url) == 1

    assert "sent teapot\n1 orders done" in ran(start, f"{MODULES}.django_app", "work", "--drain")
    assert available(url) == 0


@pytest.mark.slow
def test_django_enqueues_nothing_if_the_transaction_rolls_back(url: str, shell: Callable[[str], None]) -> None:
    shell(
        DJANGO
        + "try:\n    with transaction.atomic():\n        shop.place_order('teapot')\n        raise OSError\n"
        + "except OSError:\n    pass\n"
    )
    assert available(url) == 0


@pytest.mark.slow
def test_django_enqueues_each_order_of_a_loop(start: Start, url: str, shell: Callable[[str], None]) -> None:
    shell(DJANGO + "with transaction.atomic():\n    for sku in ('cup', 'pot'):\n        shop.place_order(sku)\n")

    printed = ran(start, f"{MODULES}.django_app", "work", "--drain")
    # Two threads print, so that the end of a line may come behind the other's text.
    assert all(told in printed for told in ("sent cup", "sent pot", "2 orders done"))


@pytest.mark.slow
def test_django_sweep_enqueues_once_what_a_death_behind_the_commit_left(
    start: Start, url: str, shell: Callable[[str], None]
) -> None:
    shell(DJANGO + "shop.Order.objects.create(sku='teapot')\nshop.once(shop.database(), 1)\n")  # died before its mark
    shell(f"from {MODULES} import django_app as shop\nshop.Order.objects.create(sku='cup')\n")  # died before its item

    assert "2 orders enqueued" in ran(start, f"{MODULES}.django_app", "sweep")
    assert "0 orders enqueued" in ran(start, f"{MODULES}.django_app", "sweep")
    assert available(url) == 2


def test_the_systemd_unit_starts_commands_that_exist_and_waits_for_their_end(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(FOLDER / "fdbqueue-worker.service")
    service = unit["Service"]

    check_command(shlex.split(service["ExecStart"]))
    grace = float(shlex.split(service["ExecStart"])[-1])
    assert float(service["TimeoutStopSec"]) > grace
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze, of Debian's systemd, checks the unit"
)
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    text = (FOLDER / "fdbqueue-worker.service").read_text()
    unit = tmp_path / "fdbqueue-worker.service"
    unit.write_text(text.replace("/srv/shop/.venv/bin/fdbqueue", shutil.which("true") or ""))

    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)

    complaints = [line for line in done.stderr.splitlines() if "fdbqueue-worker" in line]
    assert not complaints


def check_command(words: list[str]) -> None:
    """Parse a command's arguments as the command line does, and run nothing."""
    assert Path(words[0]).name == "fdbqueue", words
    group = typer.main.get_group(commands)
    command = group.commands[words[1]]
    command.make_context(words[1], list(words[2:]))


@pytest.fixture
def containers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod of the manifest, and its container."""
    found = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    assert [(one["apiVersion"], one["kind"]) for one in found] == [("apps/v1", "Deployment")] * 2
    for one in found:
        assert one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
    pods = [one["spec"]["template"]["spec"] for one in found]
    return [(pod, container) for pod in pods for container in pod["containers"]]


def test_the_manifests_commands_exist(containers: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for _, container in containers:
        check_command(container["command"])


def test_each_container_has_a_probe_whose_command_is_waited_for(
    containers: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    for _, container in containers:
        probes = [probe for name, probe in container.items() if name.endswith("Probe")]
        assert probes, container["name"]
        for probe in probes:
            command = probe["exec"]["command"]
            if command[0] == "sh":
                check_command(shlex.split(command[2].partition(" >")[0]))
            else:
                compile(command[2], "probe", "exec")
            assert probe["timeoutSeconds"] > 5


def test_a_pod_mounts_what_its_containers_use_and_outlives_their_grace(
    containers: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    for pod, container in containers:
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
        if "--grace" in container["command"]:
            grace = float(container["command"][container["command"].index("--grace") + 1])
            assert pod["terminationGracePeriodSeconds"] > grace
