"""What stands on top of the document: what it does not show, and where its figures come from."""

from __future__ import annotations

import time

from tests.benchmarks.harness import ROUNDS, SIZE, SWEEP_ROUNDS, cluster_url_if_any, say, seed
from tests.benchmarks.machine import cluster_facts, facts

NOT_SHOWN = """\
# Benchmarks

Written by `make bench`; not edited by hand.

## What this does not show

- **A real cluster.** Everything runs on one small machine: clients, servers and Spark share its cores and its disk. No
  network is in between, and no replica. Read the ratios between those that ran in the same minutes, not the rates.
- **Latency under a load that does not wait.** Every caller asks again when it has been answered, so a slow call keeps
  the others from coming, and P99 is better than users of a busy system would see.
- **Hours.** Rounds last a second or so. Checkpoints, vacuums, compactions, full disks and caches that no longer hold
  everything are not seen.
- **What the peers were made for.** They have other guarantees: Redis' LPOP and a deleted row of PostgreSQL are gone
  with a consumer that dies; SQLite's queues have no order across calls in one transaction with other data; Huey and
  litequeue keep more about an item than we do. Each was driven by its own public calls, with its defaults.

  Three things are the same for all contestants of a table. Durability: when a call returns, its commit is on disk (an
  fsync per commit in SQLite, `synchronous_commit=on` in PostgreSQL, `appendfsync always` in Redis; FoundationDB knows
  nothing else). The callers: as many threads in as many processes. The queue's length when a round begins.
- **Failures.** Nothing is killed here, but in the Spark load that says so.
- **Conflicts where there are none by design.** SQLite's waits for its one writer and PostgreSQL's skipped rows are no
  conflicts; the column counts transactions that failed with 1020 and were repeated.

CPU per item is that of the calling processes; the server's, next to it, is that of all its processes on this machine.
Medians and P99 of calls are over all rounds; the rate is the median of the rounds', with the lowest beside it."""


def preface() -> None:
    """Print it."""
    say(NOT_SHOWN)
    say("\n## Where it ran\n\n| | |\n|---|---|")
    url = cluster_url_if_any()
    for name, value in facts() + (cluster_facts(url) if url else []):
        say(f"| {name} | {value} |")
    say(f"| rounds | {ROUNDS}, {SWEEP_ROUNDS} where there is an axis ({SIZE}) |")
    say(f"| seed | {seed()} |")
    say(f"| finished setting up | {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())} |")
