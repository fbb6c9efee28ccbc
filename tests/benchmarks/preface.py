"""The top of the page: its limits, and the machine of its figures."""

from __future__ import annotations

import time

from tests.benchmarks.harness import ROUNDS, SIZE, SWEEP_ROUNDS, cluster_url_if_any, say, seed
from tests.benchmarks.machine import cluster_facts, facts

NOT_SHOWN = """\
# Benchmarks

Written by `make bench`; not edited by hand.

## What this does not show

- **No real cluster.** Everything runs on one small machine: clients, servers and Spark share its cores and its
  disk. There is no network in between, and no replica. Compare the figures of one table with each other.
- **Closed loops.** Every caller waits for its answer before the next call. A slow call delays the calls after it. So
  P99 is better here than for users of a busy system.
- **Short rounds.** A round lasts about a second. It shows no checkpoints, vacuums, compactions, full disks or caches
  that are too small.
- **Other guarantees.** If a consumer dies, an item from Redis' LPOP or a deleted row of PostgreSQL is lost. SQLite's
  queues have no order across calls in one transaction with other data. Huey and litequeue store more about an item than
  we do. Each peer was driven by its own public calls, with its defaults.
- **No failures.** No process is killed, except in the Spark load that says so.
- **Conflicts.** The column counts transactions that failed with 1020 and were repeated. A table without it had none.
  SQLite waits for its one writer and PostgreSQL skips locked rows, so they have none by design.

Three things are the same for all contestants of a table:

- the durability: when a call returns, its commit is on disk. That is one fsync per commit in SQLite,
  `synchronous_commit=on` in PostgreSQL, `appendfsync always` in Redis, and the only mode of FoundationDB.
- the callers: the number of threads and of processes.
- the length of the queue at the start of a round.

"CPU per item" is the CPU of the calling processes. "Server" is the CPU of all the server's processes on this machine.
Medians and P99 of calls are over all rounds. The rate is the median of the rounds, and the lowest is beside it."""


def preface() -> None:
    """Print the preface."""
    say(NOT_SHOWN)
    say("\n## Where it ran\n\n| | |\n|---|---|")
    url = cluster_url_if_any()
    for name, value in facts() + (cluster_facts(url) if url else []):
        say(f"| {name} | {value} |")
    say(f"| rounds | {ROUNDS}, {SWEEP_ROUNDS} where there is an axis ({SIZE}) |")
    say(f"| seed | {seed()} |")
    say(f"| finished setting up | {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} |")
