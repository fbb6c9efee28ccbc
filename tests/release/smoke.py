"""Import and use an installed wheel, with warnings as errors: ``python -W error smoke.py EXTRAS``."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import fdbqueue
import fdbqueue.cli
import fdbqueue.layers
import fdbqueue.transfer
from fdbqueue.layers import Consumer, Leases

OF_EXTRAS = {
    "arrow": "fdbqueue.arrow.tables",
    "spark": "fdbqueue.spark",
    "web": "fdbqueue.web",
    "testing": "fdbqueue.testing",
    "otel": "fdbqueue.observe",
    "metrics": "fdbqueue.observe",
}


def main() -> None:
    extras = [name for name in sys.argv[1].split(",") if name]
    assert Path(fdbqueue.__file__).is_relative_to(sys.prefix), f"{fdbqueue.__file__} is not the installed one"
    for name in fdbqueue.layers.__all__:
        getattr(fdbqueue.layers, name)
    for extra in extras:
        if extra in OF_EXTRAS:
            importlib.import_module(OF_EXTRAS[extra])
    for url in ("memory:", "file:./smoke"):
        with fdbqueue.open(url) as db:
            orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=3)
            orders.enqueue_many(db, [{"n": n} for n in range(100)])
            assert Consumer(orders, lambda lease: None).drain(db).acked == 100
            assert fdbqueue.check(db, orders.queue).ok
    print("fdbqueue", importlib.metadata.version("fdbqueue"), "works;", end=" ")


if __name__ == "__main__":
    main()
