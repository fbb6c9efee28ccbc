"""Standard input that comes late, never, or with what nobody expects, and streams that are closed."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors, input
from fdbqueue.cli.errors import SIGNALS
from fdbqueue.layers.leases import Leases
from tests.cli.conftest import Run, deep
from tests.cli.test_leasing import lines
from tests.helpers import forked
from tests.helpers.nightly import at_night
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "fdbqueue"]


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    (tmp_path / "db").mkdir()
    return f"file:{tmp_path / 'db'}"


@pytest.fixture
def queue() -> fdbqueue.Queue:
    return fdbqueue.Queue("orders", codec="json")


@contextmanager
def fed(*arguments: str, url: str) -> Iterator[Any]:
    """Run a command that reads what the test writes, for as long as the test needs it."""
    command = [*COMMAND, *arguments, "--url", url]
    with forked.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def closed(stream: str, *arguments: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a command with one of its standard streams closed."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {stream}&-', "sh", *COMMAND, *arguments, "--url", url], capture_output=True, text=True
    )


def test_lines_are_enqueued_after_a_pause_of_the_input(file_url: str, queue: fdbqueue.Queue) -> None:
    with fdbqueue.open(file_url) as db, fed("enqueue", "orders", url=file_url) as process:
        process.stdin.write(b"1\n2\n3")
        wait_until(lambda: queue.stats(db).available == 2)
        process.stdin.write(b"4\n5")
        process.stdin.close()
        assert process.wait(600) == 0
        assert [item.value for item in queue.browse(db)] == [1, 2, 34, 5]


def test_no_read_of_standard_input_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # A signal that comes just before a read blocks would be handled after the next input.
    reads, writes = os.pipe()
    waits = iter([b"1\n", b"", b"", b"2\n3", b"", b"4\n"])

    def without_waiting(read: Any, *_: Any) -> Any:
        ready = select.select(read, [], [], 0)
        if not ready[0]:
            os.write(writes, more) if (more := next(waits, None)) is not None else os.close(writes)
        return ready

    class Source:
        def fileno(self) -> int:
            return reads

        def read1(self, size: int) -> bytes:
            assert select.select([reads], [], [], 0)[0], "this read blocks"
            return os.read(reads, size)

    monkeypatch.setattr(input, "select", SimpleNamespace(select=without_waiting))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False, buffer=Source()))

    groups = [list(group) for group in input.groups_of_lines("values", "VALUE")]

    os.close(reads)
    assert groups == [[b"1"], [b"2"], [b"34"]]


def test_all_commands_read_standard_input_in_one_way() -> None:
    files = [path for path in Path(errors.__file__).parent.rglob("*.py") if path.name != "input.py"]
    reads = [line.strip() for path in files for line in path.read_text().splitlines() if "stdin.buffer" in line]

    assert all("read_some(sys.stdin.buffer)" in line for line in reads), reads


def test_a_lease_is_acked_when_no_more_come_for_a_while(file_url: str, queue: fdbqueue.Queue) -> None:
    with fdbqueue.open(file_url) as db, fed("ack", "orders", url=file_url) as process:
        queue.enqueue_many(db, [1, 2])
        for lease in Leases(queue).lease_many(db, duration=600):
            process.stdin.write(f"{lease.handle}\n".encode())
        wait_until(lambda: queue.stats(db).dequeued == 2)
        assert process.poll() is None


def test_a_bad_line_tells_how_many_items_are_in(file_url: str, queue: fdbqueue.Queue) -> None:
    with fdbqueue.open(file_url) as db, fed("enqueue", "orders", url=file_url) as process:
        process.stdin.write(b"1\n\n2\n")
        wait_until(lambda: queue.stats(db).available == 2)
        process.stdin.write(b"oops\n")
        assert process.wait(600) == errors.VALUE
        assert b"Error: Line 4: 'oops' is not JSON" in (told := process.stderr.read())
        assert told.endswith(b"2 items were enqueued.\n")


def test_an_interrupted_enqueue_tells_how_many_items_are_in(file_url: str, queue: fdbqueue.Queue) -> None:
    with fdbqueue.open(file_url) as db, fed("enqueue", "orders", url=file_url) as process:
        for there, lines in enumerate([b"1\n", b"2\n"], 1):
            process.stdin.write(lines)
            wait_until(lambda there=there: queue.stats(db).available == there)  # type: ignore[misc]
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 128 + signal.SIGINT
        assert re.search(rb"(1 item was|2 items were) enqueued before\.", process.stderr.read())


@pytest.mark.parametrize("number", [SIGNALS[0], *at_night(*SIGNALS[1:])])
def test_an_interrupted_endless_input_tells_how_many_items_are_surely_in(
    file_url: str, queue: fdbqueue.Queue, number: signal.Signals
) -> None:
    command = [*COMMAND, "enqueue", "orders", "--url", file_url]
    with (
        fdbqueue.open(file_url) as db,
        subprocess.Popen(["yes", "1"], stdout=subprocess.PIPE) as endless,
        forked.Popen(command, stdin=endless.stdout, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            wait_until(lambda: queue.stats(db).available)
            process.send_signal(number)
            _, told = process.communicate(timeout=600)
        finally:
            endless.kill()
            process.kill()

    assert process.returncode == 128 + number
    assert "was interrupted when it had read" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("command", ["enqueue", "clear", *at_night("ack", "nack", "purge")])
def test_a_closed_standard_input_is_a_usage_error(file_url: str, queue: fdbqueue.Queue, command: str) -> None:
    with fdbqueue.open(file_url) as db:
        dead_letter(db, queue)

    refused = closed("<", command, "orders", url=file_url)

    assert refused.returncode == errors.USAGE, refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("command", ["enqueue", *at_night("ack", "nack")])
def test_a_standard_input_that_can_not_be_read_is_an_error(
    file_url: str, queue: fdbqueue.Queue, command: str, tmp_path: Path
) -> None:
    with fdbqueue.open(file_url) as db:
        dead_letter(db, queue)
    with (tmp_path / "written").open("wb") as written:
        failed = forked.run(
            [*COMMAND, command, "orders", "--url", file_url], stdin=written, capture_output=True, text=True
        )

    assert failed.returncode == errors.ENGINE
    assert failed.stderr == "Error: Standard input can't be read: Bad file descriptor.\n"


def test_a_closed_standard_error_does_not_fail_a_finished_command(file_url: str, queue: fdbqueue.Queue) -> None:
    assert closed("2>", "enqueue", "orders", "1", url=file_url).returncode == 0
    assert closed("2>", "clear", "orders", "--yes", url=file_url).returncode == 0


def dead_letter(db: Any, queue: fdbqueue.Queue) -> None:
    leases = Leases(queue, max_attempts=1)
    leases.enqueue(db, 1)
    taken = leases.lease(db)
    assert taken is not None
    leases.nack(db, taken)


def lease_that_expires(queue: fdbqueue.Queue, url: str) -> None:
    with fdbqueue.open(url) as db:
        queue.enqueue(db, 1)
        Leases(queue).lease(db, duration=1e-6)


def test_a_watchdog_with_a_closed_output_still_runs_its_command(
    file_url: str, queue: fdbqueue.Queue, tmp_path: Path
) -> None:
    lease_that_expires(queue, file_url)
    called = tmp_path / "called"

    watched = closed(">", "watchdog", "orders", "--once", "--exec", f"touch {called}", url=file_url)

    assert (watched.returncode, watched.stderr) == (0, "Error: Standard output is closed.\n")
    assert called.exists()


@pytest.mark.parametrize("command", ["false", "/nonexistent"])
def test_a_failing_command_is_reported_and_its_item_returns(file_url: str, queue: fdbqueue.Queue, command: str) -> None:
    lease_that_expires(queue, file_url)
    with fdbqueue.open(file_url) as db:
        watched = closed("3>", "watchdog", "orders", "--once", "--exec", command, url=file_url)

        assert watched.returncode == 0
        assert "Error: the command of --exec failed for 1:" in watched.stderr
        assert "Traceback" not in watched.stderr
        assert queue.stats(db).available == 1


@pytest.mark.engines("file")
class TestOddLines:
    """Lines that no command should choke on."""

    def test_json_without_end_is_refused_by_its_line(self, run: Run, name: str) -> None:
        refused = run("enqueue", name, stdin="1\n" + "[" * 5_000 + "]" * 5_000 + "\n")

        assert refused.exit_code == errors.VALUE
        assert "Line 2" in refused.stderr

    def test_bytes_that_are_no_text_are_refused_by_their_line(self, run: Run, name: str) -> None:
        refused = run("enqueue", name, "--codec", "str", "--raw", stdin=b"fine\nnot \xff\n")

        assert refused.exit_code == errors.VALUE
        assert "Line 2: 'not \\udcff' is not valid text" in refused.stderr

    @pytest.mark.parametrize("line", [b"\xff\xfe\n", b"[" * 5_000 + b"\n"])
    @pytest.mark.parametrize("command", ["ack", "nack"])
    def test_a_handle_that_is_no_text_is_refused_by_its_line(
        self, run: Run, name: str, line: bytes, command: str
    ) -> None:
        refused = run(command, name, stdin=b"\n" + line)

        assert refused.exit_code == errors.VALUE
        assert "Line 2" in refused.stderr

    def test_acks_before_a_bad_line_are_counted(self, run: Run, name: str) -> None:
        run("enqueue", name, "1")

        refused = run("ack", name, "1:00:00", "nonsense")

        assert refused.stderr == "Error: 'nonsense' is not a lease's handle. A handle looks like 7:72616e64:746f6b65.\n"
        assert run("ack", name, stdin=b"nonsense\n").stderr.endswith(" 0 items were acked.\n")
        assert "Error: Line 1: The field 'lease' is missing." in run("ack", name, stdin=b'{"bad":1}\n').stderr

    def test_leases_before_a_bad_handle_are_acked(self, run: Run, name: str) -> None:
        run("enqueue", name, "1", "2", "3")
        leased = run("lease", name, "-n", "2").stdout

        refused = run("ack", name, stdin=leased + "nonsense\n" + run("lease", name).stdout)

        assert refused.exit_code == errors.VALUE
        assert refused.stderr.startswith("Error: Line 3: 'nonsense' is not a lease's handle")
        assert refused.stderr.endswith(" 2 items were acked.\n")
        [stats] = lines(run("stats", name).stdout)
        assert (stats["dequeued"], stats["leased"]) == (2, 1)

    @pytest.mark.parametrize("codec", ["json", "msgpack", "str", "tuple"])
    @pytest.mark.parametrize("more", [[], ["--records"]])
    def test_a_byte_that_is_no_text_inside_json_is_refused_by_its_line(
        self, run: Run, name: str, codec: str, more: list[str]
    ) -> None:
        values = {"str": b'"tea"', "tuple": b"[1]"}
        good = values.get(codec, b'{"sku": 1}') if not more else b'{"value": %b}' % values.get(codec, b"1")

        refused = run("enqueue", name, "--codec", codec, *more, stdin=good + b'\n{"value": "\xff"}\n')

        assert refused.exit_code == errors.VALUE
        assert "Error: Line 2: " in refused.stderr
        assert refused.stderr.endswith(" Nothing was enqueued.\n")
        assert run("peek", name, "--codec", codec).exit_code == errors.EMPTY

    def test_an_argument_of_bytes_that_are_no_text_is_a_bad_value(self, run: Run, name: str) -> None:
        refused = run("enqueue", name, '"\udcff"')

        assert refused.exit_code == errors.VALUE
        assert "is not JSON" in refused.stderr

    @pytest.mark.parametrize("odd", ["", "\udcff", "[" * 5_000])
    def test_a_bad_name_is_a_usage_error(self, run: Run, odd: str) -> None:
        assert run("stats", odd).exit_code == errors.USAGE

    def test_a_leased_item_that_json_can_not_hold_is_named(self, run: Run, name: str, db: Any, space: Any) -> None:
        nested = deep()
        fdbqueue.Queue(space, codec="msgpack").enqueue(db, nested)

        refused = run("lease", name, "--codec", "msgpack")

        assert refused.exit_code == errors.VALUE
        assert "Error: The item 1:" in refused.stderr

    def test_lost_leases_are_named_by_the_given_handles(self, run: Run, name: str) -> None:
        for command in "ack", "nack":
            lost = run(command, name, "1:00:00")
            assert lost.exit_code == errors.LOST
            assert lost.stderr.startswith("Error: The lease 1:00:00 is lost: ")
            assert "Queue(" not in lost.stderr
