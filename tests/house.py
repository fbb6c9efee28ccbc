"""Measure the house: how much code there is, how it hangs together, and how many words describe it.

Run by `make house`. Lines of code are lines without docstrings, comments and blank lines.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG_LINES = 600
"""A file with more lines is long."""
_NOT_PRIVATE = ("_", "_exit", "_getframe", "_replace", "_repr_html_", "_repr_png_")
"""Documented names of Python (`os._exit`, `sys._getframe`, named tuples) and of notebooks."""
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


@dataclass
class Measures:
    """What one folder of code has."""

    files: int = 0
    lines: int = 0
    """Of code."""
    imports: int = 0
    """Lines of imports among them."""
    long: list[str] = field(default_factory=list)
    """Files with more than 600 lines, all lines counted."""
    any_words: int = 0
    """How often `Any` stands in the code."""
    raises: int = 0
    private: int = 0
    """Uses of a private name of another object or module."""
    below: set[str] = field(default_factory=set)
    """Names that layers import from below `lowlevel`."""
    beside: set[str] = field(default_factory=set)
    """Modules of a layer that other layers import."""
    methods: Counter[str] = field(default_factory=Counter)
    """Methods of classes."""


def code_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that have code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def measured(folder: Path, *, lines: bool = True) -> Measures:
    """Measure the Python files of a folder; counting their lines of code takes most of the time."""
    found = Measures()
    for path in python_files(folder):
        _add(found, path, lines)
    return found


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, without those behind links."""
    for path in sorted(folder.rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.parents):
            yield path


def _add(found: Measures, path: Path, lines: bool) -> None:
    source = path.read_text()
    tree = ast.parse(source)
    found.files += 1
    found.lines += len(code_lines(source, tree)) if lines else 0
    if source.count("\n") > LONG_LINES:
        found.long.append(f"{path.relative_to(ROOT)} {source.count(chr(10))}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports += (node.end_lineno or node.lineno) - node.lineno + 1
            _add_import(found, path, node)
        elif isinstance(node, ast.Raise):
            found.raises += 1
        elif isinstance(node, ast.Name):
            found.any_words += node.id == "Any"
        elif isinstance(node, ast.Attribute):
            found.private += _is_private(node.attr) and not _is_own(node.value)
        elif isinstance(node, ast.ClassDef):
            found.methods[f"{path.stem}.{node.name}"] = sum(
                isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body
            )


def _add_import(found: Measures, path: Path, node: ast.Import | ast.ImportFrom) -> None:
    if not isinstance(node, ast.ImportFrom):
        return
    found.private += sum(_is_private(alias.name) for alias in node.names if node.module != "__future__")
    inside = path.relative_to(ROOT).parts
    if inside[0] != "layers":
        return
    module = node.module or ""
    if (
        not node.level
        and module.startswith("fdbqueue.")
        and not module.startswith(("fdbqueue.lowlevel", "fdbqueue.layers"))
    ):
        found.below.update(f"{module}.{alias.name}" for alias in node.names)
    if node.level > len(inside) - 2 and "." in module:
        found.beside.add(module)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _NOT_PRIVATE


def _is_own(value: ast.expr) -> bool:
    """Return whether an attribute is that of the object itself, of its class, or of a base class."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls", "own", "other", "tr")


def words(folder: Path) -> int:
    """Return the number of words in the Markdown files of a folder."""
    return sum(words_of(path) for path in folder.rglob("*.md"))


def words_of(path: Path) -> int:
    """Return the number of words in a file, without the bars of tables and other signs."""
    return sum(any(map(str.isalnum, word)) for word in path.read_text().split())


def report() -> Iterator[str]:
    """Yield the measures as lines."""
    library, layers, tests = (measured(ROOT / name) for name in ("fdbqueue", "layers", "tests"))
    lines, files = library.lines + layers.lines, library.files + layers.files
    imports = 100 * (library.imports + layers.imports) / lines
    largest = (library.methods + layers.methods).most_common(5)
    changes = words_of(ROOT / "CHANGELOG.md")
    texts = words(ROOT / "docs") + sum(map(words_of, ROOT.glob("*.md")))
    yield f"lines of code: {lines:,} (fdbqueue {library.lines:,}, layers {layers.lines:,}; tests {tests.lines:,})"
    yield f"files: {files} (fdbqueue {library.files}, layers {layers.files}; tests {tests.files})"
    yield f"imports: {imports:.1f} % of the lines"
    yield f"long files: {', '.join(sorted(library.long + layers.long)) or 'none'}"
    yield f"classes with the most methods: {', '.join(f'{name} {number}' for name, number in largest)}"
    yield f"Any: {library.any_words + layers.any_words:,}"
    yield f"raise: {library.raises + layers.raises:,}"
    yield f"private names used from outside: {library.private + layers.private} (in tests {tests.private})"
    yield f"names that layers take from below lowlevel: {len(layers.below)}"
    yield f"modules of layers that other layers import: {len(layers.beside)}"
    yield f"words of documents: {texts:,} (CHANGELOG.md {changes:,})"


if __name__ == "__main__":
    print("\n".join(report()))
