"""Mutants are made for the source as it is: who changes a guard changes its mutant. The tests that it names find it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.mutants import MUTANTS, Mutant
from tests.chaos.mutations import ROOT, UNTOUCHED, copy_with, fails_by_hand, mutated


def name_of(mutant: Mutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_a_mutant_fits_its_source_and_names_tests(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutated(source, mutant) != source
    compile(mutated(source, mutant), mutant.file, "exec")
    assert mutant.tests, "chaos meets few interleavings in a round: name a test that lays it out by hand"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_every_place_that_asks_for_a_commit_marker_has_a_mutant() -> None:
    files = [path for part in ("fdbqueue", "layers") for path in (ROOT / part).rglob("*.py")]
    calls = {
        str(path.relative_to(ROOT)): re.findall(r"^ +asks_marker\(", path.read_text(), re.MULTILINE) for path in files
    }

    removed = Counter(mutant.file for mutant in MUTANTS if mutant.name.endswith("for no marker"))

    assert removed == Counter({file: len(found) for file, found in calls.items() if found})


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("mutant", [UNTOUCHED, *MUTANTS], ids=name_of)
def test_the_tests_that_a_mutant_names_find_it(mutant: Mutant, tmp_path: Path) -> None:
    copy_with(mutant, tmp_path)
    assert fails_by_hand(mutant, tmp_path) == bool(mutant.changes)
