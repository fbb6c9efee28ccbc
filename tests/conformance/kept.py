"""Answers of a cluster to random programs of all kinds, kept for machines without a cluster.

`tests/data/kept-answers.jsonl.gz` has a program a line: its kind and number, a digest of its steps, and the answers.
A long answer is kept as a digest. After a change of the generators, record them anew on an empty cluster::

    python -m tests.conformance.kept fdb:PATH --programs 640
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fdbqueue
from tests.conformance.differential import came_first
from tests.conformance.kinds import KINDS, generate
from tests.conformance.machine import Machine, Step

FILE = Path(__file__).resolve().parent.parent / "data" / "kept-answers.jsonl.gz"
LONGEST = 100
"""Characters of an answer that is kept as it is."""


def kept() -> Iterator[dict[str, Any]]:
    """Yield the programs that were recorded."""
    with gzip.open(FILE, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def difference(db: Any, recorded: dict[str, Any]) -> str | None:
    """Run a recorded program, and return the first answer that is not the cluster's, or None."""
    seed, kind = recorded["seed"], recorded["kind"]
    program = generate(seed, kind)
    if _digest(program) != recorded["program"]:
        return f"{kind} {seed} is another program than the recorded one: record the answers anew"
    for number, (answer, expected) in enumerate(zip(Machine(db).run(program), recorded["answers"], strict=True)):
        step: Step = program[number] if number < len(program) else ["", ""]
        if shortened(answer) == expected:
            continue
        if expected.startswith("#") or not came_first(step, answer, ast.literal_eval(expected)):
            return f"{kind} {seed}, step {number} {step!r}: {answer!r}, but the cluster said {expected}"
    return None


def shortened(answer: Any) -> str:
    """Return an answer as it is kept."""
    text = repr(answer)
    return text if len(text) <= LONGEST else f"#{_digest(answer)}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def main() -> None:
    """Record the answers of a cluster that holds nothing of worth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--programs", type=int, default=640)
    given = parser.parse_args()
    left_out = 0
    with fdbqueue.open("memory:") as here, fdbqueue.open(given.url) as there, gzip.open(FILE, "wt") as file:
        for seed in range(given.programs):
            kind = KINDS[seed % len(KINDS)]
            program = generate(seed, kind)
            own = Machine(here).run(program)
            # The embedded engine says which watches fire, so that the cluster gets time for these.
            answers = Machine(there, fired=own[-2][1]).run(program)
            recorded = {
                "seed": seed,
                "kind": kind,
                "program": _digest(program),
                "answers": [shortened(answer) for answer in answers],
            }
            if told := difference(here, recorded):
                left_out += 1
                print(f"left out: {told}")
                continue
            file.write(json.dumps(recorded) + "\n")
    print(f"{given.programs - left_out} programs kept, {left_out} left out: see docs/embedded-differences.md")


if __name__ == "__main__":
    main()
