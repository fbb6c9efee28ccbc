"""The rules that a round's promises depend on."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.kinds import Kind


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a round."""

    kind: Kind
    max_attempts: int
