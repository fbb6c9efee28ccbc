"""A cluster that is locked, down, full or throttled: what commands, metrics and calls say, as docs/operations has it.

Needs a server of its own: `fdbserver` on the path, or named by the environment (`tests/chaos/server.py`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

import fdbqueue
from fdbqueue import FDBError, Queue
from fdbqueue.cli import app
from fdbqueue.layers import Consumer, Leases
from fdbqueue.observe import MetricsServer
from tests.chaos.server import Server, find_program, running
from tests.helpers.staging import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
LOCKED = b"\xff\xff/management/db_locked"


@pytest.fixture(scope="module")
def program() -> str:
    found = find_program()
    if found is None:
        pytest.skip("there is no fdbserver on the path: install foundationdb-server")
    return found


@pytest.fixture(scope="module")
def server(program: str) -> Iterator[Server]:
    with running(program) as started:
        yield started


@pytest.fixture
def leases() -> Leases[Any]:
    return Leases(Queue("troubles", codec="json"))


def run(server: Server, *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--url", f"fdb:{server.cluster_file}"])


def is_up(db: Any) -> bool:
    for family in text_string_to_metric_families(MetricsServer().text(db).decode()):
        if family.name == "fdbqueue_up":
            return family.samples[0].value == 1
    raise AssertionError("the text has no fdbqueue_up")


def wait_for_error(db: Any, leases: Leases[Any]) -> int:
    """Enqueue until a call fails, as the first ones may still pass; return the code."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            leases.enqueue(db, 1)
        except FDBError as error:
            return error.code
    return 0


def unlock(db: Any) -> None:
    """Unlock as `fdbcli` does, which asks for a passphrase that it prints."""
    tr = db.create_transaction()
    tr.options.set_special_key_space_enable_writes()
    tr.options.set_lock_aware()
    del tr[LOCKED]
    tr.commit().wait()


def test_a_locked_cluster_refuses_new_programs_and_lets_the_others_wait(server: Server, leases: Leases[Any]) -> None:
    db = fdbqueue.open(f"fdb:{server.cluster_file}")
    leases.queue.clear(db)
    leases.enqueue(db, 1)
    assert "locked" in server.say("lock").lower()
    try:
        waiting = threading.Thread(target=leases.enqueue, args=(db, 2))
        waiting.start()  # the client tries again until it is unlocked
        for command in (("enqueue", "troubles", "2"), ("stats", "troubles"), ("health",)):
            ran = run(server, *command)
            assert (ran.exit_code, ran.stderr) == (3, "Error: Database is locked (1038).\n")
        assert not is_up(db)
        assert waiting.is_alive()
    finally:
        unlock(db)
    waiting.join(60)
    assert is_up(db)
    assert Consumer(leases, lambda lease: None).drain(db).acked == 2


def test_calls_wait_for_a_recovery_and_consumers_survive_it(server: Server, leases: Leases[Any]) -> None:
    db = fdbqueue.open(f"fdb:{server.cluster_file}")
    leases.enqueue(db, 0)  # registers the queue
    consumer = Consumer(leases, lambda lease: None, signals=False)
    thread = threading.Thread(target=consumer.run, args=(db,))
    thread.start()
    try:
        wait_until(lambda: consumer.report.acked == 1)
        server.stop()
        waiting = threading.Thread(target=leases.enqueue, args=(db, 1))
        waiting.start()
        ran = run(server, "health", "--patience", "1")
        assert ran.exit_code == 3
        assert re.search(r"did not answer within \d", ran.stderr)
        assert waiting.is_alive()  # without a timeout of its own it waits
        server.start()
        waiting.join(60)
        wait_until(lambda: consumer.report.acked == 2)
    finally:
        consumer.stop()
        thread.join()
    assert run(server, "health").exit_code == 0


def test_a_cluster_without_room_stops_to_answer(program: str, leases: Leases[Any]) -> None:
    with running(program, "--knob_min_available_space_ratio", "0.99", engine="ssd") as server:
        db = fdbqueue.open(f"fdb:{server.cluster_file}")
        db.options.set_transaction_timeout(3_000)
        try:
            assert wait_for_error(db, leases) == 1031
            ran = run(server, "health", "--patience", "1")
            assert ran.exit_code == 3
            assert "in time" in ran.stderr or "did not answer" in ran.stderr
        finally:
            db.options.set_transaction_timeout(0)


def test_a_tag_with_a_quota_is_slow_and_sees_no_error(server: Server) -> None:
    db, queue = fdbqueue.open(f"fdb:{server.cluster_file}"), Queue("troubles", codec="json")
    assert "Successfully" in server.say("quota set batch total_throughput 16384")
    try:
        for number in range(20):
            tr = db.create_transaction()
            tr.options.set_auto_throttle_tag("batch")
            queue.enqueue(tr, number)
            tr.commit().wait()
    finally:
        server.say("quota clear batch")
    assert queue.stats(db).available >= 20
