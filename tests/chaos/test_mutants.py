"""Mutants are made for the source as it is: who changes a guard changes its mutant."""

from __future__ import annotations

import pytest

from tests.chaos.mutants import MUTANTS, Mutant
from tests.chaos.mutations import ROOT, mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_its_source(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutated(source, mutant) != source
    compile(mutated(source, mutant), mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()
