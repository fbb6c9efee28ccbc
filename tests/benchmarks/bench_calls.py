"""CPU time of single calls against an earlier commit, in turns: whether the way of a call has become shorter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

from tests.benchmarks import call_cpu
from tests.benchmarks.harness import SIZE, Contestant, Sample, compare, heading, say

BEFORE = os.environ.get("FDBQUEUE_BENCH_BEFORE", "fce10bf")
"""The earlier commit, in this repository."""
CALLS = 50 if SIZE == "quick" else 1_500
ROUNDS = 1 if SIZE == "quick" else 15
VERBS = ("enqueue", "dequeue", "lease", "ack", "staged dequeue", "session lease")
WANTED = 1 / 0.75
HERE = Path(__file__).parents[2]


def main() -> None:
    heading("The CPU time of a call")
    with tempfile.TemporaryDirectory() as name:
        earlier = Path(name)
        if not checked_out(earlier):
            say(f"\nSkipped: this checkout has no commit {BEFORE} to compare with.\n")
            return
        with in_process_of(earlier) as before, in_process_of(HERE) as now:
            for verb in VERBS:
                compare(
                    f"one {verb} a transaction, in memory: calls in a second of CPU",
                    [
                        Contestant(f"at {BEFORE}", partial(before, verb)),
                        Contestant("now", partial(now, verb), wanted=WANTED),
                    ],
                    rounds=ROUNDS,
                )


def checked_out(folder: Path) -> bool:
    """Write the earlier commit's files into `folder`. Return whether there is such a commit."""
    packed = subprocess.run(
        ["git", "-C", str(HERE), "archive", BEFORE, "fdbqueue", "layers"], capture_output=True, check=False
    )
    if packed.returncode:
        return False
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return True


@contextlib.contextmanager
def in_process_of(checkout: Path) -> Iterator[Callable[[str], Sample]]:
    """Yield a function that measures a verb in a process of its own, which has the library from `checkout`."""
    with subprocess.Popen(
        [sys.executable, call_cpu.__file__, "memory:", str(CALLS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        asked, answers = process.stdin, process.stdout

        def measure(verb: str) -> Sample:
            print(verb, file=asked, flush=True)
            return Sample(CALLS, float(answers.readline()))

        for verb in VERBS:
            measure(verb)  # the first round warms up
        yield measure
        asked.close()
