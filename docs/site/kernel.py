"""The kernel: the names of the folders below the layers that the layers import, and what each is.

``python -m docs.site.kernel > tests/release/kernel_names.txt`` lists them, and a test compares: so that a review sees
each name that a layer comes to need, or needs no more.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fdbqueue import layers

ROOMS = {
    "base": "Arguments, times and representations",
    "engine": "Transactions, keys and waiting, on both engines",
    "stored": "Keys, and the bytes under them",
    "moves": "What is taken, and moves between states",
    "writes": "New items",
    "reads": "Looks and checks",
    "arrow": "Items as tables",
    "verbs": "Verbs that layers share",
}
LONG_VALUE = 60
"""A longer value is told by its type."""
HEAD = """A layer meets the queue here. The library's own layers import the names of `fdbqueue`, those of
`fdbqueue.lowlevel`, and these, and nothing else from the folders below them. So may a layer of yours. The names of
`fdbqueue.lowlevel` are stable within a minor version. These may change in any version, and the changelog says how.
"""


def names() -> dict[str, list[str]]:
    """Return the names that layers import from each module of the folders below."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in Path(layers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                top, _, rest = node.module.partition(".")
                if top == "fdbqueue" and rest.split(".")[0] in ROOMS:
                    found[node.module].update(alias.name for alias in node.names)
    return {module: sorted(found[module], key=str.lower) for module in sorted(found)}


def lines() -> Iterator[str]:
    """Yield each name with its module."""
    for module, listed in names().items():
        yield from (f"{module}.{name}" for name in listed)


def body() -> Iterator[str]:
    """Yield the parts of the page of the kernel."""
    yield HEAD
    listed = names()
    for room, title in ROOMS.items():
        yield f"## {title}\n"
        for module, found in listed.items():
            if module.split(".")[1] == room:
                loaded = importlib.import_module(module)
                told = _told(loaded)
                rows = [f"| `{name}` | {told.get(name) or _value(getattr(loaded, name))} |\n" for name in found]
                yield f"| `{module}` | |\n| --- | --- |\n" + "".join(rows)


def _told(module: ModuleType) -> dict[str, str]:
    """Return the first sentence that a module says of each of its own names."""
    told: dict[str, str] = {}
    statements = ast.parse(inspect.getsource(module)).body
    for node, behind in zip(statements, [*statements[1:], None], strict=True):
        match node, behind:
            case ((ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef()), _):
                told[node.name] = _first_sentence(ast.get_docstring(node) or "")
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                told[name] = _first_sentence(text)
            case _:
                pass
    return told


def _value(one: object) -> str:
    """Return the cell of a name that its module does not describe: a docstring of what it names, or its value."""
    if isinstance(one, ModuleType):
        return _first_sentence(inspect.getdoc(one) or "")
    if isinstance(one, type) or inspect.isfunction(one):
        return _first_sentence(inspect.getdoc(one) or f"`{one.__name__}` of `{one.__module__}`.")
    text = repr(one)
    return f"`{text}`" if len(text) <= LONG_VALUE else type(one).__name__


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


if __name__ == "__main__":
    print(*lines(), sep="\n")
