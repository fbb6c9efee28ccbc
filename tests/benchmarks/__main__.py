"""Run the benchmarks: ``python -m tests.benchmarks [NAME …] [--out FOLDER] [--quick | --full]``.

Each module ``bench_NAME`` has a ``main()`` that prints Markdown. With ``--out`` each of its titles becomes a page, each
question gets a chart, and ``FOLDER/README.md`` is the front page. A run of named benchmarks replaces their pages only.
FDB_CLUSTER_FILE, or FDBQUEUE_TEST_CLUSTER_FILE, adds the cluster's half; without it that half is skipped and says so.
"""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

FIRST = ("scale_consumers", "scale_length", "scale_item_size")
BY_HAND = ("scale_longest", "scale_number", "scale_waiting", "spark_scale")
"""What takes long and runs only when it is named."""
QUICK = {"FDBQUEUE_BENCH_PASSED": "100000", "FDBQUEUE_BENCH_SPARK_ROWS": "100000", "FDBQUEUE_BENCH_BLOB_MB": "50"}


def names() -> list[str]:
    """Return the names of all benchmarks, in the document's order."""
    found = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    return [*FIRST, *(name for name in found if name not in FIRST)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Run benchmarks.")
    told = f"of {', '.join(names())}; none: all but {', '.join(BY_HAND)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=told)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write pages with charts there")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="see whether they run: the figures are worth nothing")
    size.add_argument("--full", action="store_true", help="more rounds, more points, longer: hours")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(names())
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    # By the environment, since processes that benchmarks start need them too, and before any benchmark is imported.
    os.environ["FDBQUEUE_BENCH_SIZE"] = "quick" if given.quick else "full" if given.full else "normal"
    os.environ.update({"FDBQUEUE_BENCH_RUN": secrets.token_hex(4)} | (QUICK if given.quick else {}))
    chosen = given.names or [name for name in names() if name not in BY_HAND]
    if given.out is None:
        _run(chosen)
        return 0
    from tests.benchmarks import page
    from tests.benchmarks.preface import preface

    with page.writing(given.out, whole=not given.names):
        preface()
        _run(chosen)
    return 0


def _run(chosen: Sequence[str]) -> None:
    for name in chosen:
        importlib.import_module(f"tests.benchmarks.bench_{name}").main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
