"""FoundationDB's directory layer, the official one, for the databases of both engines.

    from fdbqueue.engine.directory import directory
    users = directory.create_or_open(db, ("app", "users"))      # a short prefix, and a Subspace with it

The binding's directory module is pure Python, but its first lines import the client library, only for the
``transactional`` decorator. So this module compiles the installed source without that import. It gives it this
package's decorator instead, which accepts databases of both engines.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from fdbqueue.engine.keys import strinc
from fdbqueue.engine.transactional import transactional


def _load() -> ModuleType:
    package = importlib.util.find_spec("fdb")
    if package is None or package.origin is None:
        raise ImportError("the package foundationdb is not installed")
    path = Path(package.origin).with_name("directory_impl.py")
    tree = ast.parse(path.read_text("utf-8"), str(path))
    tree.body = [node for node in tree.body if not _imports_client(node)]
    module = ModuleType("fdb.directory_impl")
    vars(module).update(
        __file__=str(path),
        __package__="fdb",
        _impl=SimpleNamespace(transactional=transactional, strinc=strinc),
    )
    exec(compile(tree, str(path), "exec"), vars(module))
    return module


def _imports_client(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "fdb" and node.names[0].name == "impl"


_module: Final[Any] = _load()

DirectoryLayer: Final = _module.DirectoryLayer
DirectoryPartition: Final = _module.DirectoryPartition
DirectorySubspace: Final = _module.DirectorySubspace
HighContentionAllocator: Final = _module.HighContentionAllocator
directory: Final = _module.directory
"""The default directory layer."""

__all__ = ["DirectoryLayer", "DirectoryPartition", "DirectorySubspace", "HighContentionAllocator", "directory"]
