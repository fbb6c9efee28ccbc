"""What a round that broke a promise leaves behind: a folder with what its processes noted, and every key it wrote.

``python -m tests.chaos.evidence FOLDER`` judges such a round again, by the oracle as it is now.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fdbqueue
from fdbqueue.engine import KeySelector, Subspace
from tests.chaos.history import read_histories
from tests.chaos.judging import judged
from tests.chaos.kinds import Kind
from tests.chaos.oracle import Verdict

ROWS, ROUND, TOLD = "rows.txt", "round.json", "violations.txt"
PAGE = 5_000
"""Rows of one transaction, which may take five seconds."""


def keep(db: Any, space: Subspace, kind: Kind, seed: str, noted: Path, violations: Mapping[str, list[str]]) -> Path:
    """Copy what a round wrote into a new folder; return the folder.

    Args:
        db: the database itself, without faults.
        space: where the round wrote.
        kind: of the round.
        seed: of the round.
        noted: the folder of its histories.
        violations: what was found, by the promise's name.
    """
    folder = Path(tempfile.mkdtemp(prefix="fdbqueue-chaos-broken-"))
    shutil.copytree(noted, folder, dirs_exist_ok=True)
    with (folder / ROWS).open("w") as file:
        file.writelines(f"{key.hex()} {value.hex()}\n" for key, value in _rows(db, space))
    (folder / ROUND).write_text(json.dumps({"space": space.key().hex(), "kind": kind, "seed": seed}))
    (folder / TOLD).write_text("".join(f"{name}: {one}\n" for name, found in violations.items() for one in found))
    return folder


def judge_again(folder: Path) -> Verdict:
    """Judge a round that was kept."""
    about = json.loads((folder / ROUND).read_text())
    with fdbqueue.open("memory:") as db:
        lines = (folder / ROWS).read_text().splitlines()
        for begin in range(0, len(lines), PAGE):
            tr = db.create_transaction()
            for line in lines[begin : begin + PAGE]:
                key, _, value = line.partition(" ")
                tr.set(bytes.fromhex(key), bytes.fromhex(value))
            tr.commit().wait()
        calls, _ = read_histories(folder)
        return judged(db, Subspace(rawPrefix=bytes.fromhex(about["space"])), Kind(about["kind"]), calls)


def _rows(db: Any, space: Subspace) -> Iterator[tuple[bytes, bytes]]:
    begin: Any = space.key()
    end = space.key() + b"\xff"
    while page := db.get_range(begin, end, limit=PAGE):
        yield from ((bytes(row.key), bytes(row.value)) for row in page)
        begin = KeySelector.first_greater_than(page[-1].key)


def main() -> int:
    """Judge a round again, and print what is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.evidence", description="Judge a kept round again.")
    parser.add_argument("folder", type=Path, help="as a run of chaos printed it")
    verdict = judge_again(parser.parse_args().folder)
    for name, found in verdict.violations.items():
        for one in found:
            print(f"{name}: {one}")
    print(f"{verdict.records:,} records, {verdict.count()} violations")
    return 1 if verdict.count() else 0


if __name__ == "__main__":
    sys.exit(main())
