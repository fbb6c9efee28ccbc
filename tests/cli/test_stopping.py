"""Signals that ask a command to stop are noted, and only one who insists ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.cli import errors
from fdbqueue.cli.errors import SIGNALS, Stopped, StopSignals
from tests.cli.conftest import Run
from tests.helpers import forked
from tests.helpers.nightly import at_night


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_takes_effect_where_the_command_checks_for_it(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        signals.check()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a wrapper has sent it a second time
        with pytest.raises(Stopped, match=f"Stopped by {number.name}") as stopped:
            signals.check()
    assert errors.exit_code_of(stopped.value) == 128 + number
    assert signal.getsignal(number) is before


def test_a_second_signal_later_ends_the_command_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "INSISTS_AFTER_SECONDS", 0.0)
    with StopSignals():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_in_a_thread_leaves_signals_to_the_main_one() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def enter() -> object:
        with StopSignals() as signals:
            signals.check()
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result(60) is before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_an_interrupted_command_tells_that_it_had_begun(command: str) -> None:
    script = (
        "import fdbqueue.cli, sys, contextlib\n"
        "from fdbqueue.layers.leases.browsing import DeadLetters\n"
        "from fdbqueue.verbs.queue import Queue\n"
        "def interrupted(*_, **__): raise KeyboardInterrupt\n"
        f"DeadLetters.{command} = interrupted\n"
        "Queue.stats = lambda *_: type('Stats', (), {'dead': 1})\n"
        "from fdbqueue.cli import dead\n"
        "dead.opened_queue = lambda url, queue: contextlib.nullcontext((None, Queue(queue)))\n"
        f"fdbqueue.cli.app(['{command}', 'q', '--all'] + ['--yes'] * {command == 'purge'})\n"
    )
    told = forked.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.returncode == 128 + signal.SIGINT, told.stderr
    assert told.stderr.startswith("Some dead letters may be re")


AT_IMPORT = """
import os, sys

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == os.environ["AT"]:
            os.kill(os.getpid(), int(os.environ["NUMBER"]))

sys.meta_path.insert(0, Finder)
"""
SCRIPT = os.path.join(sysconfig.get_path("scripts"), "fdbqueue")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [[SCRIPT], [sys.executable, "-m", "fdbqueue"], [sys.executable, "-mfdbqueue"]])
@pytest.mark.parametrize("module", ["fdbqueue.base.position", *at_night("msgspec", "fdbqueue.cli.app", "rich.console")])
def test_a_signal_while_python_imports_the_command_prints_no_traceback(
    module: str, program: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    path = os.pathsep.join([str(tmp_path), str(forked.ROOT)])

    ended = subprocess.run(
        [*program, "queues", "--help"],
        env={**os.environ, "PYTHONPATH": path, "AT": module, "NUMBER": str(int(number))},
        capture_output=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, b"", b"")


def test_other_programs_keep_pythons_handler_of_interrupts() -> None:
    program = "import signal, fdbqueue; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", program, "fdbqueue"], check=True, timeout=60)


def test_an_interrupt_while_the_command_loads_prints_no_traceback() -> None:
    program = """
import builtins, sys
real = builtins.__import__
def interrupted(name, *args, **kwargs):
    if name == "fdbqueue.cli.app":
        raise KeyboardInterrupt
    return real(name, *args, **kwargs)
builtins.__import__ = interrupted
import fdbqueue.cli
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def killed(number: signal.Signals) -> Callable[..., None]:
    """Return a function that gets a signal while it works, in place of one of the library's."""

    def work(*given: Any, **_: object) -> None:
        for one in given:
            if asyncio.iscoroutine(one):
                one.close()
        os.kill(os.getpid(), number)
        raise AssertionError("the signal did not interrupt it")

    return work


BEGUN = {
    "backup": ("fdbqueue.cli.transfer.back_up", ["{url}", "{folder}/other"], "No backup was made."),
    "cancel": ("fdbqueue.verbs.queue.Queue.cancel_many", ["{queue}", "--where", "a = 1", "--yes"], "Some items may be"),
    "copy": (
        "fdbqueue.cli.transfer.copy_queue",
        ["{queue}", "{url}", "file:{folder}/other"],
        "Run the same command again",
    ),
    "enqueue": ("fdbqueue.cli.input.run", ["{queue}", "8", "9"], ""),
    "export": ("fdbqueue.cli.transfer.export_items", ["{queue}", "--to", "{folder}/out.jsonl"], "goes on where it was"),
    "import": (
        "fdbqueue.cli.transfer.import_items",
        ["{queue}", "--from", "{folder}/in.jsonl"],
        "goes on where it was",
    ),
    "rename": ("fdbqueue.cli.queues.rename_queue", ["{queue}", "new"], "Run the same command again"),
    "watch": ("fdbqueue.layers.subscriptions.Follower.next_many", ["{queue}"], ""),
}


@pytest.mark.engines("file")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("command", BEGUN)
def test_every_signal_ends_a_command_with_a_message_like_a_ctrl_c(
    run: Run, url: str, name: str, tmp_path: Path, command: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("enqueue", name, "7", "--headers", '{"a": 1}')
    assert run("export", name, "--to", str(tmp_path / "in.jsonl")).exit_code == 0
    work, given, told = BEGUN[command]
    monkeypatch.setattr(work, killed(number))

    ended = run(command, *(one.format(queue=name, url=url, folder=tmp_path) for one in given))

    assert ended.exit_code == 128 + number, ended.stderr
    assert told in ended.stderr
    assert ended.stderr.endswith(f"Error: Stopped by {number.name}.\n")
    assert ended.stdout == ""
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.engines("file")
@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_that_a_finalizer_swallows_ends_the_command_all_the_same(
    run: Run, name: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Collected:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)

    def work(*_: object, **__: object) -> None:
        for _number in range(2):
            Collected()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            pass

    monkeypatch.setattr("fdbqueue.verbs.queue.Queue.enqueue_many", work)
    hook, alarm = sys.unraisablehook, signal.getsignal(signal.SIGALRM)

    ended = run("enqueue", name, stdin="1\n")

    assert ended.exit_code == 128 + number, ended.stderr
    assert ended.stderr == f"Error: Stopped by {number.name}.\n"
    assert (sys.unraisablehook, signal.getsignal(signal.SIGALRM)) == (hook, alarm)
