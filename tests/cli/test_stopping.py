"""Signals that ask a command to stop are noted, and only one who insists ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fdbqueue.cli import errors, stopping
from fdbqueue.cli.errors import Stopped
from fdbqueue.cli.stopping import SIGNALS, StopSignals


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
    monkeypatch.setattr(stopping, "INSISTS_AFTER_SECONDS", 0.0)
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


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_an_interrupted_command_tells_that_it_had_begun(command: str) -> None:
    script = (
        "import fdbqueue.cli, sys, contextlib\n"
        "from fdbqueue.layers.leases._dead_letters import DeadLetters\n"
        "from fdbqueue.verbs.queue import Queue\n"
        "def interrupted(*_, **__): raise KeyboardInterrupt\n"
        f"DeadLetters.{command} = interrupted\n"
        "Queue.stats = lambda *_: type('Stats', (), {'dead': 1})\n"
        f"from fdbqueue.cli import {command}\n"
        f"{command}.opened_queue = lambda url, queue: contextlib.nullcontext()\n"
        f"fdbqueue.cli.app(['{command}', 'q', '--all'] + ['--yes'] * {command == 'purge'})\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.returncode == 128 + signal.SIGINT, told.stderr
    assert told.stderr.startswith("Some dead letters may be re")


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
