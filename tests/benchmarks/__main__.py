"""Run the benchmarks: ``python -m tests.benchmarks [NAME …]``, all of them without a name.

Each module ``bench_NAME`` has a ``main()`` that prints Markdown. FDB_CLUSTER_FILE, or FDBQUEUE_TEST_CLUSTER_FILE, adds
the cluster's half; without it that half is skipped and says so.
"""

from __future__ import annotations

import importlib
import pathlib
import sys

from tests.benchmarks.harness import say

BY_HAND = {"spark_scale"}
"""What takes long and runs only when it is named."""


def main(names: list[str]) -> int:
    folder = pathlib.Path(__file__).parent
    known = sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))
    unknown = set(names) - set(known)
    if unknown:
        say(f"There is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
        return 2
    for name in names or sorted(set(known) - BY_HAND):
        importlib.import_module(f"tests.benchmarks.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
