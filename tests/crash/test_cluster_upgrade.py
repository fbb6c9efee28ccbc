"""A live cluster gets servers of the next version: producers and consumers go on, lose nothing and double nothing.

Needs two servers, each with its client library beside it: `FDBQUEUE_CHAOS_SERVER` names the older `fdbserver`, and
`FDBQUEUE_NEWER_SERVER` the newer one. The processes have both libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Queue
from fdbqueue.layers import Consumer, Leases, Sessions
from tests.chaos.server import PROGRAM_VARIABLE, find_program, running

NEWER_VARIABLE = "FDBQUEUE_NEWER_SERVER"
SECOND = "FDB_NETWORK_OPTION_EXTERNAL_CLIENT_LIBRARY"
ITEMS, SESSIONS = 400, 5
PATIENCE_SECONDS = 600.0


def layers() -> tuple[Leases[int], Sessions[int]]:
    return Leases(Queue("upgrade", codec="json")), Sessions(Queue("upgrade in sessions", codec="json"))


def work(role: str, url: str) -> None:
    """What a process does: it tells each item that it has enqueued, or handled."""
    db: Any = fdbqueue.open(url)
    leases, sessions = layers()

    def tell(value: object) -> None:
        os.write(1, b"%s\n" % json.dumps(value).encode())

    if role == "producer":
        for number in range(ITEMS):
            leases.enqueue(db, number)
            sessions.enqueue(db, number, session=str(number % SESSIONS))
            tell(number)
            time.sleep(0.005)
    elif role == "check":
        queued, in_sessions = leases.queue.stats(db), sessions.stats(db)
        tell([queued.enqueued, queued.dequeued, leases.check(db).ok])
        tell([in_sessions.enqueued, in_sessions.dequeued, sessions.check(db).ok])
    else:
        layer = leases if role == "leases" else sessions
        Consumer(layer, lambda lease: tell(lease.value), concurrency=4).run(db)


def numbers(file: Path) -> list[int]:
    return [json.loads(line) for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(2_000)
@pytest.mark.parametrize("first", ["older", "newer"])
def test_a_live_cluster_is_upgraded_under_producers_and_consumers(first: str, tmp_path: Path) -> None:
    older, newer = find_program(), os.environ.get(NEWER_VARIABLE)
    if not older or not newer:
        pytest.skip(f"needs servers of two versions, named in {PROGRAM_VARIABLE} and {NEWER_VARIABLE}")
    both = [Path(program).with_name("libfdb_c.so") for program in (older, newer)]
    library, other = both if first == "older" else both[::-1]

    def environment(library: Path, **more: str) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **more}

    with running(older, engine="ssd") as server:
        url = f"fdb:{server.cluster_file}"

        def start(role: str) -> subprocess.Popen[bytes]:
            with (tmp_path / role).open("ab") as told, (tmp_path / "errors").open("ab") as errors:
                return subprocess.Popen(
                    [sys.executable, "-m", __name__, role, url],
                    stdout=told,
                    stderr=errors,
                    env=environment(library, **{SECOND: str(other)}),
                )

        def wait_for(number: int) -> None:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while min(len(set(numbers(tmp_path / role))) for role in ("leases", "sessions")) < number:
                failed = [process.returncode for process in processes if process.poll()]
                assert not failed, (tmp_path / "errors").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)

        command = [sys.executable, "-m", __name__, "check", url]
        probed = subprocess.run(
            command, capture_output=True, text=True, env=environment(library, **{SECOND: str(other)})
        )
        if "does not fit" in probed.stderr or "(2204)" in probed.stderr:
            pytest.skip(f"these libraries do not go together so: {probed.stderr.splitlines()[-1]}")
        processes = [start(role) for role in ("leases", "leases", "sessions", "sessions", "producer")]
        try:
            wait_for(ITEMS // 6)
            assert len(numbers(tmp_path / "producer")) < ITEMS
            server.stop()
            server.program = newer
            server.start()
            wait_for(ITEMS)
            processes[-1].wait(PATIENCE_SECONDS)  # the producer
            for process in processes[:-1]:
                process.terminate()
            assert {process.wait(PATIENCE_SECONDS) for process in processes} == {0}
        finally:
            for process in processes:
                process.kill()
                process.wait()
        checked = subprocess.run(command, capture_output=True, check=True, env=environment(both[1]))
    assert [json.loads(line) for line in checked.stdout.splitlines()] == [[ITEMS, ITEMS, True]] * 2
    for role in ("leases", "sessions"):
        assert max(Counter(numbers(tmp_path / role)).values()) <= 2, "an item comes again once, as its ack was lost"
    for session in range(SESSIONS):
        came = list(dict.fromkeys(n for n in numbers(tmp_path / "sessions") if n % SESSIONS == session))
        assert came == sorted(came)


if __name__ == "__main__":
    work(*sys.argv[1:])
