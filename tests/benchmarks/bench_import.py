"""What `import fdbqueue` costs: CPU of a fresh process, beside that of an empty one and of `import asyncio`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from tests.benchmarks.harness import heading, say

PROGRAMS = {
    "an empty program": "pass",
    "`import asyncio`": "import asyncio",
    "`import fdbqueue`": "import fdbqueue",
    "`import fdbqueue.layers`, and `Consumer`": "from fdbqueue.layers import Consumer",
    "`import fdbqueue.cli`": "import fdbqueue.cli",
}
PEER = "`import asyncio`"
ROUNDS = {"quick": 3, "normal": 20, "full": 50}


def main() -> None:
    heading("What an import costs")
    rounds = ROUNDS[os.environ.get("FDBQUEUE_BENCH_SIZE", "normal")]
    say(f"\nCPU of a fresh process less that of an empty one, over {rounds} rounds. The library should take 80 ms.\n")
    say("| program | median | least | of `import asyncio` |")
    say("| --- | ---: | ---: | ---: |")
    for code in PROGRAMS.values():
        cpu_ms(code)  # compiles what is not compiled yet
    took: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):  # in turn, so that a busy machine slows all of them
        for name, code in PROGRAMS.items():
            took[name].append(cpu_ms(code))
    empty = took.pop("an empty program")
    for name, times in took.items():
        median = statistics.median(times) - statistics.median(empty)
        ratio = median / (statistics.median(took[PEER]) - statistics.median(empty))
        say(f"| {name} | {median:.0f} ms | {min(times) - min(empty):.0f} ms | {ratio:.2f} |")


def cpu_ms(code: str) -> float:
    """Return the CPU that a fresh process takes for a program, in milliseconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{code!r} ended with {process.returncode}.")
    return (usage.ru_utime + usage.ru_stime) * 1_000
