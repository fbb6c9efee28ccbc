"""What can be seen of a release without the network: the frozen names, the cost of an import, the lock file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
import zipfile
from pathlib import Path

import pytest

import fdbqueue
from docs.site import kernel
from fdbqueue.base.deprecation import deprecated
from tests.release import chosen, names, smoke
from tests.release.__main__ import EPOCH, ROOT, direct, extras, with_inner

ON_DEMAND = {"lark", "rich", "typer", "pyarrow", "pyspark", "asyncio", "starlette", "uvicorn", "numpy", "http", "ssl"}
ON_DEMAND |= {
    "html",
    "urllib",
    "random",
    "socket",
    "difflib",
    "base64",
    "json",
    "lmdb",
    "argparse",
    "logging",
    "tempfile",
}
"""None of them is wanted before the first call; each has its share of the time of an import."""
OF_OPERATORS = {
    "fdbqueue.arrow.stored",
    "fdbqueue.reads.check",
    "fdbqueue.reads.figures",
    "fdbqueue.reads.inspecting",
    "fdbqueue.verbs.checking",
    "fdbqueue.verbs.renaming",
}
"""Modules of the library that a program which only uses queues never needs."""


def test_the_public_names_are_those_that_a_review_has_seen() -> None:
    kept = names.KEPT.read_text().splitlines()
    now = list(names.lines())
    gone, new = sorted(set(kept) - set(now)), sorted(set(now) - set(kept))
    assert (gone, new) == ([], []), (
        "The public interface has changed. Deprecate what goes (CONTRIBUTING.md), write into CHANGELOG.md, and then:"
        " python -m tests.release.names > tests/release/public_names.txt"
    )


def test_layers_import_the_kernels_names_that_a_review_has_seen() -> None:
    kept = Path(names.__file__).with_name("kernel_names.txt").read_text().splitlines()
    assert list(kernel.lines()) == kept, (
        "Layers import other names than before from below `fdbqueue.lowlevel`. If each is needed:"
        " python -m docs.site.kernel > tests/release/kernel_names.txt"
    )


def test_each_name_of_the_kernel_says_what_it_is() -> None:
    silent = [
        row for part in kernel.body() for row in part.splitlines() if row.startswith("| `") and row.endswith("|  |")
    ]
    assert silent == []


def test_an_import_loads_nothing_that_is_not_used_yet() -> None:
    code = "import sys, fdbqueue; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not ON_DEMAND & {name.split(".")[0] for name in loaded}
    assert not OF_OPERATORS & set(loaded)
    assert "fdbqueue.layers" not in loaded


def test_every_public_name_is_there_and_is_listed_though_some_are_imported_later() -> None:
    code = (
        "import fdbqueue; listed = dir(fdbqueue);"
        "print(*[name for name in fdbqueue.__all__ if name not in listed or not hasattr(fdbqueue, name)])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
    with pytest.raises(AttributeError, match="has no attribute 'enqueue'"):
        fdbqueue.enqueue  # noqa: B018


def test_a_deprecated_name_warns_its_caller() -> None:
    def old() -> None:
        deprecated("old()", since="0.2.0", instead="new()")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        old()
    assert told[0].category is DeprecationWarning
    assert told[0].filename == __file__
    with pytest.raises(DeprecationWarning, match=r"old\(\) is deprecated since 0\.2\.0"):
        old()


def distributions(folder: Path) -> dict[str, bytes]:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_two_builds_have_the_same_bytes_and_the_page_of_an_index_has_no_dead_link(tmp_path: Path) -> None:
    first, second = distributions(tmp_path / "first"), distributions(tmp_path / "second")
    assert len(first) == 2
    assert first == second
    [wheel] = (tmp_path / "first").glob("*.whl")
    with zipfile.ZipFile(wheel) as inside:
        tops = {name.split("/")[0] for name in inside.namelist()}
        assert tops == {"fdbqueue", f"fdbqueue-{fdbqueue.__version__}.dist-info"}
        assert any(name.startswith("fdbqueue/layers/") for name in inside.namelist())
        [metadata] = (name for name in inside.namelist() if name.endswith("/METADATA"))
        text = inside.read(metadata).decode()
    assert "Description-Content-Type: text/markdown" in text
    assert "which class do I need? (`docs/guides/which-class.md`)" in text
    assert "`CHANGELOG.md`" in text
    assert not re.search(r"\]\((?!https?:)", text)


def test_the_lock_file_has_every_dependency_and_names_no_registry(repository: Path) -> None:
    lock = (repository / "requirements-dev.lock").read_text()
    assert "://" not in lock
    assert "--index" not in lock
    locked = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for all_ in project["optional-dependencies"].values() for one in all_)]
    direct = {re.split(r"[\[><=~! ;]", one)[0].lower() for one in wanted} - {"fdbqueue"}
    assert direct <= locked, "see CONTRIBUTING.md for the command that writes it"


def test_each_extra_has_tests_and_a_use_of_its_own_and_all_chosen_files_are_there() -> None:
    assert set(chosen.OF_EXTRA) == set(smoke.USES) == set(extras())
    paths = [*chosen.ENGINES, *chosen.paths(extras()), *(name.partition("::")[0] for name in chosen.NEED)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    known = {name: (ROOT / name.partition("::")[0]).read_text() for name in chosen.NEED}
    assert [name for name, text in known.items() if name.partition("::")[2].partition("[")[0] not in text] == []


def test_an_extra_brings_those_that_it_is_made_of() -> None:
    assert with_inner(["notebook"]) == ["notebook", "demo", "spark", "arrow"]
    assert not any("test_a_history" in one for one in chosen.left_out(with_inner(["spark"])))
    assert any("test_a_history" in one for one in chosen.left_out(["web"]))


def test_a_release_is_tried_at_the_lower_bounds_of_all_that_it_requires() -> None:
    wanted = direct(extras())
    assert any(one.startswith("msgspec>=") for one in wanted)
    assert any(one.startswith("pyarrow>=") for one in wanted), "through an extra of an extra"
    assert not any(one.startswith("fdbqueue") for one in wanted)
