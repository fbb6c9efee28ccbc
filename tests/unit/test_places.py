"""Everything that the package names by a text, or imports only when it is needed, is where it says: found at once."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
import fdbqueue.layers
import fdbqueue.observe
import fdbqueue.spark
from fdbqueue.base.contributions import Contributions
from tests.house import ROOT, python_files

OPTIONAL = ("pyspark", "fdb")
"""What need not be installed: a file that imports one of them at its head is left out."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of every module of the package."""
    for folder in ("fdbqueue", "layers"):
        for path in python_files(ROOT / folder):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts[-1:] != ("__main__",):
                yield ".".join(parts if parts[0] == "fdbqueue" else ("fdbqueue", *parts)), path


def resolve(module: str, name: str) -> Any:
    """Return what a module has by this name, or its module of that name."""
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def named_by_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of each text "module:name" of the package's own."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and (match := re.fullmatch(r"(fdbqueue(?:\.\w+)+):(\w+)", text)):
            yield match[1], match[2]


def imported(name: str, path: Path, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from the package, also of those inside functions."""
    room = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                module = importlib.util.resolve_name("." * node.level + module, room)
            if module.split(".")[0] == "fdbqueue":
                yield from ((module, alias.name) for alias in node.names)


def test_everything_that_is_named_or_imported_late_is_there() -> None:
    missing, tables = [], 0
    for name, path in modules():
        tree = ast.parse(path.read_text())
        texts = list(named_by_texts(tree))
        tables += len(texts)
        for module, wanted in {*texts, *imported(name, path, tree)}:
            try:
                resolve(module, wanted)
            except (ImportError, AttributeError) as error:
                if getattr(error, "name", None) not in OPTIONAL:
                    missing.append(f"{path.relative_to(ROOT)}: {module}:{wanted}: {error}")
    assert missing == []
    assert tables > 15, "the texts have another form now: this test has to look for that"


@pytest.mark.parametrize("package", [fdbqueue, fdbqueue.layers, fdbqueue.observe, fdbqueue.spark])
def test_every_public_name_that_is_imported_late_is_there(package: Any) -> None:
    for name in package.__all__:
        getattr(package, name)


def tables() -> dict[str, Contributions[Any]]:
    """Return every table of what layers contribute, by where it stands."""
    found = {}
    for name, path in modules():
        if "Contributions" in path.read_text():
            found.update({f"{name}:{key}": value for key, value in vars(importlib.import_module(name)).items()})
    return {key: value for key, value in found.items() if isinstance(value, Contributions)}


@pytest.mark.parametrize("table", [pytest.param(table, id=place) for place, table in tables().items()])
def test_each_part_of_the_library_is_there(table: Contributions[Any]) -> None:
    assert list(table.all()) == list(table.parts)
    for name, place in table.parts.items():
        assert f".{name}." in str(place), "a part stands with the layer that it is named for"


def test_a_part_has_a_name_that_the_library_does_not_use() -> None:
    table: Contributions[int] = Contributions(blobs="fdbqueue.layers.blobs.blobs:BlobCheck")
    table.add("mine", 1)
    table.add("mine", 2)
    assert table.all()["mine"] == 2
    for name in ("blobs", ""):
        with pytest.raises(ValueError, match="needs a name that the library does not use"):
            table.add(name, 3)
