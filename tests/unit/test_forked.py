"""A forked command is what a started one is, as far as commands and their tests can see."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import forked

CODE = """
import atexit, os, signal, sys, threading
atexit.register(lambda: print("at exit"))
print(__name__, sys.argv, os.getcwd(), sys.path[:2], dict(os.environ), sys.stdin.read())
print(len(os.listdir("/dev/fd")), len(threading.enumerate()), os.isatty(1))
print([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])
for stream in sys.stdin, sys.stdout, sys.stderr:
    print(stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.fileno(), stream.mode)
print("error", file=sys.stderr)
END
"""
ENDS = [
    "",
    "sys.exit(7)",
    "sys.exit('why')",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "os.dup2(os.open('/dev/full', 1), 1)",
    "os._exit(3)",
]


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("end", ENDS)
def test_a_forked_command_sees_and_ends_as_a_started_one(tmp_path: Path, end: str, unbuffered: str) -> None:
    (tmp_path / "code.py").write_text(CODE.replace("END", end))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "more"), "PYTHONUNBUFFERED": unbuffered}
    for command in ["-c", CODE.replace("END", end), "x"], ["code.py", "x"], ["-m", "code", "x"]:
        options: Any = {"cwd": tmp_path, "env": environment, "input": "typed", "capture_output": True, "text": True}
        one, other = (run([sys.executable, *command], **options) for run in (subprocess.run, forked.run))
        told, told_other = (re.sub("0x[0-9a-f]+", "", ran.stderr) for ran in (one, other))
        assert (one.returncode, one.stdout, told) == (other.returncode, other.stdout, told_other)


def test_a_forked_command_is_signalled_and_waited_for_like_a_child() -> None:
    with forked.Popen(
        [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(99)"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == process.poll() == -signal.SIGINT
        process.kill()  # it is gone: no other process is meant


def test_a_command_that_a_fork_can_not_be_is_started() -> None:
    for command in ["sh", "-c", "exit 5"], [sys.executable, "-I", "-c", "import sys; sys.exit(4 + sys.flags.isolated)"]:
        assert forked.run(command).returncode == 5
    hashing = {**os.environ, "PYTHONHASHSEED": "7"}
    seeded = forked.run([sys.executable, "-c", "print(hash('x'))"], env=hashing, capture_output=True)
    assert seeded.stdout == subprocess.run(seeded.args, env=hashing, capture_output=True).stdout
