"""The kinds of random programs, by name."""

from __future__ import annotations

import random

from tests.conformance.corners import CORNERS
from tests.conformance.machine import Step
from tests.conformance.programs import BAD, Generator

KINDS = ("plain", "options", "stamps", "pages", "states", *CORNERS)


def generate(seed: int, kind: str) -> list[Step]:
    """Return the random program number `seed` of one kind."""
    generator = CORNERS.get(kind, Generator)(seed, "plain" if kind in CORNERS else kind)
    chance = random.Random(f"{seed} {kind} bad")
    generator._bad = lambda: ["bad"]  # type: ignore[method-assign]
    program = generator.program()
    for step in program:
        if step[1] == "bad":
            step[1:] = chance.choice(BAD)
        elif step[1] == "stamped":
            step[1] = "atomic"
    return program
