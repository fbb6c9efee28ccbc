"""Commands in processes of their own, forked from one that has imported them: imports take longer than most commands.

`Popen` and `run` take what those of `subprocess` take. A command ``python -m MODULE``, ``-c CODE`` or ``FILE`` of this
interpreter is forked from a server (`forkserver.py`), which this process starts when it first needs one. The child has
standard streams, variables, a folder and signals as a started one has, and runs to the interpreter's end. Every other
command is started. So are all commands if `subprocess` has not the methods that are replaced here.

A test about imports, warnings or the interpreter's start uses `subprocess` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import pickle
import select
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READ_ONCE = ("PYTHON", "LC_", "LANG", "FORCE_COLOR", "PY_COLORS", "TERMINAL_WIDTH", "GITHUB_ACTIONS", "_TYPER")
"""Variables that the interpreter or an import reads: a command with others than the server's is started."""
HEEDED = ("PYTHONPATH", "PYTHONUNBUFFERED")

_execute = inspect.signature(getattr(subprocess.Popen, "_execute_child", lambda: None))
_KNOWN = {"args", "env", "cwd", "shell", "preexec_fn", "pass_fds", "p2cread", "c2pwrite", "errwrite"}
_CAN = hasattr(os, "fork") and hasattr(subprocess.Popen, "_try_wait") and _execute.parameters.keys() >= _KNOWN


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, forked if the command can be."""

    _status: socket.socket | None = None

    def _execute_child(self, *args: Any) -> None:
        given = _execute.bind(self, *args).arguments if _CAN else {}
        if not given or not _can_be_forked(given):
            super()._execute_child(*args)  # type: ignore[misc]
            return
        self._status, theirs = socket.socketpair()
        ends = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        with theirs:
            fds = [fd if fd != -1 else number for number, fd in enumerate(ends)]
            socket.send_fds(_server(os.getpid()), [b"!"], [theirs.fileno(), *fds])
        environment = dict(os.environ if given["env"] is None else given["env"])
        job = [*map(os.fspath, given["args"][1:])], os.fspath(given["cwd"] or os.getcwd()), environment
        self._status.sendall(pickle.dumps((*job, given["start_new_session"])))
        self.pid: int = int.from_bytes(self._status.recv(8))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[pipe] for pipe in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Return what `os.waitpid` returns of a child. This process is the parent of none that was forked."""
        if self._status is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status as status:
            return self.pid, int.from_bytes(status.recv(8))

    def poll(self) -> int | None:
        if self._status is None:
            return super().poll()
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(0)
        return self.returncode


def run(
    command: Any, *, input: Any = None, capture_output: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does."""
    check = options.pop("check", False)
    if capture_output:
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(command, process.wait(), out, err)
    if check:
        ended.check_returncode()
    return ended


def _can_be_forked(given: dict[str, Any]) -> bool:
    command, environment = given["args"], os.environ if given["env"] is None else given["env"]
    ours = isinstance(command, list | tuple) and len(command) > 1 and command[0] == sys.executable
    plain = ours and (command[1] in ("-m", "-c") or not str(command[1]).startswith("-"))
    other = given["shell"] or given["preexec_fn"] or given["pass_fds"]
    return plain and not other and _read_once(environment) == _read_once(os.environ)


def _read_once(environment: Any) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith(READ_ONCE) and name not in HEEDED}


@cache
def _server(pid: int) -> socket.socket:
    """Start the server of this process, which a fork of it does not share; return the socket that it listens at."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.helpers.forkserver", str(theirs.fileno())]
        server = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        if os.getpid() == pid:
            ours.close()
            server.wait()

    atexit.register(end)
    return ours
