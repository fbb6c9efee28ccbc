"""Run the same random programs on two engines and print the first answer that differs.

    python -m tests.conformance.differential --programs 5000 URL_A URL_B

Both databases are cleared again and again: give databases that hold nothing of worth, and a cluster that has never held
much: one in several shards counts more in approximate sizes. The exit code is 1 if any program is answered differently.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import Any

import fdbqueue
from tests.conformance.kinds import KINDS, generate
from tests.conformance.machine import Machine, Step

ARRIVAL_SECONDS = 0.02


def compare(one: Any, other: Any, seed: int, kind: str) -> str | None:
    """Return how two databases, the embedded one first, differ over a program, or None.

    Reads that are under way may find what those before them found, or not. Here they do. So a program that is answered
    differently runs on the other database once more, where each read then has time to arrive before the next step.
    """
    program = without_lost_versions(generate(seed, kind))
    here = Machine(one).run(program)
    found: str | None = None
    for arrival_s in (0.0, ARRIVAL_SECONDS):
        there = Machine(other, fired=here[-2][1], arrival_s=arrival_s).run(program)
        found = next(
            (
                f"{kind} {seed}, step {number} {step!r}\n   first: {a!r}\n  second: {b!r}"
                for number, (step, a, b) in enumerate(zip([*program, ["", ""], ["", ""]], here, there, strict=True))
                if a != b and not came_first(step, a, b)
            ),
            None,
        )
        if found is None:
            return None
    return found


def without_lost_versions(program: list[Step]) -> list[Step]:
    """Leave out each use of a read version that is asked for after its transaction's commit: the state may be gone."""
    kept: list[Step] = []
    committed: set[int] = set()
    for step in program:
        slot, does, *rest = step
        if does in ("commit", "replace", "reset"):
            (committed.add if does == "commit" and rest[0] else committed.discard)(slot)
        if does != "set_rv" or rest[0] not in committed:
            kept.append(step)
    return kept


def came_first(step: Step, here: Any, there: Any) -> bool:
    """Say whether answers differ only in reads that were under way here and had come there: who is near is quick."""
    if step[1] == "cancelled":
        return bool(here[0] == ["error", 1101] and there[0] != ["error", 1025])
    if step[1] != "ending" or here[0] != there[0]:
        return False
    return all(a == b or a == ["error", 1025] for a, b in zip(here[1], there[1], strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--kind", choices=KINDS, help="programs of this kind only")
    parser.add_argument("--keep-going", action="store_true", help="go on after a difference")
    given = parser.parse_args()
    kinds = (given.kind,) if given.kind else KINDS
    began = time.monotonic()
    differences = 0
    with fdbqueue.open(given.first) as one, fdbqueue.open(given.second) as other:
        gc.freeze()  # programs collect garbage often, and need not look through all modules each time
        for number in range(given.seed, given.seed + given.programs):
            difference = compare(one, other, number, kinds[number % len(kinds)])
            if difference:
                differences += 1
                print(difference, flush=True)
                if not given.keep_going:
                    break
    seconds = time.monotonic() - began
    print(f"{given.programs} programs, {differences} answered differently, {seconds:.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
