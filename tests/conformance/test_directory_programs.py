"""Random programs on the official directory layer, answered as a plain tree of dictionaries answers them."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.engine import Subspace, transactional
from fdbqueue.engine.directory import DirectoryLayer

Path = tuple[str, ...]
REFUSED = "refused"
NAMES = ("a", "b", "c")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
LAYERS = st.sampled_from([b"", b"x", b"y"])
VIEWS = st.sampled_from(["database", "transaction", "snapshot"])
READS = st.one_of(
    st.tuples(st.just("open"), PATHS, LAYERS, VIEWS),
    st.tuples(st.sampled_from(["exists", "list"]), PATHS, VIEWS),
)
WRITES = st.one_of(
    st.tuples(st.sampled_from(["create", "create_or_open"]), PATHS, LAYERS),
    st.tuples(st.just("move"), PATHS, PATHS),
    st.tuples(st.sampled_from(["remove", "remove_if_exists"]), PATHS),
)
PROGRAMS = st.lists(st.one_of(READS, WRITES), max_size=30)
_examples = count()


class Tree:
    """What the directory layer promises, without partitions: paths, their layers, and what was written into each."""

    def __init__(self) -> None:
        self._found: dict[Path, tuple[bytes, int]] = {(): (b"", 0)}
        self._made = count(1)

    def exists(self, path: Path) -> bool:
        return path in self._found

    def list(self, path: Path) -> list[str] | str:
        if path not in self._found:
            return REFUSED
        return sorted(found[-1] for found in self._found if found and found[:-1] == path)

    def open(self, path: Path, layer: bytes) -> int | str:
        if path not in self._found or layer not in (b"", self._found[path][0]):
            return REFUSED
        return self._found[path][1]

    def create(self, path: Path, layer: bytes) -> int | str:
        if path in self._found:
            return REFUSED
        for length in range(1, len(path)):
            self._found.setdefault(path[:length], (b"", 0))
        self._found[path] = (layer, next(self._made))
        return self._found[path][1]

    def create_or_open(self, path: Path, layer: bytes) -> int | str:
        return self.open(path, layer) if path in self._found else self.create(path, layer)

    def move(self, old: Path, new: Path) -> int | str:
        if old not in self._found or new in self._found or new[:-1] not in self._found or new[: len(old)] == old:
            return REFUSED
        for path in [path for path in self._found if path[: len(old)] == old]:
            self._found[new + path[len(old) :]] = self._found.pop(path)
        return self._found[new][1]

    def remove(self, path: Path) -> bool | str:
        return self.remove_if_exists(path) or REFUSED

    def remove_if_exists(self, path: Path) -> bool:
        gone = [found for found in self._found if found[: len(path)] == path]
        for each in gone:
            del self._found[each]
        return bool(gone)


class Directories:
    """The directory layer, asked in the same words. Each new directory has a number written into it."""

    def __init__(self, db: Any, space: Subspace) -> None:
        self._db = db
        self._layer = DirectoryLayer(node_subspace=space["nodes"], content_subspace=space["content"])
        self._made = 0

    def ask(self, operation: str, *args: Any) -> Any:
        try:
            return getattr(self, operation)(*args)
        except ValueError:
            return REFUSED

    def read(self, operation: str, view: str, *args: Any) -> Any:
        if view == "database":
            return getattr(self._layer, operation)(self._db, *args)
        tr = self._db.create_transaction()
        return getattr(self._layer, operation)(tr if view == "transaction" else tr.snapshot, *args)

    def exists(self, path: Path, view: str) -> Any:
        return self.read("exists", view, path)

    def list(self, path: Path, view: str) -> Any:
        return self.read("list", view, path)

    def open(self, path: Path, layer: bytes, view: str) -> int:
        return self._number(self.read("open", view, path, layer))

    def create(self, path: Path, layer: bytes) -> int:
        @transactional
        def make(tr: Any) -> None:
            tr[self._layer.create(tr, path, layer)["number"]] = b"%d" % (self._made + 1)

        make(self._db)
        self._made += 1
        return self._made

    def create_or_open(self, path: Path, layer: bytes) -> int:
        if not self._layer.exists(self._db, path):
            return self.create(path, layer)
        return self._number(self._layer.create_or_open(self._db, path, layer))

    def move(self, old: Path, new: Path) -> int:
        return self._number(self._layer.move(self._db, old, new))

    def remove(self, path: Path) -> Any:
        return self._layer.remove(self._db, path)

    def remove_if_exists(self, path: Path) -> Any:
        return self._layer.remove_if_exists(self._db, path)

    def _number(self, directory: Any) -> int:
        return int(self._db[directory["number"]] or b"0")


@given(program=PROGRAMS)
def test_directories_answer_as_a_plain_tree_does(db: Any, space: Subspace, program: list[tuple[Any, ...]]) -> None:
    tree, directories = Tree(), Directories(db, space[next(_examples)])
    for operation, *args in program:
        expected = getattr(tree, operation)(*(args[:-1] if operation in ("open", "exists", "list") else args))
        assert directories.ask(operation, *args) == expected, (operation, *args)
