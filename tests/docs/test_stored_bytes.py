"""Stored bytes are read in few places, which name what can't be read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.sources import files_of, nodes

pytestmark = pytest.mark.usefixtures("parsed_once")

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
    "fdbqueue/stored/catalogue.py": "asks whether the codec of states is a text",
    "fdbqueue/stored/counters.py": "has the error of a counter, which documents name",
    "fdbqueue/stored/items.py": "reads envelopes, whose errors name the item",
    "fdbqueue/stored/layout.py": "reads keys, and has the decoder",
    "fdbqueue/stored/positions.py": "reads keys",
    "fdbqueue/stored/names.py": "reads texts of names",
    "fdbqueue/stored/settings.py": "has the decoders of a type and a pause, and the high-water mark in two forms",
    "layers/sessions/session/address.py": "reads a position",
    "fdbqueue/observe/figures.py": HINT,
    "layers/blobs/blobs.py": HINT,
    "layers/blobs/_uploads.py": HINT,
    "layers/middleware/token_bucket.py": HINT,
    "layers/groups/group.py": HINT,
    "layers/oplog/_oplog.py": "reads a template of a key",
    "layers/oplog/_records.py": "reads the records of an operation log, which is no queue",
    "layers/streams/stream.py": HINT,
    "layers/streams/records.py": OWN_ERROR,
    "layers/subscriptions/following.py": HINT,
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
    "layers/streams/moving.py": NAMED_BY_CALLER,
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
