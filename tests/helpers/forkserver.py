"""The server that commands are forked from (`forked.py`). It opens no database and starts no thread."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pickle
import runpy
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from typer.testing import CliRunner

# What is imported here, no command has to import. None of it may start a thread.
import fdbqueue.cli
import tests.helpers.preloaded

__all__ = ["tests"]

CliRunner().invoke(fdbqueue.cli.app, ["stats", "of none", "--url", "nonsense:"])  # what commands import when they run
assert len(threading.enumerate()) == 1, threading.enumerate()

Job = tuple[list[str], str, dict[str, str], bool]
"""What follows `python`, the folder, the variables, and whether the process has a session of its own."""


def serve(requests: socket.socket) -> Job | None:
    """Fork a child for each request, and tell how it ended. Return its job in the child; None when no more come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the children
    signal.signal(signal.SIGCHLD, lambda *_: None)
    bell, ringer = os.pipe()
    os.set_blocking(ringer, False)
    signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
    statuses: dict[int, socket.socket] = {}
    gc.freeze()
    while True:
        ready = select.select([requests.fileno(), bell], [], [])[0]
        if bell in ready:
            os.read(bell, 65_536)
            _tell_how_they_ended(statuses)
        if requests.fileno() in ready:
            message, fds, *_ = socket.recv_fds(requests, 1, 4)
            if not message:
                return None
            status = socket.socket(fileno=fds.pop(0))
            with status.makefile("rb") as channel:
                job: Job = pickle.load(channel)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for number, fd in enumerate(fds):
                    os.dup2(fd, number)
                for fd in (bell, ringer, *fds):
                    os.close(fd)
                for other in (requests, status, *statuses.values()):
                    other.close()
                return job
            for fd in fds:
                os.close(fd)
            statuses[pid] = status
            status.sendall(pid.to_bytes(8))


def _tell_how_they_ended(statuses: dict[int, socket.socket]) -> None:
    while statuses:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with statuses.pop(pid) as status, contextlib.suppress(OSError):  # the test may be gone
            status.sendall(ended.to_bytes(8))


def work(job: Job) -> None:
    """Run a command as the interpreter does."""
    words, folder, environment, own_session = job
    path = _without_start(sys.path)
    if own_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    _open_standard_streams()
    kind, what = (words[0], words[1]) if words[0] in ("-m", "-c") else ("file", os.path.abspath(words[0]))
    first = {"-m": folder, "-c": "", "file": os.path.dirname(what)}[kind]
    sys.path[:] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.argv = {"-m": words[1:], "-c": ["-c", *words[2:]], "file": words}[kind]
    importlib.invalidate_caches()
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if kind == "file":
        main.__file__ = what
    code = compile(what, "<string>", "exec") if kind == "-c" else compile(Path(what).read_bytes(), what, "exec")
    exec(code, main.__dict__)


def _without_start(path: list[str]) -> list[str]:
    """Return what is behind this process's folder and PYTHONPATH in its path."""
    given = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    return path[1 + len(given) :]


def _open_standard_streams() -> None:
    """Open the standard streams anew, since each remembers of what kind its file was."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        was, mode = getattr(sys, name), "w" if number else "r"
        raw: Any = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        in_lines = not unbuffered and (number == 2 or os.isatty(number))
        buffer = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
        new: Any = io.TextIOWrapper(buffer, was.encoding, was.errors, line_buffering=in_lines, write_through=unbuffered)
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


if __name__ == "__main__":
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        work(given)
