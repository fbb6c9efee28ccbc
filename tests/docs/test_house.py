"""The repository keeps its promises: targets with help, packages with types, imports in one direction."""

from __future__ import annotations

import ast
import gc
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fdbqueue
import fdbqueue.layers


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return what a source consists of, the module first. It is parsed once for all tests."""
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(scope="module", autouse=True)
def _forgotten_at_the_end() -> Iterator[None]:
    gc.disable()  # it would look through all nodes again and again
    yield
    nodes.cache_clear()
    gc.enable()


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


def full_names(node: ast.ImportFrom, package: list[str]) -> list[list[str]]:
    """The names that a statement imports, as dotted names from the top, in parts; relative imports too."""
    start = package[: len(package) - node.level + 1] if node.level else []
    module = [*start, *(node.module.split(".") if node.module else [])]
    return [[*module, alias.name] for alias in node.names]


def reach_into(parts: list[str], name: list[str]) -> bool:
    """Return whether a file imports a name that another folder keeps for itself: one with an underscore."""
    private = [depth for depth, part in enumerate(name) if part.startswith("_") and not part.startswith("__")]
    return bool(private) and name[0] == "fdbqueue" and parts[: private[0]] != name[: private[0]]


BY_BYTES = {
    "fdbqueue/engine/keys.py": "has the functions that know tuples",
    "fdbqueue/engine/directory.py": "hands strinc to the binding's directory layer",
    "fdbqueue/engine/__init__.py": "exports FoundationDB's interface",
    "fdbqueue/lowlevel.py": "still gives strinc, with a warning",
    "fdbqueue/stored/layout.py": "refuses a prefix that has the catalogue's first byte only, too",
    "fdbqueue/notebook.py": "reads special keys of a transaction, which hold no tuples",
    "layers/oplog/_oplog.py": "is a transaction with FoundationDB's interface",
}
"""Files that may compare keys by their bytes, and why. The embedded engine is FoundationDB's interface, too."""
KEY_WORDS = re.compile(r"(^|_)(key|keys|prefix|prefixes|space|packed|parts?|whole|begin|index|own|template)$")


def by_bytes(source: str) -> list[int]:
    """The lines that look for keys by their first bytes. The keys below a name are fewer: see `engine.keys.within`."""
    lines = []
    for node in nodes(source):
        match node:
            case ast.Name(id="strinc") | ast.alias(name="strinc"):
                lines.append(node.lineno)
            case ast.Attribute(attr="strinc" | "clear_range_startswith" | "get_range_startswith"):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="startswith", value=what), args=[prefix, *_]):
                if any(KEY_WORDS.search(word(one)) for one in (what, prefix)):
                    lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="contains")) | ast.BinOp(op=ast.Add(), right=ast.Constant(b"\xff")):
                lines.append(node.lineno)
    return lines


def word(node: ast.expr) -> str:
    """The last name in an expression, which tells what it is."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "line",
    [
        "rows(tr, begin, strinc(begin))",
        "tr.clear_range_startswith(layout.prefix)",
        "row.key.startswith(layout.timers_prefix)",
        "layout.prefix.startswith(other)",
        "part.startswith(index)",
        "space.contains(row)",
        'rows(tr, prefix, prefix + b"\\xff")',
    ],
)
def test_what_looks_for_keys_by_their_first_bytes_is_found(line: str) -> None:
    assert by_bytes(line) == [1]
    assert by_bytes('name.startswith("sha256:")') == []


def test_all_ranges_of_keys_know_tuples(repository: Path) -> None:
    """`"a"` packed begins the keys of `"a\\x00b"`, too: a range by `strinc` has the keys of both."""
    found = {
        str(file.relative_to(repository)): lines
        for file, _ in files_of(repository)
        if (lines := by_bytes(file.read_text()))
    }
    others = {file: lines for file, lines in found.items() if not file.startswith("fdbqueue/engine/embedded/")}

    assert {file: lines for file, lines in others.items() if file not in BY_BYTES} == {}
    assert BY_BYTES.keys() <= others.keys(), "a file that no longer needs it"


UNPACKS = {
    "fdbqueue/engine/keys.py": "exports FoundationDB's interface",
    "fdbqueue/stored/shapes.py": "is the decoder of keys",
    "fdbqueue/stored/layout.py": "has the functions that read the name of a queue in a prefix",
    "fdbqueue/stored/codecs.py": "is the codec of values that are tuples",
    "layers/sessions/session/address.py": "looks for a session's name in a position that a caller gave",
    "fdbqueue/agents/queues.py": "has tuples as values",
    "layers/sessions/session/records.py": "has packed names as values",
    "layers/sessions/line/slots.py": "has tuples as values",
}
"""Files that may unpack tuples, and why. A stored key may be another program's: see `Layout.parts`."""


def unpacks(source: str) -> list[int]:
    """The lines that unpack a tuple. A `struct.Struct` is a constant, so that its name is in capitals."""
    lines = []
    for node in nodes(source):
        match node:
            case ast.Attribute(attr="unpack", value=what) if word(what) != "struct" and not word(what).isupper():
                lines.append(node.lineno)
            case ast.ImportFrom(module=str(module), names=names) if module.endswith("tuple"):
                lines += [node.lineno for name in names if name.name == "unpack"]
    return lines


@pytest.mark.parametrize(
    "line",
    [
        "fdb_tuple.unpack(row.key)",
        "fdb.tuple.unpack(key)",
        "layout.timers.unpack(key)[0]",
        "self.space[7].unpack(key)",
        "parts = map(space.unpack, keys)",
        "from fdb.tuple import unpack",
    ],
)
def test_what_unpacks_a_tuple_is_found(line: str) -> None:
    assert unpacks(line) == [1]
    assert unpacks("_COUNT.unpack(value)\nstruct.unpack('<q', value)\nunpack(rows)") == []


def test_keys_are_read_by_one_decoder(repository: Path) -> None:
    """A key that is no tuple, or has other parts, raises half a dozen errors of Python's in whatever unpacks it."""
    found = {
        str(file.relative_to(repository)): lines
        for file, _ in files_of(repository)
        if (lines := unpacks(file.read_text()))
    }

    assert {file: lines for file, lines in found.items() if file not in UNPACKS} == {}
    assert UNPACKS.keys() == found.keys(), "a file that no longer needs it"


HINT = "takes any bytes as a number: a hint, a lease or a size, which the next call writes again"
OWN_ERROR = "its error names the record by its name"
DECODES = {
    "fdbqueue/moves/moves.py": "reads whether there are subscriptions: any value says so",
    "fdbqueue/stored/catalogue.py": "asks whether the codec of states is a text",
    "fdbqueue/stored/counters.py": "has the error of a counter, which documents name",
    "fdbqueue/stored/items.py": "reads envelopes, whose errors name the item",
    "fdbqueue/stored/layout.py": "reads keys, and has the decoder",
    "fdbqueue/stored/positions.py": "reads keys",
    "fdbqueue/stored/names.py": "reads texts of names",
    "fdbqueue/stored/settings.py": "has the decoders of a type and a pause, and the high-water mark in two forms",
    "layers/sessions/session/address.py": "reads a position",
    "fdbqueue/verbs/renaming.py": "rewrites pointers of sessions",
    "fdbqueue/observe/figures.py": HINT,
    "layers/blobs/_blobs.py": HINT,
    "layers/blobs/_uploads.py": HINT,
    "layers/middleware/token_bucket.py": HINT,
    "layers/groups/_group.py": HINT,
    "layers/groups/sweeping.py": HINT,
    "layers/oplog/_oplog.py": "reads a template of a key",
    "layers/oplog/_records.py": "reads the records of an operation log, which is no queue",
    "layers/streams/_stream.py": HINT,
    "layers/streams/records.py": OWN_ERROR,
    "layers/subscriptions/_following.py": HINT,
    "layers/subscriptions/records.py": HINT,
    "layers/subscriptions/head.py": HINT,
    "layers/subscriptions/waiters.py": HINT,
    "layers/tasks/_arguments.py": "reads the payloads of users' items",
    "layers/tasks/_lane.py": "reads the payloads of users' items, and results",
}
"""Files that may decode stored bytes without `Layout.decode`, and why."""


def decodes(source: str) -> list[int]:
    """The lines that decode bytes. A decoder of msgspec is well where the file hands it to `Layout.decode`."""
    lines = []
    calls = [
        node
        for node in nodes(source)
        if isinstance(node, ast.Call) and len(node.args) >= len(("key", "value", "decode"))
    ]
    uses = any(getattr(call.func, "attr", "") == "decode" for call in calls)
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="int"), attr="from_bytes")):
                lines.append(node.lineno)
            case ast.Call(func=ast.Attribute(attr="Decoder" | "decode", value=ast.Attribute(attr="msgpack" | "json"))):
                lines += [] if uses else [node.lineno]
            case ast.Call(func=ast.Attribute(attr="unpack" | "unpack_from", value=ast.Name(id=name))):
                lines += [node.lineno] if name == "struct" or name.isupper() else []
            case ast.Call(func=ast.Attribute(attr="decode", value=ast.Call(func=ast.Name(id="bytes")))):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    "line",
    [
        'int.from_bytes(row.value, "little")',
        "_decoder = msgspec.msgpack.Decoder(Record)",
        "_COUNT.unpack(row.value)",
        "bytes(value).decode()",
        "msgspec.json.decode(value)",
    ],
)
def test_what_decodes_stored_bytes_is_found(line: str) -> None:
    assert decodes(line) == [1]
    assert decodes("layout.decode(key, value, msgspec.json.decode)\nmsgspec.json.decode") == []


KNOWN_READABLE = "were read before: the bytes are known to be good"
NAMED_BY_CALLER = "its callers name the item"
READS_UNNAMED = {
    "fdbqueue/moves/moves.py": KNOWN_READABLE,
    "fdbqueue/moves/taking.py": KNOWN_READABLE,
    "fdbqueue/reads/inspecting.py": NAMED_BY_CALLER,
    "fdbqueue/transfer/backups.py": "parses a URL",
    "fdbqueue/transfer/copying.py": KNOWN_READABLE,
    "fdbqueue/transfer/records.py": NAMED_BY_CALLER,
    "layers/sessions/reading/listing.py": "`_one` has read the bytes, and names their key",
    "layers/sessions/session/records.py": NAMED_BY_CALLER,
    "layers/smart/admitting.py": KNOWN_READABLE,
    "layers/streams/_moving.py": NAMED_BY_CALLER,
    "layers/subscriptions/_grammar.py": NAMED_BY_CALLER,
}
"""Files that may read notes, pointers or envelopes without a name for the item that can't be read, and why."""
READERS = ("notes_of", "pointer_of", "parse")


def reads_unnamed(source: str) -> list[int]:
    """The lines that read an item's stored bytes outside of `Layout.read_item` and a handler of FormatError."""
    lines: list[int] = []

    def catches(what: ast.expr | None) -> bool:
        names = [node.id for node in ast.walk(what or ast.Constant(None)) if isinstance(node, ast.Name)]
        return any(name == "FormatError" or name.startswith("UN") for name in names)

    def visit(nodes: list[ast.AST], safe: bool) -> None:
        for node in nodes:
            match node:
                case ast.Try(body=body, handlers=handlers):
                    visit([*body], safe or any(catches(one.type) for one in handlers))
                    visit([*handlers, *node.orelse, *node.finalbody], safe)
                    continue
                case ast.With(items=items) if any(
                    "suppress(" in ast.unparse(one) and catches(one.context_expr) for one in items
                ):
                    continue
                case ast.Call(func=ast.Name(id=name)) if name in READERS and not safe:
                    lines.append(node.lineno)
            visit([*ast.iter_child_nodes(node)], safe)

    visit([nodes(source)[0]], False)
    return lines


def test_what_reads_an_item_without_its_name_is_found() -> None:
    assert reads_unnamed("notes = notes_of(stored)") == [1]
    assert reads_unnamed("try:\n    notes_of(stored)\nexcept KeyError:\n    parse(stored)") == [2, 4]
    assert reads_unnamed("try:\n    notes_of(stored)\nexcept (FormatError, KeyError):\n    pass") == []
    assert reads_unnamed("with suppress(FormatError):\n    pointer_of(stored)") == []
    assert reads_unnamed("layout.read_item(packed, stored, notes_of)") == []


def test_an_item_that_can_not_be_read_is_named(repository: Path) -> None:
    """An error about an item names it: see `Layout.read_item`."""
    folders = ("moves", "reads", "writes", "verbs", "observe", "layers", "transfer")
    found = {
        "/".join(parts[1:] if parts[:2] == ["fdbqueue", "layers"] else parts): lines
        for file, parts in files_of(repository)
        if parts[1] in folders and (lines := reads_unnamed(file.read_text()))
    }

    assert {f"{name}.py": lines for name, lines in found.items() if f"{name}.py" not in READS_UNNAMED} == {}
    assert {f"{name}.py" for name in found} == READS_UNNAMED.keys(), "a file that no longer needs it"


def test_stored_records_are_decoded_in_one_place(repository: Path) -> None:
    """An error about a record names its key: see `Layout.decode`."""
    folders = ("moves", "stored", "reads", "writes", "verbs", "observe", "layers")
    found = {
        "/".join(parts[1:] if parts[:2] == ["fdbqueue", "layers"] else parts)
        for file, parts in files_of(repository)
        if parts[1] in folders and decodes(file.read_text())
    }

    assert {f"{name}.py" for name in found} == DECODES.keys()


SALVAGES = {
    "fdbqueue/moves/rescue.py": "adds what the keys know, for all calls that take an item away",
    "layers/leases/browsing.py": "shows items, and purges dead letters, whose ends were told when they died",
    "layers/sessions/operators/changes.py": "purges dead letters, whose ends were told when they died",
    "layers/sessions/operators/editing.py": "asks whether an item blocked its session",
    "layers/subscriptions/selectors.py": "searches dead letters by their errors, and changes none",
}
"""Files that may use what is left of the notes of an item that can't be read, of those that change items, and why."""


def test_all_removals_of_items_that_cannot_be_read_ask_their_keys(repository: Path) -> None:
    """What is left of damaged notes names neither the completion nor the group: see `fdbqueue.moves.rescue`."""
    changing = ("fdbqueue/moves/", "fdbqueue/writes/", "fdbqueue/verbs/", "fdbqueue/transfer/", "layers/")
    named = {str(file.relative_to(repository)) for file, _ in files_of(repository) if salvages(file.read_text())}

    assert {file for file in named if file.startswith(changing)} == SALVAGES.keys()


def salvages(source: str) -> bool:
    """Whether a file uses `salvaged_notes`."""
    return any(isinstance(node, ast.alias) and node.name == "salvaged_notes" for node in nodes(source))


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
