"""Commands as processes: on a terminal, in a pipe that breaks, in a shell that completes."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

import fdbqueue
from tests.helpers import forked
from tests.helpers.nightly import at_night

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "fdbqueue"]


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    url = f"file:{tmp_path / 'db'}"
    with fdbqueue.open(url) as db:
        queue = fdbqueue.Queue("orders", codec="json")
        queue.enqueue_many(db, [{"sku": "teapot"}, {"sku": "cup"}])
    return url


def on_terminal(
    *arguments: str, url: str, typed: str = "", command: Sequence[str] = COMMAND, **variables: str
) -> tuple[int, str]:
    """Run a command on a terminal of its own; return its exit code and what the terminal showed."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "FDBQUEUE_URL": url, "TERM": "dumb", "COLUMNS": "100", **variables}
    process = forked.Popen([*command, *arguments], stdin=end, stdout=end, stderr=end, env=environment)
    os.close(end)
    os.write(terminal, typed.encode())
    shown = b""
    try:
        while some := os.read(terminal, 65_536):
            shown += some
    except OSError:
        pass  # Linux's way to say that the other end was closed
    finally:
        os.close(terminal)
    return process.wait(timeout=60), shown.decode()


def items_left(url: str) -> int:
    with fdbqueue.open(url) as db:
        return fdbqueue.Queue("orders").stats(db).available


def test_a_terminal_shows_tables(file_url: str) -> None:
    code, shown = on_terminal("browse", "orders", url=file_url)

    assert code == 0
    assert "item" in shown
    assert '{"sku":"teapot"}' in shown
    assert "headers" not in shown, "no item has any"


def test_a_terminal_shows_values_to_copy_in_one_line(file_url: str) -> None:
    with fdbqueue.open(file_url) as db:
        fdbqueue.Queue("wide", codec="json").enqueue_many(db, ["x" * 500])

    _, shown = on_terminal("lease", "wide", url=file_url)
    handle = re.search(r"\d+:[0-9a-f]{16}:[0-9a-f]{16}", shown)
    assert handle is not None, shown

    on_terminal("nack", "wide", handle.group(), "--max-attempts", "1", url=file_url)
    _, shown = on_terminal("dead", "wide", url=file_url)
    assert re.search(r"\d+:[0-9a-f]{16}", shown), shown


@pytest.mark.parametrize("columns", ["20", "80", *at_night("34", "41", "56", "66")])
def test_values_to_copy_are_never_cut(file_url: str, columns: str) -> None:
    _, shown = on_terminal("lease", "orders", url=file_url, TERM="xterm", COLUMNS=columns)
    handle = re.search(r"\d+:[0-9a-f]{16}:[0-9a-f]{16}", shown)
    assert handle is not None, shown
    assert ("┃" in shown) == (columns in ("66", "80"))

    on_terminal("nack", "orders", handle.group(), "--max-attempts", "1", url=file_url)
    _, shown = on_terminal("dead", "orders", url=file_url, TERM="xterm", COLUMNS=columns)
    assert re.search(r"\d+:[0-9a-f]{16}", shown), shown
    assert ("┃" in shown) == (int(columns) >= 56)


@pytest.mark.parametrize("columns", ["40", *at_night("60", "80", "100")])
def test_a_narrow_terminal_shows_places_and_names_of_queues_whole(file_url: str, columns: str) -> None:
    with fdbqueue.open(file_url) as db:
        long = {"sku": "teapot " * 20}
        position = fdbqueue.Queue("long", codec="json").enqueue(db, long, headers={"color": "red " * 10})
        fdbqueue.Queue("tea[red]", codec="json").enqueue(db, 1)

    assert position.random.hex() in on_terminal("browse", "long", url=file_url, TERM="xterm", COLUMNS=columns)[1]
    shown = on_terminal("top", "orders", "tea[red]", "-n", "1", url=file_url, TERM="xterm", COLUMNS=columns)[1]
    for told in "orders", "tea[red]", "available", "wait":
        assert told in shown


def test_stats_show_the_rows_that_are_not_0_and_all_on_request(file_url: str) -> None:
    shown, everything = (on_terminal("stats", "orders", *more, url=file_url)[1] for more in ((), ("--all",)))

    assert re.findall(r"│ ([a-z]+) +│ +(\d+) │", shown) == [("available", "2"), ("enqueued", "2")]
    for row in "leased", "dead", "waiting requests", "timers overdue":
        assert row not in shown
        assert row in everything


def test_health_speaks_in_words(file_url: str) -> None:
    shown = on_terminal("health", url=file_url)[1]

    assert "a commit took, seconds" in shown
    assert not re.search(r"\b\w+(_\w+| (s|us))\b *│", shown), "the name of a field"


def test_a_queue_name_with_brackets_is_printed_as_it_is(file_url: str) -> None:
    assert "tea[red]pots" in on_terminal("stats", "tea[red]pots", url=file_url)[1]


def test_a_terminal_shows_json_lines_when_asked(file_url: str) -> None:
    code, shown = on_terminal("browse", "orders", "--json", url=file_url)

    assert (code, shown.split()) == (0, ['{"sku":"teapot"}', '{"sku":"cup"}'])


def test_clear_asks_on_a_terminal_and_takes_no_for_an_answer(file_url: str) -> None:
    code, shown = on_terminal("clear", "orders", url=file_url, typed="n\n")

    assert code != 0
    assert "Remove the 2 items" in shown
    assert items_left(file_url) == 2


def test_clear_asks_on_a_terminal_and_clears_on_yes(file_url: str) -> None:
    code, _ = on_terminal("clear", "orders", url=file_url, typed="y\n")

    assert code == 0
    assert items_left(file_url) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["clear", *at_night("cancel --all")])
def test_a_signal_at_a_question_ends_the_command_by_its_own_exit_code(
    file_url: str, command: str, number: signal.Signals
) -> None:
    terminal, end = pty.openpty()
    verb, *options = command.split()
    process = forked.Popen([*COMMAND, verb, "orders", *options, "--url", file_url], stdin=end, stdout=end, stderr=end)
    os.close(end)
    shown = b""
    while b"?" not in shown:
        shown += os.read(terminal, 65_536)
    process.send_signal(number)
    with suppress(OSError):  # Linux's way to say that the other end was closed
        while some := os.read(terminal, 65_536):
            shown += some
    os.close(terminal)

    assert process.wait(timeout=60) == 128 + number
    assert f"Stopped by {number.name}" in shown.decode()
    assert items_left(file_url) == 2


@pytest.mark.parametrize("command", ["dequeue", *at_night("lease", "stats")])
def test_an_answer_that_a_full_disk_does_not_take_is_an_error_and_not_an_empty_queue(
    file_url: str, command: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        failed = forked.run(
            [*COMMAND, command, "orders", "--url", file_url], stdout=full, stderr=subprocess.PIPE, text=True
        )

    assert failed.returncode == 3
    assert "Error: Standard output can't be written: No space left on device." in failed.stderr
    told = {
        "dequeue": "0 items were printed and are out of the queue, 1 went back to it.",
        "lease": "0 leases were printed, 1 more item went back.",
    }
    assert told.get(command, "") in failed.stderr
    assert items_left(file_url) == 2


@pytest.mark.parametrize("arguments", [["dequeue", "--help"], *at_night(["--version"], ["--help"])])
def test_a_full_disk_makes_no_traceback_of_the_help(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        failed = forked.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)

    assert (failed.returncode, failed.stderr) == (3, "Error: [Errno 28] No space left on device\n")


def test_no_item_is_dequeued_for_a_closed_output(file_url: str) -> None:
    command = [*COMMAND, "dequeue", "orders", "--url", file_url]
    refused = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True)

    assert (refused.returncode, refused.stderr) == (3, "Error: Standard output is closed.\n")
    assert items_left(file_url) == 2


def test_a_reader_that_has_enough_is_no_error_to_read_about(file_url: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    browsed = forked.run(
        [*COMMAND, "browse", "orders", "--url", file_url], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)

    assert (browsed.returncode, browsed.stderr) == (3, "")


def test_the_entry_point_is_installed_and_knows_its_version() -> None:
    told = subprocess.run([Path(sys.executable).with_name("fdbqueue"), "--version"], capture_output=True, text=True)

    assert told.returncode == 0
    assert told.stdout.startswith("fdbqueue ")


@pytest.mark.parametrize("shell", ["bash", *at_night("zsh", "fish")])
def test_a_shell_gets_completion(shell: str) -> None:
    environment = {**os.environ, "_FDBQUEUE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "fdbqueue de"}
    environment |= {"COMP_WORDS": "fdbqueue de", "COMP_CWORD": "1", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    offered = subprocess.run(
        [Path(sys.executable).with_name("fdbqueue")], capture_output=True, text=True, env=environment
    )

    assert "dequeue" in offered.stdout
    assert "dead" in offered.stdout


def test_no_arguments_print_help(tmp_path: Path) -> None:
    told = subprocess.run(COMMAND, capture_output=True, text=True)

    assert "Usage" in told.stdout + told.stderr


def test_an_item_with_unprintable_characters_is_shown(file_url: str) -> None:
    with fdbqueue.open(file_url) as db:
        fdbqueue.Queue("signs", codec="json").enqueue(db, "tea → pot")
    _, shown = on_terminal("dequeue", "signs", url=file_url, PYTHONIOENCODING="ascii")

    assert "tea \\u2192 pot" in shown


def test_a_mistyped_folder_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "shpo"
    for command in ("stats", "dequeue", "top"):
        code, shown = on_terminal(command, "orders", url=f"file:{folder}?durability=relaxed")
        assert (code, "the folder does not exist" in shown.replace("\r\n", " ")) == (3, True)
    assert not folder.exists()

    code, _ = on_terminal("enqueue", "orders", "1", url=f"file:{folder}")
    assert (code, folder.exists()) == (0, True)


def test_a_folder_locked_by_another_process_is_a_clear_error(file_url: str) -> None:
    environment = {**os.environ, "FDBQUEUE_URL": file_url}
    folder = file_url.removeprefix("file:")
    stats = "from fdbqueue.cli import app, opening; opening.PATIENCE_SECONDS = 0.2; app(['stats', 'orders'])"
    with lmdb.open(folder, max_dbs=20) as held, held.begin(write=True):
        ran = forked.run(
            [sys.executable, "-c", stats], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert ran.returncode == 3
    assert f"fuser -v {folder}/data.mdb" in ran.stderr
