"""Guards of layers, taken out of copies of the library one by one: the tests of their layer find each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.mutants import Mutant
from tests.chaos.mutations import ROOT, mutated
from tests.helpers.mutants import assert_found
from tests.layers.sessions import mutants as of_sessions
from tests.layers.smart_sessions import mutants as of_smart_sessions
from tests.layers.tasks import mutants as of_tasks

CASES = [
    pytest.param(mutant, files, engines, id=f"{layer}: {mutant.name}")
    for layer, mutants, files, engines in (
        ("sessions", of_sessions.MUTANTS, of_sessions.TESTS, "memory"),
        ("smart sessions", of_smart_sessions.MUTANTS, of_smart_sessions.TESTS, "memory"),
        ("tasks", of_tasks.MUTANTS, (), "not file and not cluster"),
    )
    for mutant in mutants
]


@pytest.mark.parametrize(("mutant", "files", "engines"), CASES)
def test_a_mutant_fits_its_source_and_names_files_of_tests(
    mutant: Mutant, files: tuple[str, ...], engines: str
) -> None:
    compile(mutated((ROOT / mutant.file).read_text(), mutant), mutant.file, "exec")
    assert all((ROOT / "tests/layers" / f"{name}.py").exists() for name in mutant.tests or files)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("mutant", "files", "engines"), CASES)
def test_the_tests_of_its_layer_find_a_mutant(
    mutant: Mutant, files: tuple[str, ...], engines: str, tmp_path: Path
) -> None:
    assert_found(mutant, tmp_path, [f"tests/layers/{name}.py" for name in mutant.tests or files], engines=engines)
