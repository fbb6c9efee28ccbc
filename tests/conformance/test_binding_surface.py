"""The embedded engine has what the official binding has: every method, by name, arguments and defaults, every option.

The binding's source is read as text, as its module can't be imported without the client library.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import fdb.fdboptions
import pytest

from fdbqueue.engine import StreamingMode, Subspace, api
from fdbqueue.engine.embedded.client import futures, pages, reads, transaction
from fdbqueue.engine.embedded.client.commits import Commit
from fdbqueue.engine.embedded.client.database import Database
from fdbqueue.engine.embedded.client.options import DatabaseOptions, TransactionOptions
from fdbqueue.engine.embedded.client.pending import Watch
from fdbqueue.engine.optional import set_rows
from fdbqueue.engine.steps import in_few_steps, rows, run
from tests.helpers.sources import files_of, nodes

CLASSES: dict[str, type] = {
    "Database": Database,
    "_TransactionCreator": Database,
    "Transaction": transaction.Transaction,
    "TransactionRead": reads.SnapshotReads,
    "Future": futures.Future,
    "FutureVoid": Commit,
    "FutureInt64": futures.FutureInt64,
    "FutureString": futures.FutureString,
    "Value": futures.Value,
    "Key": futures.Key,
    "FDBRange": pages.FDBRange,
    "KeyValue": pages.KeyValue,
}
LEFT_OUT = {
    ("_TransactionCreator", "declare_asynchronous_transactions"),  # of the binding's event models
    *(
        ("Database", name)  # the change streams of 8.0
        for name in (
            "register_cdc_stream",
            "remove_cdc_stream",
            "list_cdc_streams",
            "create_cdc_consumer",
            "resume_cdc_consumer",
        )
    ),
}
NEWER_ARGUMENTS = {("get_range_split_points", "limit")}
"""Of bindings newer than 7.3."""


def binding_classes() -> dict[str, ast.ClassDef]:
    spec = importlib.util.find_spec("fdb")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).with_name("impl.py").read_text("utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def methods() -> list[tuple[str, ast.FunctionDef]]:
    """The binding's public methods, and those special ones that Python calls."""
    return [
        (name, node)
        for name, definition in binding_classes().items()
        if name in CLASSES
        for node in definition.body
        if isinstance(node, ast.FunctionDef) and (name, node.name) not in LEFT_OUT
        if not node.name.startswith("_") or (node.name.endswith("__") and node.name not in ("__init__", "__del__"))
        if node.name not in ("getclass", "__nonzero__", "next")  # no part of Python 3's protocols
    ]


@pytest.mark.parametrize(("owner", "node"), methods(), ids=lambda part: getattr(part, "name", part))
def test_a_method_takes_the_bindings_arguments(owner: str, node: ast.FunctionDef) -> None:
    ours = getattr(CLASSES[owner], node.name)
    if not inspect.isfunction(ours) and not inspect.ismethod(ours):
        return
    theirs = [
        argument.arg
        for argument in node.args.args
        if argument.arg != "self" and (node.name, argument.arg) not in NEWER_ARGUMENTS
    ]
    parameters = [p for p in inspect.signature(ours).parameters.values() if p.name != "self"]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not node.name.startswith("__"):
        assert positional == theirs
    else:
        assert len(positional) == len(theirs)
    if len(theirs) < len(node.args.args) - 1:
        return
    for default, parameter in zip(reversed(node.args.defaults), reversed(parameters), strict=False):
        assert parameter.default == default_of(default)


def default_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute):
        return getattr(StreamingMode, node.attr)
    return ast.literal_eval(node)


@pytest.mark.parametrize("name", sorted(name.lower() for name in fdb.fdboptions.MutationType))
@pytest.mark.parametrize("owner", [Database, transaction.Transaction])
def test_every_atomic_operation_is_there(owner: type, name: str) -> None:
    assert callable(getattr(owner, name))
    assert callable(getattr(owner, f"bit_{name}"))


@pytest.mark.parametrize(
    ("owner", "scope"), [(TransactionOptions, "TransactionOption"), (DatabaseOptions, "DatabaseOption")]
)
def test_every_option_exists_and_takes_the_bindings_arguments(owner: type, scope: str) -> None:
    for name, (_, _, kind, _) in getattr(fdb.fdboptions, scope).items():
        parameters = list(inspect.signature(getattr(owner, f"set_{name.lower()}")).parameters)
        assert len(parameters) == (1 if kind is type(None) else 2), name


def test_every_streaming_mode_has_the_bindings_number() -> None:
    theirs = {name.lower(): mode[0] for name, mode in fdb.fdboptions.StreamingMode.items()}
    assert {name: int(getattr(StreamingMode, name)) for name in theirs} == theirs


@pytest.mark.parametrize("name", [name for name in dir(bytes) if not name.startswith("_")])
def test_a_lazy_value_has_every_method_of_bytes(name: str) -> None:
    assert callable(getattr(futures.Value, name))


def test_a_watch_and_a_commit_are_futures() -> None:
    assert issubclass(Commit, futures.Future)
    assert issubclass(Watch, futures.Future)


def members(protocol: type) -> set[str]:
    """The names that a protocol of the engine's contract promises."""
    names = {name for base in protocol.__mro__ for name in vars(base) if base.__module__ == "fdbqueue.engine.api"}
    private = {name for name in names if name.startswith("_") and not name.endswith("item__")}
    return names - private


@pytest.mark.parametrize("protocol", [api.Database, api.Transaction, api.ReadTransaction, api.Value, api.Rows])
def test_every_engine_has_the_members_of_the_types(db: Any, space: Subspace, protocol: Any) -> None:
    tr = db.create_transaction()
    found = {
        api.Database: db,
        api.Transaction: tr,
        api.ReadTransaction: tr.snapshot,
        api.Value: tr.get(space.key()),
        api.Rows: tr[space.range()],
    }[protocol]

    assert {name for name in members(protocol) if not hasattr(found, name)} == set()


def test_nothing_calls_functions_of_tenants(repository: Path) -> None:
    """They end the process with the client library of 8.0."""
    for file, _ in files_of(repository):
        used = {node.attr for node in nodes(file.read_text("utf-8")) if isinstance(node, ast.Attribute)}
        assert not {name for name in used if "tenant" in name.lower()}, file


@pytest.mark.slow
@pytest.mark.engines("cluster")
def test_the_bindings_own_database_has_all_but_being_closed(db: Any, cluster_file: str) -> None:
    import fdb

    db.get_range(b"", b"", limit=1)  # loads the binding
    raw = fdb.open(cluster_file)

    assert {name for name in members(api.Database) if not hasattr(raw, name)} == {"close"}


@pytest.mark.engines("cluster")
def test_answers_of_the_binding_are_unpacked_in_few_steps(db: Any, space: Subspace) -> None:
    """The shorter way looks at the binding's inside. If that changes, the binding's own way is taken, unseen."""
    written = {space.pack((number,)): bytes(number % 3) for number in range(1_000)}
    tr = db.create_transaction()
    set_rows(tr, [*written], [*written.values()])
    page = in_few_steps(tr.get_range(*span_of(space), streaming_mode=StreamingMode.want_all)._future)

    assert type(page).__name__ == "QuickRows"
    assert {row.key: row.value for row in run(rows(tr, *span_of(space)))} == written


def span_of(space: Subspace) -> tuple[bytes, bytes]:
    return space.range().start, space.range().stop
