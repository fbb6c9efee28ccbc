"""The sources of the library, parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return what a source consists of, the module first. It is parsed once for all tests."""
    return list(ast.walk(ast.parse(source)))


def files_of(repository: Path) -> list[tuple[Path, list[str]]]:
    """The library's files, each with its place as a dotted name, in parts."""
    files = [*(repository / "fdbqueue").glob("**/*.py"), *(repository / "layers").glob("**/*.py")]
    found = []
    for file in files:
        path = file.relative_to(repository).with_suffix("")
        if path.parts[:2] == ("fdbqueue", "layers"):
            continue  # the link to the other folder
        parts = [*(("fdbqueue",) if path.parts[0] == "layers" else ()), *path.parts]
        found.append((file, parts))
    return found
