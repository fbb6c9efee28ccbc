"""The repository keeps its promises: targets with help, packages with types, imports in one direction."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import fdbqueue
import fdbqueue.layers
from tests import house
from tests.helpers.sources import files_of, nodes

pytestmark = pytest.mark.usefixtures("parsed_once")


def targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_make_alone_prints_a_line_for_each_target(repository: Path) -> None:
    printed = subprocess.run(["make"], cwd=repository, capture_output=True, text=True, check=True).stdout

    for target in targets((repository / "Makefile").read_text()):
        assert re.search(rf"^  make {target} +\S", printed, re.MULTILINE), target


def test_the_package_is_marked_as_typed(repository: Path) -> None:
    assert (repository / "fdbqueue" / "py.typed").exists()


def test_the_version_is_that_of_the_distribution(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]

    assert fdbqueue.__version__ == project["version"]
    images = re.findall(r"image: fdbqueue-\w+:(.+)", (repository / "docker-compose.yml").read_text())
    assert set(images) == {project["version"]}
    newest = re.search(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == project["version"]


def test_the_layers_folder_has_one_import_name(repository: Path) -> None:
    link = repository / "fdbqueue" / "layers"

    assert link.is_symlink()
    assert link.readlink().as_posix() == "../layers"


def test_every_public_name_of_the_layers_loads_and_is_known_to_type_checkers(repository: Path) -> None:
    source = ast.parse((repository / "layers" / "__init__.py").read_text())
    typed = {alias.name for node in ast.walk(source) if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert set(fdbqueue.layers.__all__) == typed - {"annotations", "TYPE_CHECKING", "Any"}
    assert all(getattr(fdbqueue.layers, name) is not None for name in fdbqueue.layers.__all__)
    assert set(fdbqueue.layers.__all__) <= set(dir(fdbqueue.layers))


def test_a_project_with_its_own_layers_module_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("MINE = True\n")
    code = "import layers; from fdbqueue.layers import Leases, StagedQueue; print(layers.MINE, Leases.__module__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["True", "fdbqueue.layers.leases.leases"]


def test_importing_the_library_loads_no_layer_no_spark_no_command_line_and_no_client_library() -> None:
    code = "import sys, fdbqueue; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    unwanted = {"fdbqueue.layers", "pyspark", "pyarrow", "typer", "rich", "fdb.impl", "fdbqueue.spark", "fdbqueue.cli"}
    assert not unwanted & set(loaded)


@pytest.mark.slow
def test_everything_can_be_imported_with_warnings_as_errors() -> None:
    code = "import fdbqueue, fdbqueue.layers.subscriptions._subscriptions, fdbqueue.cli; import no_such_module"
    failed = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)

    assert failed.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


def test_every_decision_is_listed(repository: Path) -> None:
    decisions = repository / "docs" / "adr"
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (decisions / "README.md").read_text())

    assert sorted(listed) == sorted(path.name for path in decisions.glob("0*.md"))


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Return what a file imports, wherever in it."""
    return [node for node in nodes(path.read_text()) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def importers(repository: Path, package: str) -> set[str]:
    """The files of the library that import a package."""
    files = [*repository.glob("fdbqueue/**/*.py"), *repository.glob("layers/**/*.py")]
    return {
        file.relative_to(repository).as_posix()
        for file in files
        if any(name == package or name.startswith(package + ".") for name in imports(file))
    }


def test_no_file_imports_the_layers_by_their_folder(repository: Path) -> None:
    files = [
        file for part in ("fdbqueue", "layers", "examples", "tests") for file in (repository / part).glob("**/*.py")
    ]
    said = [file for file in files if re.search(r"^ *(import|from) layers\b", file.read_text(), re.MULTILINE)]

    assert said == []


ROOMS = ("base", "engine", "stored", "moves", "writes", "reads", "arrow", "verbs", "errors")
"""The folders below the layers. import-linter checks that they import no layer."""


def test_layers_import_public_names_lowlevel_and_the_public_modules_of_the_rooms_below(repository: Path) -> None:
    found = {
        node.module
        for file in (repository / "layers").glob("**/*.py")
        for node in import_statements(file)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and node.module.startswith("fdbqueue")
    }
    rooms = {module for module in found if module.split(".")[1:2] and module.split(".")[1] in ROOMS}

    assert found - rooms == {"fdbqueue", "fdbqueue.lowlevel"}
    assert not {module for module in rooms if module.startswith("fdbqueue.engine.embedded")}


def full_names(node: ast.ImportFrom, package: list[str]) -> list[list[str]]:
    """The names that a statement imports, as dotted names from the top, in parts; relative imports too."""
    start = package[: len(package) - node.level + 1] if node.level else []
    module = [*start, *(node.module.split(".") if node.module else [])]
    return [[*module, alias.name] for alias in node.names]


def reach_into(parts: list[str], name: list[str]) -> bool:
    """Return whether a file imports a name that another folder keeps for itself: one with an underscore."""
    private = [depth for depth, part in enumerate(name) if part.startswith("_") and not part.startswith("__")]
    return bool(private) and name[0] == "fdbqueue" and parts[: private[0]] != name[: private[0]]


def test_no_file_imports_a_private_module_of_another_folder(repository: Path) -> None:
    assert reach_into(["fdbqueue", "layers", "staged", "_a"], ["fdbqueue", "layers", "leases", "_b", "C"])
    assert not reach_into(["fdbqueue", "layers", "leases", "_a"], ["fdbqueue", "layers", "leases", "_b", "C"])
    [relative] = ast.parse("from ..b._c import D").body
    assert isinstance(relative, ast.ImportFrom)
    assert full_names(relative, ["a", "x"]) == [["a", "b", "_c", "D"]]
    found = {
        f"{'.'.join(parts)} imports {'.'.join(name)}"
        for file, parts in files_of(repository)
        for node in import_statements(file)
        if isinstance(node, ast.ImportFrom)
        for name in full_names(node, parts[:-1])
        if reach_into(parts, name)
    }

    assert found == set()


def test_at_most_eight_files_lie_flat_in_the_package_and_each_folder_opens_with_a_page(repository: Path) -> None:
    package = repository / "fdbqueue"
    folders = [folder for folder in package.iterdir() if (folder / "__init__.py").exists()]

    assert len(list(package.glob("*.py"))) <= 8
    pages = {folder.name: ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) for folder in folders}
    assert [name for name, page in pages.items() if not page] == []


def test_three_files_import_the_binding_and_two_of_them_only_what_needs_no_client_library(repository: Path) -> None:
    needs_no_library = {
        "fdbqueue/engine/keys.py": ("fdb.tuple", "fdb.subspace_impl"),
        "fdbqueue/engine/embedded/client/options.py": ("fdb.fdboptions",),
    }
    assert importers(repository, "fdb") == {"fdbqueue/engine/cluster.py", *needs_no_library}
    for file, allowed in needs_no_library.items():
        assert all(name.startswith(allowed) for name in imports(repository / file) if name.split(".")[0] == "fdb")


def test_lmdb_is_imported_by_the_embedded_engine_only(repository: Path) -> None:
    assert all(file.startswith("fdbqueue/engine/embedded/") for file in importers(repository, "lmdb"))


def test_spark_is_imported_by_fdbqueue_spark_only(repository: Path) -> None:
    assert all(file.startswith("fdbqueue/spark/") for file in importers(repository, "pyspark"))


def draws_in_callbacks(source: str) -> list[int]:
    """The lines of functions within functions that draw: when and how often they run may depend on an engine."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    outer = [node for node in nodes(source) if isinstance(node, functions)]
    inner = {child for node in outer for child in ast.walk(node) if isinstance(child, functions) and child != node}
    return sorted(
        call.lineno
        for function in inner
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "draw"
    )


@pytest.mark.slow
def test_no_test_draws_its_data_in_a_callback(repository: Path) -> None:
    assert draws_in_callbacks("def test(data):\n    def later():\n        data.draw(x)\n    data.draw(y)") == [3]
    sources = {path.name: path.read_text() for path in repository.glob("tests/**/test_*.py")}
    found = {name: draws_in_callbacks(source) for name, source in sources.items() if ".draw(" in source}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_map_of_the_tests_has_each_helper(repository: Path) -> None:
    rows = re.findall(r"^\| `(\w+\.py)` \| (.*) \|$", (repository / "tests/README.md").read_text(), re.MULTILINE)
    told = {
        path.name: " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
        for path in (repository / "tests/helpers").glob("*.py")
    }
    assert dict(rows) == told


def test_files_that_the_code_names_are_there(repository: Path) -> None:
    there = {f"/{path.relative_to(repository)}" for path in repository.rglob("*.py") if ".venv" not in path.parts}
    missing = [
        (path.name, name)
        for path, _ in files_of(repository)
        for name in re.findall(r"`([\w/]+\.py)`", path.read_text())
        if not any(one.endswith(f"/{name}") for one in there)
    ]
    assert missing == []


def blocks_a_loop(source: str) -> list[int]:
    """Return the lines of coroutines that call a database directly: the event loop waits for its commit."""
    return [
        call.lineno
        for function in nodes(source)
        if isinstance(function, ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call | ast.Subscript)
        and ast.unparse(call).startswith(("db.add(", "db.set(", "db.clear", "db.get", "db["))
    ]


def test_no_example_blocks_its_event_loop(repository: Path) -> None:
    assert blocks_a_loop("async def f(db):\n    db.add(b'', b'')") == [2]
    found = {path.name: blocks_a_loop(path.read_text()) for path in repository.glob("examples/**/*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def texts_in_a_row(source: str) -> list[int]:
    """Return the lines of texts that follow a text: the second one is under the wrong constant."""
    bodies = [node.body for node in nodes(source) if isinstance(node, ast.Module | ast.ClassDef)]
    return [
        second.lineno
        for body in bodies
        for first, second in itertools.pairwise(body)
        if all(
            isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
            for one in (first, second)
        )
    ]


@pytest.mark.slow
def test_no_constant_has_the_docstring_of_another(repository: Path) -> None:
    assert texts_in_a_row("A = 1\n'of A'\n'of B'\nB = 2") == [3]
    found = {path.name: texts_in_a_row(path.read_text()) for path, _ in files_of(repository)}
    assert {name: lines for name, lines in found.items() if lines} == {}


ONE_NAME = {
    *("Database", "Future", "KeyValue", "Transaction", "Value"),  # the embedded engine's counterparts of the contract
    *("Faults", "Limits", "Look", "Outcome", "TimeLimit"),  # public names
}
"""The names that two classes share. Every other name that occurs twice says whose it is."""


@pytest.mark.slow
def test_a_class_has_a_name_of_its_own(repository: Path) -> None:
    names = Counter(
        node.name
        for folder in ("fdbqueue", "layers")
        for path in (repository / folder).rglob("*.py")
        if not path.is_relative_to(repository / "fdbqueue" / "layers")
        for node in nodes(path.read_text())
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, number in names.items() if number > 1} == ONE_NAME


MOST_PRIVATE = {"fdbqueue": 49, "tests": 29}
"""Uses of private names from outside, in the library with its layers and in the tests. They may only become fewer."""


@pytest.mark.slow
def test_private_uses_and_long_files_become_no_more() -> None:
    library, layers, tests = (
        house.measured(house.ROOT / name, lines=False) for name in ("fdbqueue", "layers", "tests")
    )

    assert library.private + layers.private <= MOST_PRIVATE["fdbqueue"]
    assert tests.private <= MOST_PRIVATE["tests"]
    assert {one.split()[0] for one in library.long + layers.long} == set()
