"""What ``python -m tests.sim`` does."""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import sys
import threading
import traceback
from operator import attrgetter

import pytest
from greenlet import getcurrent

from fdbqueue.engine.embedded.store import notification
from tests.chaos import faults
from tests.chaos.kinds import Kind
from tests.chaos.worker import in_a_hurry
from tests.sim.fibers import Fiber, the
from tests.sim.rounds import KINDS, Outcome, simulate
from tests.sim.threads import processor_seconds

MOST_TOLD = 3
"""Violations of one promise that are printed."""


def main() -> None:
    """Simulate rounds, print a line for each, and say by the exit code whether all promises were kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Chaos in one thread and virtual time.")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seeds", type=int, default=1, help="how many rounds")
    parser.add_argument("--kind", choices=list(KINDS), help="rounds of one kind only")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long processes work, in virtual time")
    parser.add_argument("--until-broken", action="store_true", help="end after the first round that broke a promise")
    parser.add_argument("--log", action="store_true", help="print what the library logs")
    options = parser.parse_args()
    _prepare(log=options.log)
    broken = 0
    for seed in range(options.seed, options.seed + options.seeds):
        broken += _play(seed, options.kind or KINDS[seed % len(KINDS)], options.seconds)
        if broken and options.until_broken:
            break
        gc.collect()
    print(f"{options.seeds} rounds, {broken} of them broke a promise", flush=True)
    os._exit(1 if broken else 0)  # what a killed process left waits for ever


def _play(seed: int, kind: Kind, seconds: float) -> bool:
    """Simulate a round, and print what it found. Return whether a promise was broken."""
    began = processor_seconds()
    try:
        outcome = simulate(str(seed), kind, seconds)
    except Exception:  # noqa: BLE001 - it is told, and the next one is played
        print(f"seed {seed}, {kind}: the round has no end:\n{traceback.format_exc()}", flush=True)
        return True
    print(_line(outcome, processor_seconds() - began), flush=True)
    for name, found in outcome.verdict.violations.items():
        for one in found[:MOST_TOLD]:
            print(f"    {name}: {one}", flush=True)
    return outcome.verdict.count() > 0


def _line(outcome: Outcome, took: float) -> str:
    verdict = outcome.verdict
    history = hashlib.sha256(outcome.round.calls).hexdigest()[:12]
    return (
        f"seed {outcome.seed}, {outcome.kind}: {verdict.count()} violations, {verdict.records} transactions,"
        f" {verdict.operations + verdict.drained} operations, {outcome.scheduler.steps} steps,"
        f" {sum(outcome.round.faults.values())} faults, {took:.2f} s, history {history}"
    )


def _prepare(*, log: bool) -> None:
    """Set up this interpreter for simulations."""
    patch = pytest.MonkeyPatch()
    in_a_hurry(patch)
    patch.setattr(faults, "strike", _strike)
    # All processes share one engine, which tells of their commits at once. It follows those of no other process.
    patch.setattr(notification.Changes, "_start", lambda changes, _: attrgetter("_source.listen")(changes)(True))
    if not log:
        logging.disable(logging.CRITICAL)
    # A killed process' coroutines are closed somewhere, and what they say of it is no news.
    sys.unraisablehook = lambda _: None
    threading.excepthook = lambda _: None
    gc.disable()  # a collection runs finalizers, so it has to come at the same moment in every run


def _strike() -> None:
    """Kill the process of this fiber."""
    fiber = getcurrent()
    assert isinstance(fiber, Fiber)
    assert fiber.process is not None
    the().kill(fiber.process)
