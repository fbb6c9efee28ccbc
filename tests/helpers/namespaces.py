"""Run a function in a PID namespace of its own, as a container's first process: it has the PID 1."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.processes import Processes

_CLONE_NEWPID = 0x20000000


def enter() -> None:
    """Let the next child of this process be the first one of a new PID namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare")


def contained(function: Callable[..., object], *args: Any, kill: Any = None) -> None:
    """Run `function(*args)` as process 1 of a new namespace, and exit as it does; kill it when `kill` is set."""
    enter()
    child = os.fork()
    if not child:
        try:
            assert os.getpid() == 1
            function(*args)
        except BaseException:  # noqa: BLE001 -- a forked child, which ends here
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if kill is not None:
        kill.wait()
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(0 if kill is not None and code == -signal.SIGKILL else abs(code))


def need(processes: Processes) -> None:
    """Skip the test if this user may make no PID namespaces."""
    process = processes.start(enter)
    process.join(600)
    if process.exitcode:
        pytest.skip("PID namespaces can't be made here (unshare): run the tests as root to test them")
