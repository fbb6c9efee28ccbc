"""``python -m tests.chaos --seconds 60 --seed 7 --url file:``: see CONTRIBUTING.md."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from functools import partial

from tests.chaos.kinds import Kind
from tests.chaos.lanes import side_by_side
from tests.chaos.report import lines
from tests.chaos.run import PATIENCE, ROUND_SECONDS, run
from tests.chaos.urls import shared_url


def main() -> int:
    """Run, print what happened, and say by the exit code whether all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break things, and look what breaks.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hours", type=float, help="the same in hours, for a soak")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="what goes wrong, and when; printed")
    urls = "file: for a temporary folder, server: for an fdbserver of its own; or file:PATH, fdb:CLUSTER_FILE"
    parser.add_argument("--url", type=shared_url, default="file:", help=urls)
    parser.add_argument("--until-broken", action="store_true", help="end after the first round that broke a promise")
    parser.add_argument("--round", type=float, default=ROUND_SECONDS, help="how long a round lasts, in seconds")
    parser.add_argument("--kind", choices=list(Kind), help="rounds of one kind only")
    parser.add_argument("--lanes", type=int, default=1, help="so many runs side by side, each on a database of its own")
    options = parser.parse_args()
    if options.lanes > 1 and options.until_broken:
        parser.error("--until-broken is for one lane: the others would go on.")
    # A killed process leaves semaphores of the cluster's client to be cleaned up, which needs no warning.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker:UserWarning"
    # A run that is told to end takes its processes and its server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"seed {options.seed}", flush=True)
    tell = partial(print, flush=True)
    play = run if options.lanes == 1 else partial(side_by_side, options.lanes)
    report = play(
        options.url,
        options.seed,
        options.seconds if options.hours is None else 3600 * options.hours,
        tell,
        until_broken=options.until_broken,
        kind=options.kind,
        # A run that looks for a broken promise need not see every fault.
        patience=0 if options.until_broken else PATIENCE,
        round_seconds=options.round,
    )
    for line in lines(report):
        print(line)
    return 0 if report.ok() else 1


if __name__ == "__main__":
    sys.exit(main())
