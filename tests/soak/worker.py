"""A process of the soak: ``python -m tests.soak.worker URL consume|produce NAME FILE``."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.layers import Consumer, GiveUp, Lease, Leases, Sessions, constant
from fdbqueue.layers.middleware import LogItems, RetryBy, TimeLimit
from fdbqueue.observe import MetricsServer

ITEMS_A_SECOND = 60
SESSIONS = 50
POISON = 50
"""One item of so many fails for good, and one fails once."""


class FailsOnce(Exception):
    """The first attempt fails."""


def orders() -> Leases[Any]:
    """The queue of plain items."""
    return Leases(fdbqueue.Queue(("soak", "orders"), codec="json"), max_attempts=3, backoff=constant(0.5))


def bank() -> Sessions[Any]:
    """The queue with sessions."""
    return Sessions(fdbqueue.Queue(("soak", "bank"), codec="json"), max_attempts=3, backoff=constant(0.5))


def handle(lease: Lease) -> None:
    """Work on an item."""
    if lease.value["kind"] == "poison":
        raise ValueError("no such sku")
    if lease.value["kind"] == "once" and lease.attempt == 1:
        raise FailsOnce


def consume(db: Any, name: str, told: Path) -> None:
    """Consume both queues until SIGTERM, and write the address of the metrics."""
    metrics = MetricsServer("127.0.0.1:0")
    chain = [LogItems(level=5), RetryBy({ValueError: GiveUp}), TimeLimit(30)]
    terms: dict[str, Any] = {"consumer": name, "middleware": chain, "metrics": metrics, "signals": False}
    consumers: tuple[Consumer[Any], ...] = (
        Consumer(orders(), handle, duration=5.0, **terms),
        Consumer(bank(), handle, duration=5.0, **terms),
    )

    def stop(*_: object) -> None:
        for consumer in consumers:
            consumer.stop()

    threads = [threading.Thread(target=consumer.run, args=(db,)) for consumer in consumers]
    signal.signal(signal.SIGTERM, stop)
    with metrics.serving(db):
        told.write_text(metrics.address)
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # so that the signal is handled meanwhile


def produce(db: Any, name: str, told: Path) -> None:
    """Enqueue into both queues until SIGTERM."""
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    dice, plain, sessions, number = random.Random(name), orders(), bank(), 0
    told.write_text(name)
    next_at = time.monotonic()
    while not stopped:
        number += 1
        kind = {0: "poison", 1: "once"}.get(dice.randrange(POISON), "usual")
        value = {"number": number, "kind": kind, "text": "x" * dice.randrange(400)}
        if number % 3:
            plain.enqueue(db, value, headers={"color": dice.choice(("red", "blue"))}, delay=dice.choice((None, 1.0)))
        else:
            sessions.enqueue(db, value, session=f"customer {dice.randrange(SESSIONS)}")
        next_at = max(next_at + 1 / ITEMS_A_SECOND, time.monotonic() - 1.0)
        time.sleep(max(0.0, next_at - time.monotonic()))


def main(url: str, work: str, name: str, told: str) -> None:
    with fdbqueue.open(url) as db:
        {"consume": consume, "produce": produce}[work](db, name, Path(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
